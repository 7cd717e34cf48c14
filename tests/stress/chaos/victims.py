"""Finds the process that a fault is meant for."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import trio

from scrun.supervisor.keeper.main import NAME as KEEPER
from tests.harness.processes import is_anchor, peer
from tests.stress.chaos.plan import Plan
from tests.stress.chaos.testbed import MARK, TAG

Words = list[str]


def children_of(pid: int) -> list[int]:
    """Return the children of a process' main thread."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def words_of(pid: int) -> Words:
    """Return a process' argv; empty when it is gone, or a zombie."""
    try:
        content = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in content.split(b"\0")[:-1]]


def environment_of(pid: int) -> Words:
    """Return a process' environment; empty when it is gone."""
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return []
    return os.fsdecode(content).split("\0")


def _pid_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def has_tag(pid: int, tag: str) -> bool:
    """Tell whether a process belongs to a container."""
    return f"{TAG}={tag}" in environment_of(pid)


def listener(path: str) -> int:
    """Return the pid of the process that listens on a socket; 0 if there is none."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except OSError:
            return 0
        return peer(sock)


def _named(*names: str) -> Callable[[Words], bool]:
    return lambda words: os.path.basename(words[0]) in names


def _has_shim(words: Words) -> bool:
    return any("scrun.supervisor.shim" in word for word in words)


_WORK = {"exec", "run", "create", "start", "kill", "delete"}
"""What an OCI runtime is called for."""

_IS: dict[str, Callable[[Words], bool]] = {
    "salloc": _named("salloc"),
    "srun": lambda words: _named("srun")(words) and ("--container" in words or _has_shim(words)),
    "keepalive": lambda words: (
        words[1:2] == ["-c"] and "read -r" in words[2] and " delete " in words[-1]
    ),
    # or the reaper, below which both make a container that no engine waits for
    "runtime": lambda words: (
        (_named("crun", "runc")(words) and bool(_WORK & {*words}))
        or any(word.endswith("/reapers/runtime.py") for word in words[:4])
    ),
    "keeper": lambda words: KEEPER in words,
    "worker": lambda words: any("worker" in word for word in words[:8]),
    "command": lambda words: words[1:2] == ["-c"] and MARK in words[2],
    "converter": lambda words: any("pack_layer" in word for word in words[:8]),
}


_OF_ITS_SUPERVISOR = ("converter", "keeper")
"""Children of a supervisor that serves no other container."""


def _serves(words: Words) -> bool:
    """Tell whether this is what serves a squashfs image."""
    return bool(words) and os.path.basename(words[0]).startswith("squashfuse")


class Where:
    """Where to look for the processes of a container.

    Attributes:
        root: The root directory.
        container: The container's id.
        tag: The container's.
        client: The pid of the command that runs at the moment, or 0.
        create: The pid of its `create`, as long as that runs.
        forward: That of its last `forward`, or 0.
        shim: Its shim's, when it is known.
        anchor: Its anchor's, when it is known.
    """

    def __init__(self, root: str, container: str, tag: str) -> None:
        self.root = root
        self.container = container
        self.tag = tag
        self.client = 0
        self.create = 0
        self.forward = 0
        self.shim = 0
        self.anchor = 0

    def find(self, target: str) -> int:
        """Return the pid of a process of the container; 0 as long as there is none."""
        if target in ("client", "exec", "forward"):
            pid = self.forward if target == "forward" else self.client
            return pid if self._is_scrun(pid) else 0
        if target == "anchor":
            return self._anchor()
        if target == "first":
            return self._first()
        if target in ("shim", "stream"):
            return self._shim()
        supervisor = self._supervisor()
        if target in ("job", "supervisor"):
            return supervisor
        if target == "image":
            served = (pid for pid in children_of(self._shim()) if _serves(words_of(pid)))
            return next(served, 0)
        # an OCI runtime may be below the `create` that waits
        makers = (self.create, supervisor)
        for pid in [child for maker in makers if maker for child in children_of(maker)]:
            words = words_of(pid)
            if words and _IS[target](words) and self._is_ours(target, pid, words):
                return pid
        if target == "runtime" and (shim := self._shim()):
            for pid in children_of(shim):
                # crun's child that becomes the container's program has crun's words until then
                outside = _pid_namespace(pid) == _pid_namespace(shim)
                words = words_of(pid)  # in a pod the shim has containers of others
                if words and _IS[target](words) and self.container in words and outside:
                    return pid
        return 0

    def _is_ours(self, target: str, pid: int, words: Words) -> bool:
        """Tell whether a child of the supervisor works for this container.

        What belongs to the job may have been started for another one: of its pod, or before it.
        """
        if has_tag(pid, self.tag) or target in _OF_ITS_SUPERVISOR:
            return True
        job = self._record().get("job_id")
        if not job or target not in ("salloc", "srun"):
            return False
        if target == "srun":
            return _has_shim(words) and ("--jobid", job) in pairwise(words)
        return any(f"SLURM_JOB_ID={job}" in environment_of(child) for child in children_of(pid))

    def _is_scrun(self, pid: int) -> bool:
        """Tell whether it is scrun by now, and not what changes the user before it."""
        words = words_of(pid)
        return self.container in words and "setpriv" not in words[0]

    def _anchor(self) -> int:
        for pid in [self.anchor] if self.anchor else self._young():
            if is_anchor(words_of(pid)):
                return pid
        return 0

    def _first(self) -> int:
        """Return the container's first process, if that is its engine's child."""
        pid = self.anchor
        if not pid:
            try:
                pid = int(Path(f"{self.root}/{self.container}/runtime.pid").read_text())
            except (OSError, ValueError):  # it is not made yet
                return 0
        words = words_of(pid)
        return pid if words and not is_anchor(words) else 0

    def _young(self) -> list[int]:
        """Return those of which one may be the anchor, while `create` runs."""
        makers = children_of(self.create)
        # who has made the anchor is gone soon, and then it is a subreaper's
        own = self._record().get("pid", 0)
        return [pid for maker in makers for pid in children_of(maker)] + [own]

    def _record(self) -> dict[str, Any]:
        try:
            path = Path(f"{self.root}/{self.container}/state.json")
            found: dict[str, Any] = json.loads(path.read_bytes())
        except (OSError, ValueError):  # there is none yet
            return {}
        return found

    def _shim(self) -> int:
        """Return the shim of its job: no child of ours, and without the tag."""
        if self.shim:
            return self.shim if _has_shim(words_of(self.shim)) else 0
        if not (job := self._record().get("job_id")):
            return 0
        for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
            words = words_of(pid)
            if not _has_shim(words) or "python" not in words[0]:
                continue
            if f"SLURM_JOB_ID={job}" in environment_of(pid):
                self.shim = pid
                return pid
        return 0

    def _supervisor(self) -> int:
        if found := listener(f"{self.root}/{self.container}/supervisor"):
            return found
        for pid in children_of(self.create):  # one that is about to detach
            if any(os.path.basename(word) == "supervisor" for word in words_of(pid)[:6]):
                return pid
        return 0


class Harmed(Protocol):
    """Whom a fault hits."""

    plan: Plan

    def hit(self, text: str) -> None:
        """Take notice that the fault has come."""
        ...

    def note(self, text: str) -> None: ...


def killed(container: Harmed, pids: list[int]) -> None:
    """Kill several processes with nothing in between.

    Under load a supervisor that still runs has the time to hear of the others' death, and to tell.
    """
    pidfds = []
    try:
        for pid in pids:
            try:
                pidfds.append(os.pidfd_open(pid))
            except ProcessLookupError:
                continue
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pidfd in reversed(pidfds):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, number)
        container.hit(f"SIGKILL to {pids}")
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


async def signalled(
    container: Harmed, pid: int, name: str, still: Callable[[], bool] = lambda: True
) -> None:
    """Send a signal to a process; one that is stopped goes on after a while.

    Args:
        container: Whose it is.
        pid: The process.
        name: The signal's.
        still: Whether the number is still that process'.
    """
    number = signal.Signals["SIG" + name]
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not still():
            return
        signal.pidfd_send_signal(pidfd, number)
        container.hit(f"{number.name} to {container.plan.fault.target} {pid}")
        if number == signal.SIGSTOP:
            try:
                await trio.sleep(container.plan.pause)
            finally:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
                container.note(f"SIGCONT to {pid}")
    except ProcessLookupError:
        return
    finally:
        os.close(pidfd)
