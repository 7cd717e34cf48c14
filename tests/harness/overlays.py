"""Containers whose root file system is on an overlay, as engines' stores have it by default."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from tests.harness.daemons import Daemon
from tests.harness.docker import Docker
from tests.harness.podman import RUN, Podman, given
from tests.harness.processes import run
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.squashfs import fuse_for_all
from tests.harness.users import User, ordinary
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until

STAYS = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"

MOUNTED = "root: the node mounts the layers of "

PACKED = "root: the node mounts squashfs images of the layers of "

COPIED = "root: copied "

LOG = Path("l/log")


def way(record: Path) -> str:
    """What `state` says of a container's root file system."""
    annotations: dict[str, str] = json.loads((record / "state.json").read_text())["annotations"]
    return annotations["org.scrun.image"]


def own(how: str) -> str:
    return f'[staging]\noverlay = "{how}"\n'


def said(podman: Podman) -> str:
    """What the log says about root file systems."""
    lines = (podman.site.base / LOG).read_text().splitlines()
    return "\n".join(line for line in lines if "root: " in line)


def begin(podman: Podman, *options: str, script: str = STAYS, image: str = "busybox") -> str:
    words = (*RUN, "--detach", *options, image, "sh", "-c", script)
    container = podman.must(*words).strip()
    wait_until("it is up", lambda: podman.must("logs", container).startswith("up\n"))
    return container


def changes(podman: Podman, name: str) -> set[str]:
    """What podman says of a container, without what Slurm makes to mount the step's directory."""
    spool = os.environ["SLURM_CLUSTER_DIR"]  # from 26.05 on it is mounted there
    lines = {line for line in podman.must("diff", name).splitlines() if spool not in line}
    return lines - set(slurm_version().made_in_root)


CHANGES = """
mkdir /opt /opt/a; echo new >/opt/a/new; echo more >>/etc/passwd; rm /bin/tac
mv /etc/group /etc/moved; chmod 4711 /bin/busybox; ln /etc/moved /etc/linked; ln -s /x /etc/link
rm -rf /data/old; mkdir /data/old; echo b >/data/old/b; chown 33:44 /data/mine
mv /data/from /data/to; touch -d 2001-02-03 /data/to/f; chmod 1777 /data
"""

IMAGE_FILE = """FROM busybox
RUN mkdir -p /data/old/x /data/from /home && echo a >/data/old/a && echo f >/data/from/f
RUN echo mine >/data/mine; chmod 600 /data/mine; rm -r /data/old/x; echo c >/data/old/c
"""


def build(podman: Podman) -> None:
    given(podman, "b/Containerfile", IMAGE_FILE)
    options = ("--isolation", "oci", "--network", "host", *RUN[3:], "--tag", "layers")
    podman.must("build", *options, str(podman.site.base / "b"))


def files(podman: Podman, container: str) -> list[str]:
    """All that is in a container: names, modes, owners, targets and sizes."""
    tar = podman.site.base / f"{container}.tar"
    podman.must("export", "--output", str(tar), container)
    listing = run_program(["tar", "--list", "--verbose", "--numeric-owner", "--file", str(tar)])
    kept = []
    for line in listing.stdout.splitlines():
        mode, owner, size, _, _, name = line.split(maxsplit=5)
        if not name.startswith(("run/", "var/run", "etc/hosts", "etc/resolv", "etc/hostname")):
            kept.append(f"{mode} {owner} {size} {name}".replace(" link to ", " -> "))
    return sorted(kept)


def as_with_runc(podman: Podman, script: str = CHANGES) -> None:
    """Make the same changes with scrun and with runc, and compare what is there afterwards."""
    podman.must(*RUN, "--name", "ours", "layers", "sh", "-c", script)
    command = podman.command[: podman.command.index("--runtime")]
    runc = [*podman.prefix, *command, "--runtime", "runc"]
    words = ("--name", "theirs", "--pids-limit", "0", "layers", "sh", "-c", script)
    done = run_program([*runc, *RUN, *words], env=podman.environment, cwd=podman.site.base)
    assert done.returncode == 0, done.stderr
    assert changes(podman, "ours") == changes(podman, "theirs")
    ours, theirs = (files(podman, name) for name in ("ours", "theirs"))
    assert ours == theirs


TASKS = ("--env", "SCRUN_JOB_NUM_NODES=2", "--env", "SCRUN_NTASKS=2")

# slurmstepd of 22.05 does not tell a container which task it is
EACH = "me=${SLURM_PROCID:-7}; echo $me >>/etc/made; echo >/srv/$me; cat /etc/made"

HIDDEN = 'mount --bind "$0" "$1" && shift && exec "$@"'


