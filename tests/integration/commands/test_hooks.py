"""What hooks and seccomp listeners are told, and when: beside crun and runc called as they are."""

import array
import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness.bundle import write_bundle
from tests.harness.nightly import nightly
from tests.harness.program import run_program
from tests.harness.site import CGROUP2, Site
from tests.harness.wait import wait_until

ID = "-c.1+"
MOMENTS = (
    *("prestart", "createRuntime", "createContainer"),
    *("startContainer", "poststart", "poststop"),
)
Said = dict[str, dict[str, Any]]


class Side:
    """scrun, or a runtime beside it, with a bundle whose hooks write down what they are told."""

    def __init__(self, site: Site, runtime: str, *, ours: bool) -> None:
        self.site = site
        self.runtime = runtime
        self.ours = ours
        before = CGROUP2 if runtime == "crun" else ()
        own = [runtime, *(["--cgroup-manager=disabled"] if runtime == "crun" else [])]
        self.command = [
            *before,
            *site.user.prefix,
            *(site.command if ours else [*own, "--root", str(site.base / "beside")]),
        ]
        self.told = site.base / "b" / f"told-{'ours' if ours else 'theirs'}"
        self.told.mkdir()
        # one hook for all moments but one, whose program is in the container
        script = '#!/bin/sh\n{ echo "$MOMENT $(pwd)"; cat; echo; } >>"$1"\n'
        for hook in (self.told / "hook", site.rootfs / "hook"):
            hook.write_text(script)
            hook.chmod(0o755)
        self.inside = site.rootfs / "told"
        self.inside.write_text("")
        site.user.give(self.told)
        for path in (self.inside, site.rootfs / "hook"):
            site.user.give(path)

    def config(self, *args: str) -> dict[str, Any]:
        """Return a config.json with all hooks."""
        config = self.site.mapped(*args)
        config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
        inside = {"path": "/hook", "args": ["hook", "/told"]}
        outside = {"path": f"{self.told}/hook", "args": ["hook", f"{self.told}/told"]}
        config["hooks"] = {
            moment: [
                {
                    **(inside if moment == "startContainer" else outside),
                    "env": [f"MOMENT={moment}", "PATH=/bin:/usr/bin"],
                }
            ]
            for moment in MOMENTS
        }
        return config

    def bundle(self, name: str, config: dict[str, Any]) -> str:
        """Make a bundle of a config.json, in the same place for both sides."""
        path = write_bundle(self.site.base / "b" / name, config)
        self.site.user.give(path)
        return str(path)

    def call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        with open(self.told / "output", "w+") as output:
            done = run_program(
                [*self.command, *words],
                stdout=output,
                stderr=output,
                env=self.site.environment,
                cwd=self.site.base,
            )
            output.seek(0)
            text = output.read()
        assert done.returncode == 0, text
        return subprocess.CompletedProcess(words, 0, text)

    def status(self) -> str:
        return str(json.loads(self.call("state", "--", ID).stdout)["status"])

    def said(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Return what each hook was told: its directory and the state, by its moment."""
        found = {}
        texts = (self.told / "told", self.inside)
        for text in (path.read_text() for path in texts if path.exists()):
            rest = text.strip()
            while rest:
                where, _, rest = rest.partition("\n")
                moment, _, directory = where.partition(" ")
                assert moment not in found
                told, end = json.JSONDecoder().raw_decode(rest)  # crun 1.28 writes several lines
                rest = rest[end:].strip()
                # crun has the first, which it is not asked for; the version is the runtime's own
                for name in ("root", "ociVersion"):
                    told.pop(name, None)
                told["pid"] = bool(told.get("pid"))
                found[moment] = (directory, told)
        return found

    def clear(self) -> None:
        """Forget what was said."""
        self.inside.write_text("")
        (self.told / "told").unlink(missing_ok=True)


@contextlib.contextmanager
def sides(site: Site, runtime: str) -> Iterator[tuple[Side, Side]]:
    """The runtime alone, and ours with it."""
    theirs, ours = (Side(site, runtime, ours=ours) for ours in (False, True))
    try:
        yield theirs, ours
    finally:
        for side in (theirs, ours):
            with contextlib.suppress(AssertionError):
                side.call("delete", "--force", "--", ID)


def states(side: Side, way: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Have a container live from create to delete; return what its hooks were told."""
    side.clear()
    options = ("--bundle", side.bundle("x", side.config("true")), "--", ID)
    if way == "create":
        side.call("create", *options)
        side.call("start", "--", ID)
    else:
        side.call(*way.split(), *options)
    if way != "run":
        wait_until("its end", lambda: side.status() == "stopped")
        before = side.said()
        assert "poststop" not in before
        side.call("delete", *(["--force"] if way == "create" else []), "--", ID)
    return side.said()


@pytest.mark.parametrize("runtime", ["crun", nightly("runc")])
@pytest.mark.parametrize("place", ["local-root", "local-user"])
@pytest.mark.parametrize("way", ["create", nightly("run"), "run --detach"])
def test_what_hooks_are_told(make_site: MakeSite, runtime: str, place: str, way: str) -> None:
    """Each once, in its moment and directory, with the caller's id and bundle."""
    site = make_site(place, settings=f'[local]\nruntime = "{runtime}"\n')
    with sides(site, runtime) as (theirs, ours):
        expected = states(theirs, way)
        found = states(ours, way)
    if runtime == "runc":
        # the program is in the container, where nothing can be put before it
        assert found["startContainer"][1].pop("bundle") == f"{site.root}/{ID}"
        del expected["startContainer"][1]["bundle"]
    assert found == expected


def has_stopped(side: Side) -> bool:
    """Return whether the container has ended."""
    return side.status() == "stopped"


@pytest.mark.parametrize("runtime", ["crun", nightly("runc")])
@pytest.mark.parametrize("place", ["local-root", "local-user"])
@pytest.mark.parametrize("lost", [False, True], ids=["", "supervisor is gone"])
def test_what_the_last_hook_has_of_its_deleter(
    make_site: MakeSite, runtime: str, place: str, lost: bool
) -> None:
    """Environment, umask and directory of whoever calls `delete`, not of the supervisor."""
    site = make_site(place, settings=f'[local]\nruntime = "{runtime}"\n')
    found = []
    with sides(site, runtime) as both:
        for side in both:
            config, tells = side.config("true"), side.told / "tells"
            # crun ends with SIGPIPE if nobody reads the state
            lines = (
                "#!/bin/sh",
                "cat >/dev/null",
                '{ umask; echo "$OF_DELETER $OF_CREATOR"; pwd; } >"$1"',
            )
            script = "\n".join(lines) + "\n"
            tells.write_text(script)
            tells.chmod(0o755)
            hook = {"path": str(tells), "args": ["tells", f"{side.told}/deleter"]}
            config["hooks"] = {"poststop": [hook]}
            site.environment["OF_CREATOR"] = "creator"
            side.call("create", "--bundle", side.bundle("x", config), "--", ID)
            side.call("start", "--", ID)
            wait_until("its end", partial(has_stopped, side))
            del site.environment["OF_CREATOR"]
            if lost and side.ours:
                assert '"until_delete": true' in record(site)
                [supervisor] = site.supervisors()
                os.kill(supervisor, signal.SIGKILL)
            text = f"cd /usr; umask 0027; {shlex.join([*side.command, 'delete', '--', ID])}"
            done = run_program(
                ["bash", "-c", text], env={**site.environment, "OF_DELETER": "deleter"}
            )
            assert (done.returncode, done.stderr) == (0, "")
            found.append((side.told / "deleter").read_text())
    theirs, ours = found
    assert ours == theirs
    assert ours.startswith("0027\ndeleter \n")


class Listener:
    """Who is told of the system calls of a container (runtime-spec, `linux.seccomp`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self._socket.settimeout(30)
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()

    def _hear(self) -> None:
        connection, _ = self._socket.accept()
        fds = array.array("i")
        with connection:
            text, ancillary, *_ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(64))
            while part := connection.recv(1 << 16):
                text += part
        for *_, content in ancillary:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        for fd in fds:
            os.close(fd)
        self.told.append(json.loads(text))

    def close(self) -> dict[str, Any]:
        """Return the state that came."""
        self._thread.join(30)
        self._socket.close()
        self.path.unlink()
        [message] = self.told
        state: dict[str, Any] = message["state"]
        return {name: state[name] for name in ("id", "bundle", "annotations")}


@pytest.mark.parametrize("runtime", ["crun", nightly("runc")])
@pytest.mark.parametrize("place", ["local-root", "local-user"])
def test_what_a_seccomp_listener_is_told(make_site: MakeSite, runtime: str, place: str) -> None:
    site = make_site(place, settings=f'[local]\nruntime = "{runtime}"\n')
    seccomp = {
        "defaultAction": "SCMP_ACT_ALLOW",
        "listenerPath": str(site.base / "listener"),
        "syscalls": [{"names": ["swapon"], "action": "SCMP_ACT_NOTIFY"}],
    }
    told = []
    with sides(site, runtime) as both:
        for side in both:
            config = side.config("true")
            config["linux"]["seccomp"] = seccomp
            del config["hooks"]
            bundle = side.bundle("x", config)
            listener = Listener(site.base / "listener")
            site.user.give(listener.path)
            side.call("create", "--bundle", bundle, "--", ID)
            side.call("start", "--", ID)  # crun tells it then
            told.append(listener.close())
    theirs, ours = told
    if runtime == "runc":
        assert ours.pop("bundle") == f"{site.root}/{ID}"
        del theirs["bundle"]
    assert ours == theirs


def test_the_last_hooks_wait_when_the_supervisor_is_gone(make_site: MakeSite) -> None:
    """Neither its death nor its successor is a `delete`."""
    site = make_site("local-root", settings='[local]\nruntime = "runc"\n')
    with sides(site, "runc") as (_, ours):
        ours.call("create", "--bundle", ours.bundle("x", ours.config("true")), "--", ID)
        ours.call("start", "--", ID)
        wait_until("its end", lambda: ours.status() == "stopped")
        [supervisor] = site.supervisors()
        wait_until("its record", lambda: '"until_delete": true' in record(site))
        os.kill(supervisor, signal.SIGKILL)
        other = site.shell("true").created()  # its supervisor looks for what dead ones have left
        assert ours.status() == "stopped"
        assert "poststop" not in ours.said()
        ours.call("delete", "--", ID)
        assert ours.said()["poststop"][1]["id"] == ID
        other.delete()


def record(site: Site) -> str:
    """Read the record of the container."""
    return (site.root / ID / "state.json").read_text()


def test_one_id_in_two_roots(make_site: MakeSite) -> None:
    """The runtime knows both by it, and none has a part in the other's cgroup."""
    lives = [
        make_site("local-root").shell("echo up; sleep 600", container="one").created().start()
        for _ in range(2)
    ]
    for life in lives:
        life.says("up")
    first, second = (cgroups(life.anchor) for life in lives)
    assert len(first) == len(second) == 1
    assert first != second
    lives[0].delete()
    assert lives[1].status == "running"
    lives[1].delete()
    for name in first | second:
        assert not [*Path("/sys/fs/cgroup").glob(f"*/{name}")]


def cgroups(pid: int) -> set[str]:
    """Return the names of a container's cgroups."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return {name for line in lines if (name := line.rpartition("/")[2]).endswith("-one")}
