"""What comes back of a container is what another runtime gives, file by file.

Where a shim mounts the root file system; with an overlay for each directory in the root directory
(test_overlay) those directories stay, and no file has names in two of them.
"""

import hashlib
import io
import json
import re
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import Client
from tests.harness.docker import Docker
from tests.harness.overlays import changes, hidden_store, on_overlay
from tests.harness.podman import RUN, Podman, given, podman_of, rootless_podman
from tests.harness.squashfs import fuse_for_all
from tests.harness.users import root

IMAGE = """FROM busybox
RUN mkdir -p /data/old/x /data/from /data/dir/sub /data/opaque/a/b /home/a /srv /media/sub
RUN echo a >/data/old/a; echo f >/data/from/f; echo s >/data/dir/sub/s; echo b >/data/opaque/a/b/c
RUN echo mine >/data/mine; chmod 600 /data/mine; rm -r /data/old/x; echo file >/data/file
RUN echo one >/srv/one; ln /srv/one /srv/two; mkfifo /srv/fifo; ln -s one /srv/link
RUN echo x >/top; chmod 1777 /data/opaque
"""

CHANGES = """set -e
mkdir -p /opt/a /new/b; echo new >/opt/a/new; : >/opt/empty; echo more >>/etc/passwd
rm /bin/tac; rm -r /data/old; mv /etc/group /etc/moved; mv /data/from /data/to
chmod 4711 /bin/busybox; chmod 700 /data/dir; chmod 2755 /srv; chmod 600 /data/file
ln /etc/moved /etc/linked; ln /opt/a/new /opt/linked; ln /etc/linked /etc/third
echo top >/first; ln /first /second
ln -s /nowhere /etc/link; ln -snf two /srv/link; mkfifo -m 640 /opt/fifo; rm /srv/fifo
rm -r /data/opaque/a; mkdir /data/opaque/a; echo other >/data/opaque/a/other
rm -r /data/dir/sub; echo file >/data/dir/sub
mkdir /opt/x; rmdir /opt/x; echo y >/opt/x
touch -d "2001-02-03 04:05:06" /data/to/f; echo y >>/top
set_attribute /opt/a/new user.file; set_attribute /data/to user.folder; set_attribute /new user.new
rm -r /home; mv /media /new/media; ln /etc/moved /moved; chmod 700 /srv
mkdir -m 1777 /root/made; mv /data /moved-data; mkdir /data; echo anew >/data/file
"""


NAMES = "ln /srv/one /srv/three; ln /srv/one /opt/one\n"
"""More names of a file that has two in its layer: fuse-overlayfs may copy the other one."""

FILE_TO_FOLDER = "rm /data/file; mkdir /data/file; echo in >/data/file/in\n"
"""podman diff fails after it, whatever the runtime is: "not a directory"."""

# the image has no setfattr(1): the machine's own Python does it, from a volume
SET = """
set_attribute() {
    lib=/tool/lib/$(uname -m)-linux-gnu
    PYTHONHOME=/tool $lib/ld-linux-*.so.* --library-path $lib \\
        /tool/bin/python3 -S -c 'import os, sys; os.setxattr(*sys.argv[1:3], b"y")' "$@"
}
"""


Member = tuple[object, ...]
NOTES = (".overlay.origin", ".overlay.impure")
"""The kernel's own, of files from a layer below; podman 4.3 leaves them there."""
LONG_AGO = 1_000_000_000
"""Such times were set; others are those of two runs."""


def members(archive: tarfile.TarFile) -> dict[str, Member]:
    """What is in an archive. Of the names of one file, which is first does not count."""
    found: dict[str, Member] = {}
    names: dict[str, set[str]] = {}
    for member in archive:
        name = member.name.removeprefix("./")
        first = member.linkname.removeprefix("./") if member.islnk() else name
        names.setdefault(first, set()).add(name)
        if member.islnk():
            continue
        file = archive.extractfile(member) if member.isfile() else None
        content = hashlib.sha256(file.read()).hexdigest() if file is not None else ""
        attributes = sorted(
            item
            for item in member.pax_headers.items()
            if "xattr" in item[0] and not item[0].endswith(NOTES)
        )
        then = member.mtime if member.mtime < LONG_AGO else None
        leads_to = member.linkname if member.issym() else ""
        found[name] = (
            member.type, oct(member.mode), member.uid, member.gid, leads_to, content,
            tuple(attributes), then,
        )  # fmt: skip
    for first, same in names.items():
        for name in same:
            found[name] = (*found[first], tuple(sorted(same)))
    return found


