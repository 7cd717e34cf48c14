"""The programs of `exec` on this machine that cannot outlive us."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from scrun.model.identity import identity_of, is_dead
from scrun.model.record import ProcessIdentity
from scrun.supervisor.children.processes import Child
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.engines.local.held_exec import pids_of_children


class OwnPrograms:
    """The programs in a container that have to end with us, noted for a successor."""

    def __init__(self, deposit: Deposit) -> None:
        self._deposit = deposit
        self._running: dict[int, ProcessIdentity] = {}

    @contextmanager
    def noted(self, runtime: Child) -> Iterator[None]:
        """Note one more, in the foreground of a runtime, while the block runs."""
        self._running[runtime.pid] = identity_of(runtime.pid)
        self._note()
        try:
            yield
        finally:
            del self._running[runtime.pid]
            self._note()

    def _note(self) -> None:
        self._deposit.note(programs=msgspec.to_builtins([*self._running.values()]))


def end_left(facts: Mapping[str, Any]) -> bool:
    """End the programs that another supervisor has left: the runtime passes SIGTERM on only.

    Returns:
        Whether there was any.
    """
    programs = msgspec.convert(facts.get("programs", []), list[ProcessIdentity])
    for runtime in programs:
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(runtime.pid)
            try:
                if not is_dead(runtime):
                    for pid in _below(runtime.pid):
                        with suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            finally:
                os.close(pidfd)
    return bool(programs)


def _below(pid: int) -> list[int]:
    """List the runtime, if that is below a shell, and the program; first those below."""
    children = pids_of_children(pid)
    return [below for child in children for below in pids_of_children(child)] + children