@contextlib.contextmanager
def shared_store(
    settings: str = "", before: tuple[str, ...] = (), user: User | None = None
) -> Iterator[Podman]:
    """podman of a user, whose storage the nodes see, and whose containers' log is in a file."""
    site = Site("slurm", user or ordinary())
    log = f'[log]\nfile = "{site.base / LOG}"\n'
    try:
        with Podman(site, log + settings, before, storage="overlay") as podman:
            yield podman
    finally:
        site.close()


@contextlib.contextmanager
def hidden_store(
    settings: str = "",
    user: User | None = None,
    storage: str = "overlay",
    images_in: str = "images",
) -> Iterator[Podman]:
    """podman, whose storage is a mount in its own mount namespace.

    Args:
        settings: More of scrun.toml.
        user: Whose it is.
        storage: podman's driver.
        images_in: Where the store of images is; below `s` the nodes do not see it, either.
    """
    site = Site("slurm", user or ordinary())
    hidden, store = site.base / "hidden", site.base / "s"
    for folder in (hidden, store):
        folder.mkdir()
        site.user.give(folder)
    before = ("unshare", "--mount", "sh", "-c", HIDDEN, str(hidden), str(store))
    images = f'[images]\nstore = "{site.base}/{images_in}"\n'
    log = f'[log]\nfile = "{site.base / LOG}"\n'
    try:
        with Podman(site, log + images + settings, before, storage) as podman:
            yield podman
            # files of subordinate ids
            podman.run("unshare", "rm", "-rf", f"{site.base}/{images_in}")
    finally:
        site.close()


def keys(podman: Podman) -> set[str]:
    return {path.name for path in (podman.site.base / "images").glob("layer-*")}


@contextlib.contextmanager
def network_scratch(user: User, settings: str = "", *more: str) -> Iterator[Podman]:
    """podman; staged bundles are on a file system that knows no owners and no marks, as NFS.

    `more` are options of bindfs.
    """
    site = Site("slurm", user)
    disks = Path(os.environ["SLURM_CONF"]).parents[1] / "disks"
    disk = disks / site.base.name
    below = site.base / "below"
    for folder in (disk, below):
        folder.mkdir()
        user.give(folder)
    options = ("--chown-deny", "--chgrp-deny", "--xattr-none", "-o", "allow_other", *more)
    run_program(["bindfs", *options, str(below), str(disk)])
    staging = f'[staging]\nscratch = "{disk}"\n'
    log = f'[log]\nfile = "{site.base / LOG}"\n'
    try:
        with Podman(site, log + staging + settings, storage="overlay") as podman:
            yield podman
    finally:
        site.close()
        run_program(["umount", str(disk)])
        disk.rmdir()


def with_store(daemon: Daemon, *, seen: bool = False, images_in: str = "images") -> None:
    """Have the store of images in the site's directory, and the engine's files here only.

    Args:
        daemon: The engine.
        seen: Whether its files are on the nodes, too.
        images_in: Where the store is; below `d` the nodes do not see it, either.
    """
    settings = daemon.base / "scrun.toml"
    more = "" if seen else f'[staging]\nhost_only = ["{daemon.base}/d"]\n'
    more += f'[images]\nstore = "{daemon.base}/{images_in}"\n'
    settings.write_text(f"{settings.read_text()}\n{more}")


@contextlib.contextmanager
def on_overlay(settings: str = "") -> Iterator[Podman]:
    """podman, whose containers write to an overlay."""
    fuse_for_all()
    site = Site("slurm", ordinary())
    folders = {name: site.base / f"over-{name}" for name in ("lower", "upper", "work")}
    scratch = Path(os.environ["SLURM_CLUSTER_DIR"]) / "disks" / site.base.name
    for folder in (*folders.values(), scratch):
        folder.mkdir()
    options = ",".join(f"{name}dir={folder}" for name, folder in folders.items())
    run("mount", "-t", "overlay", "overlay", "-o", options, str(scratch))
    scratch.chmod(0o1777)
    text = f'[staging]\nscratch = "{scratch}"\n[log]\nfile = "{site.base / LOG}"\n{settings}'
    try:
        with Podman(site, text, storage="overlay") as podman:
            yield podman
        assert not list(scratch.iterdir())
    finally:
        run("umount", "--lazy", str(scratch))
        scratch.rmdir()
        site.close()


def in_docker(docker: Docker, image: str) -> str:
    """Have a container change something, which docker has at its end; return its log.

    Args:
        docker: The engine.
        image: What `state` is to say of the root file system.
    """
    container = docker.must("run", "--detach", "busybox", "sh", "-c", STAYS).strip()
    wait_until("it is up", lambda: docker.must("logs", container))
    log = (docker.records / container / "log").read_text()
    assert way(docker.records / container) == image, log
    docker.must("exec", container, "sh", "-c", "echo x >/etc/x; rm /bin/tac")
    docker.must("stop", container)
    assert {"A /etc/x", "D /bin/tac"} <= set(docker.must("diff", container).splitlines())
    docker.must("rm", container)
    return log