def differences(ours: dict[str, Member], theirs: dict[str, Member]) -> dict[str, Any]:
    """What is not alike, but for what engines write for each container."""
    own = re.compile(
        r"(run|var/run|tmp|tool|etc/hosts|etc/resolv\.conf|etc/hostname|dev|proc|sys)\b"
    )
    return {
        name: (ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name) and not own.match(name)
    }


class Pair:
    """A container of scrun's and one of another runtime's, which did the same."""

    def __init__(self, engine: Client, theirs: Callable[..., str], base: Path) -> None:
        """Name the engine, how it calls the other runtime, and a place for archives."""
        self._engine = engine
        self._theirs = theirs
        self._base = base
        volume = ("--volume", "/usr:/tool:ro")
        self.options = (*(RUN[1:3] if isinstance(engine, Docker) else RUN[1:]), *volume)

    def run(self, script: str, ours: str = "ours", theirs: str = "theirs") -> None:
        words = ("--name", ours, "image", "sh", "-c", script)
        self._engine.must("run", *self.options, *words)
        words = ("--name", theirs, "image", "sh", "-c", script)
        self._theirs("run", *self.options, *words)

    def tree(self, name: str) -> dict[str, Member]:
        path = self._base / f"{name}.tar"
        self._engine.must("export", "--output", str(path), name)
        with tarfile.open(path) as archive:
            return members(archive)

    def last_layer(self, name: str) -> dict[str, Member]:
        """What a commit adds."""
        path = self._base / f"{name}-image.tar"
        self._engine.must("commit", name, f"of-{name}")
        self._engine.must("save", "--output", str(path), f"of-{name}")
        with tarfile.open(path) as archive:
            manifest = archive.extractfile("manifest.json")
            assert manifest is not None
            last = json.loads(manifest.read())[0]["Layers"][-1]
            layer = archive.extractfile(last)
            assert layer is not None
            with tarfile.open(fileobj=io.BytesIO(layer.read())) as inner:
                return members(inner)

    def alike(self, ours: str = "ours", theirs: str = "theirs") -> None:
        diffs = [self.diff(name) for name in (ours, theirs)]
        assert diffs[0] == diffs[1]
        assert not differences(self.tree(ours), self.tree(theirs))
        assert not differences(self.last_layer(ours), self.last_layer(theirs))

    def diff(self, name: str) -> set[str]:
        if isinstance(self._engine, Podman):
            return changes(self._engine, name)
        return set(self._engine.must("diff", name).splitlines())


def of_podman(podman: Podman) -> Pair:
    given(podman, "b/Containerfile", IMAGE)
    options = ("--isolation", "oci", "--network", "host", *RUN[3:], "--tag", "image")
    podman.must("build", *options, str(podman.site.base / "b"))
    command = podman.command[: podman.command.index("--runtime")]
    # crun refuses a machine with cgroups of both versions, and limits need a cgroup
    runc = [*podman.prefix, *command, "--runtime", "runc"]

    def theirs(verb: str, *words: str) -> str:
        done = subprocess.run(
            [*runc, verb, "--pids-limit", "0", *words], env=podman.environment,
            cwd=podman.site.base, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    return Pair(podman, theirs, podman.site.base)


# setuid programs of others are nobody's where a container has one user
WAYS: dict[str, Callable[[], AbstractContextManager[Podman]]] = {
    "seen": lambda: rootless_podman(storage="overlay"),
    "root": lambda: podman_of(root(), storage="overlay"),
    "squashfs": lambda: hidden_store('[staging]\nid_map = "single"\n'),
}

pytestmark = pytest.mark.by_shim


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    fuse_for_all()
    with WAYS[request.param]() as podman:
        yield of_podman(podman)


def test_podman(pair: Pair) -> None:
    pair.run(SET + CHANGES + NAMES)
    pair.alike()


def test_by_fuse_overlayfs() -> None:
    with on_overlay() as podman:
        pair = of_podman(podman)
        pair.run(SET + CHANGES)
        pair.alike()


def test_docker() -> None:
    with Docker(storage="overlay2") as docker:
        folder = docker.base / "context"
        folder.mkdir()
        (folder / "Dockerfile").write_text(IMAGE)
        docker.must("build", "--network", "host", "--tag", "image", str(folder))

        def theirs(verb: str, *words: str) -> str:
            return docker.must(verb, "--runtime", "runc", *words)

        pair = Pair(docker, theirs, docker.base)
        time.sleep(1)  # docker knows another link of that second by its length only
        pair.run(SET + CHANGES + NAMES + FILE_TO_FOLDER)
        pair.alike()
