"""Rootless podman, with scrun as its runtime, on Slurm."""

import contextlib
import json
import os
import shlex
import shutil
import sys
import tarfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from tests.harness import cluster, users
from tests.harness.client import Client
from tests.harness.image import owned_by_root
from tests.harness.program import run_program
from tests.harness.site import Site, with_launch

RUN = ("run", "--network", "host", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
"""`podman run`, with what rootless podman needs on this machine (no slirp, low hard limits)."""


# Of a rootless container podman pauses only what could have a cgroup, which on v1 none can. Its
# process that holds the user namespace holds this mount namespace as well.
_CGROUP2 = ("unshare", "--mount", "sh", "-c")
_MOUNT = 'mount -t cgroup2 cgroup /sys/fs/cgroup && exec "$@"'


@contextlib.contextmanager
def podman_of(
    user: users.User,
    engine: str = "slurm",
    *,
    cgroup2: bool = False,
    storage: str = "vfs",
    create_timeout: float = 60,
    settings: str = "",
    in_memory: bool = False,
) -> Iterator["Podman"]:
    """Podman of a user, at a place of its own.

    With `cgroup2` it finds cgroups as most systems have them now; `in_memory`, a tmpfs as
    $XDG_RUNTIME_DIR, as users have.
    """
    before = (*_CGROUP2, _MOUNT, "sh") if cgroup2 else ()
    with (
        contextlib.closing(Site(engine, user, create_timeout=create_timeout)) as site,
        Podman(site, settings, before, storage, in_memory=in_memory) as podman,
    ):
        yield podman


def rootless_podman(**how: Any) -> contextlib.AbstractContextManager["Podman"]:
    """Podman of the ordinary user, on Slurm; `how` as for `podman_of`."""
    return podman_of(users.ordinary(), **how)


_written: dict[Path, list[tuple["Podman | None", bytes | None]]] = {}
"""What was in a file of settings before, and what each of us needs. Fixtures end in any order."""


class Podman(Client):
    """Podman of a site's user: storage, images and containers of its own.

    The engine passes next to nothing of the environment on to its runtime, so the runtime's
    settings are in the user's own file meanwhile; root's are in one that each call names. On this
    machine a launcher names them.
    """

    def __init__(
        self,
        site: Site,
        settings: str = "",
        before: tuple[str, ...] = (),
        storage: str = "vfs",
        *,
        in_memory: bool = False,
    ) -> None:
        self.site = site
        self.settings = settings
        memory = Path("/dev/shm") / site.base.name
        self._runtime_dir = memory if in_memory else site.base / "x"
        self._runtime_dir.mkdir(mode=0o700)
        site.user.give(self._runtime_dir)
        self._settings = Path(site.user.home) / ".config" / "scrun" / "scrun.toml"
        if site.user.uid == 0:
            self._settings = site.base / "podman.toml"
        self._made: list[Path] = []
        self._launcher = site.base / "launcher" if site.engine == "local" else None
        self.prefix = [*before, *site.user.prefix]
        self.command = [
            "podman",
            "--root",
            f"{site.base}/s",
            "--runroot",
            f"{self._runtime_dir}/s",
        ]
        self.command += ["--storage-driver", storage, "--cgroup-manager", "cgroupfs"]
        self.storage = storage
        self.command += ["--events-backend", "file"]
        if site.user.uid == 0:  # else all share /run/libpod, and take its loss for a reboot
            self.command += ["--tmpdir", f"{self._runtime_dir}/tmp"]
        self.command += ["--runtime", str(self._launcher or site.command[0])]
        if site.user.uid == 0 and self._launcher is None:
            self.command += ["--runtime-flag", f"config-file={self._settings}"]
        self.environment = {
            **site.user.environment,
            "XDG_RUNTIME_DIR": str(self._runtime_dir),
            "TMPDIR": str(site.base),
        }
        if self._launcher is not None:
            self.environment["CONTAINERS_CONF"] = f"{site.base}/containers.conf"

    @cached_property
    def release(self) -> tuple[int, int]:
        words = self.must("--version").split()
        major, minor, *_ = words[2].split(".")
        return int(major), int(minor)

    def copied(self, container: str, path: str) -> str:
        """What `podman cp` brings out of a container."""
        place = self.site.base / "b" / "taken"
        place.unlink(missing_ok=True)
        self.must("cp", f"{container}:{path}", str(place))
        return place.read_text()

    def scrun(self, *words: str) -> str:
        """Call scrun for a container of podman's, successfully, and return what it printed."""
        return self.site.must(f"--root={self._runtime_dir}/scrun", *words)

    def __enter__(self) -> Self:
        if self._launcher is None:
            self._write_settings()
        else:
            words = [self.site.command[0], "--root", f"{self._runtime_dir}/scrun"]
            words += ["--config-file", self.site.environment["SCRUN_CONFIG"]]
            self._launcher.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
            self._launcher.chmod(0o755)
            limits = '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]\n'
            (self.site.base / "containers.conf").write_text(limits)
        archive = self.site.base / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add(self.site.rootfs, ".", filter=owned_by_root)
        self.site.user.give(archive)
        self.must("import", str(archive), "busybox")
        return self

    def _write_settings(self) -> None:
        root = self._runtime_dir / "scrun"
        text = f'engine = "slurm"\nroot = "{root}"\nidle_timeout = 20\n'
        text += f"create_timeout = {self.site.create_timeout}\n"
        text += f'[slurm]\nconf = "{cluster.slurm_conf()}"\n{self.settings}'
        if self._settings not in _written:
            before = self._settings.read_bytes() if self._settings.exists() else None
            _written[self._settings] = [(None, before)]
        for directory in (self._settings.parents[1], self._settings.parent):
            if not directory.exists():
                directory.mkdir(mode=0o700)
                self.site.user.give(directory)
                self._made.append(directory)
        _written[self._settings].append((self, with_launch(text).encode()))
        self._put_settings()

    def _put_settings(self) -> None:
        """Have the file say what the last of us needs that is there still."""
        stack = _written[self._settings]
        if (text := stack[-1][1]) is None:
            self._settings.unlink(missing_ok=True)
        else:
            self._settings.write_bytes(text)
            self.site.user.give(self._settings)

    def __exit__(self, *_: object) -> None:
        try:
            self.run("rm", "--all", "--force", "--time", "1")
            self.run("system", "migrate")  # ends the process that holds the user namespace
        finally:
            if self._launcher is None:
                stack = _written[self._settings]
                stack[:] = [one for one in stack if one[0] is not self]
                self._put_settings()
            for directory in reversed(self._made):
                with contextlib.suppress(OSError):  # somebody else uses it by now
                    directory.rmdir()
            shutil.rmtree(self.site.base / "s", ignore_errors=True)
            if self._runtime_dir.parent != self.site.base:
                shutil.rmtree(self._runtime_dir, ignore_errors=True)


def given(engine: Client, name: str, text: str) -> Path:
    """Write a file for the engine's user."""
    path = engine.site.base / name
    path.write_text(text)
    engine.site.user.give(path)
    return path


def compose(podman: Podman, *arguments: str) -> None:
    """Call podman-compose, which calls the podman of the test."""
    wrapper = given(podman, "podman", f'#!/bin/sh\nexec {" ".join(podman.command)} "$@"\n')
    wrapper.chmod(0o755)
    compose = [sys.executable, "-m", "podman_compose", "--podman-path", str(wrapper)]
    done = run_program(
        [*podman.site.user.prefix, *compose, "--project-name", "proj", *arguments],
        env={**podman.environment, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        cwd=podman.site.base,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


_KUBE = """\
apiVersion: v1
kind: Pod
metadata:
  name: web
spec:
  hostNetwork: true
  shareProcessNamespace: {share_processes}
  restartPolicy: Never
  containers:
"""
_CONTAINER = """\
  - name: {name}
    image: localhost/busybox
    imagePullPolicy: Never
    command: ["/bin/sh", "-c", {script}]
    resources:
      limits: {{cpu: "2", memory: 64Mi}}
"""
_COMPOSE = """\
services:
  one: &service
    image: localhost/busybox
    network_mode: host
    extra_hosts: ["one:127.0.0.1", "two:127.0.0.1"]
    command: ["sh", "-c", {script}]
  two: *service
"""


def write_kube(podman: Podman, script: str, *, share_processes: bool = False) -> str:
    """Describe a pod `web` of two containers, `one` and `two`; return the file's path."""
    pod = _KUBE.format(share_processes=json.dumps(share_processes))
    two = (_CONTAINER.format(name=name, script=json.dumps(script)) for name in ("one", "two"))
    return str(given(podman, "kube.yaml", pod + "".join(two)))


def write_compose(podman: Podman, script: str) -> None:
    """Describe two services, `one` and `two`, for `compose`."""
    escaped = json.dumps(script.replace("$", "$$"))
    given(podman, "compose.yaml", _COMPOSE.format(script=escaped))
