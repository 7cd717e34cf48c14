"""Tells what blocks the event loop: for tests, and for whoever looks for the cause of a delay.

A supervisor that is started with `SCRUN_WATCHDOG=FILE` in its environment appends a line of JSON
to FILE whenever one turn of its loop has waited for something for 50 ms: a file system, a program,
a lock. A turn that computes or waits for a processor is not told, nor one whose processor the
hypervisor gave to another machine.
"""

import json
import os
import sys
import threading
import time
import traceback

import trio

VARIABLE = "SCRUN_WATCHDOG"
_PERIOD = 0.05  # seconds
_LATE = 0.025
_LOOKS = 5
_MOST = 200  # lines
_LOOP = "trio/_core/_run.py"
_STARTS = ("threading.py", "start")
_LOCKS = ("threading.py", "logging/__init__.py", "queue.py")


def watchdogs() -> list[trio.abc.Instrument]:
    """Return the instruments for the loop of the calling thread: none unless one is asked for."""
    path = os.environ.get(VARIABLE)
    return [Watchdog(path)] if path else []


class Watchdog(trio.abc.Instrument):
    """Watches the loop of the thread that made it.

    Its own thread looks every 50 ms while the loop has something to do, and sleeps while it waits.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._ident = threading.get_ident()
        self._task = f"/proc/self/task/{threading.get_native_id()}"
        self._turn: object = None
        self._sleeps = False
        self._work = threading.Event()
        self._left = _MOST
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def after_io_wait(self, timeout: float) -> None:
        self._turn = object()
        if self._sleeps:
            self._sleeps = False
            self._work.set()

    def before_io_wait(self, timeout: float) -> None:
        self._turn = None

    def after_run(self) -> None:
        self._turn = None

    def _watch(self) -> None:
        while self._left:
            turn = self._turn
            if turn is None:
                self._work.clear()
                self._sleeps = True
                if self._turn is None:  # else it has begun in between
                    self._work.wait()
                self._sleeps = False
                continue
            began, before, stolen, locked = time.monotonic(), self._times(), _stolen(), False
            for _ in range(_LOOKS):
                time.sleep(_PERIOD / _LOOKS)
                locked |= self._at_a_lock()
            took = time.monotonic() - began
            waited = took - (self._times() - before) - (_stolen() - stolen)
            # a process that was stopped, or has no processor, has this thread late as well
            late = took > _PERIOD + _LATE
            if self._turn is not turn or late or waited < _PERIOD - _LATE:
                continue
            # Not before: who has a frame has all that it has, which keeps buffers from growing.
            stack = traceback.extract_stack(sys._current_frames()[self._ident])
            # a thread that computes waits at a lock, too: the interpreter's, which another one has
            if locked and not stack[-1].filename.endswith(_LOCKS):
                continue
            if stack[-1].filename.endswith(_LOOP):  # which waits for nothing: the machine did
                continue
            # a new thread has no processor yet
            if any((os.path.basename(frame.filename), frame.name) == _STARTS for frame in stack):
                continue
            self._tell(waited, stack)
            while self._turn is turn:
                time.sleep(_PERIOD)

    def _times(self) -> float:
        """Return for how long the loop's thread has run, or has waited for a processor."""
        try:
            with open(f"{self._task}/schedstat") as file:
                ran, delayed, _ = file.read().split()
        except (OSError, ValueError):  # a kernel without these
            return 0.0
        return (int(ran) + int(delayed)) / 1e9

    def _at_a_lock(self) -> bool:
        try:
            with open(f"{self._task}/wchan") as file:
                return "futex" in file.read()
        except OSError:
            return False

    def _tell(self, waited: float, frames: traceback.StackSummary) -> None:
        self._left -= 1
        stack = traceback.format_list(frames[-12:])
        line = json.dumps({"pid": os.getpid(), "waited": round(waited, 3), "stack": stack}) + "\n"
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError:
            pass


def _stolen() -> float:
    """Return for how long other virtual machines have had our processors (proc(5): steal)."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")
