"""Waits for descriptors, signals and deadlines: one thread, no wake-up when nothing happens."""

import _signal as signal  # without enum, which takes longer than hello
import os
import select
import time

READ = select.EPOLLIN
WRITE = select.EPOLLOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Loop:
    """Calls who asked when something happens. The descriptors are non-blocking ones."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, tuple[int, Callable[[int], None]]] = {}
        self._deadlines: dict[object, tuple[float, Callable[[], None]]] = {}

    def watch(self, fd: int, events: int, happened: "Callable[[int], None]") -> None:
        """Call when a descriptor is ready, and when its other end has gone, whatever `events` are.

        Args:
            fd: A pipe, a socket or a terminal, non-blocking.
            events: READ, WRITE, both or 0. A second call for a descriptor changes them.
            happened: Called with what happened, as epoll(7) has it.
        """
        before = self._watched.get(fd)
        if before is None:
            self._epoll.register(fd, events)
        elif before[0] != events:
            self._epoll.modify(fd, events)
        self._watched[fd] = (events, happened)

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer: before it is closed."""
        if self._watched.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, happened: "Callable[[], None]") -> object:
        """Call once when time has passed; return what `cancel` takes."""
        key = object()
        self._deadlines[key] = (time.monotonic() + seconds, happened)
        return key

    def cancel(self, key: object) -> None:
        """Forget a deadline, which may have passed."""
        self._deadlines.pop(key, None)

    def take_signals(self, numbers: "Iterable[int]", happened: "Callable[[int], None]") -> None:
        """Handle signals here, in the order in which they arrive."""
        here, there = os.pipe()
        for fd in (here, there):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(there)
        for number in numbers:
            signal.signal(number, _woken)

        def readable(_: int) -> None:
            seen = os.read(here, 512)
            for number in sorted(set(seen), key=seen.index):
                happened(number)

        self.watch(here, READ, readable)

    def run(self, done: "Callable[[], bool]") -> None:
        """Wait and call until something is so."""
        while not done():
            self._turn(self._next())

    def turn(self) -> None:
        """Call for events that have happened already, and do not wait."""
        self._turn(0)

    def _turn(self, timeout: float) -> None:
        for fd, events in self._epoll.poll(timeout):
            watched = self._watched.get(fd)
            if watched is not None:  # nobody forgot it a moment ago
                watched[1](events)
        self._call_late()

    def _next(self) -> float:
        """Return the seconds until the next deadline; -1 if there is none."""
        if not self._deadlines:
            return -1
        first = min(when for when, _ in self._deadlines.values())
        return max(0.0, first - time.monotonic())

    def _call_late(self) -> None:
        now = time.monotonic()
        for key, (when, happened) in list(self._deadlines.items()):
            if when <= now and self._deadlines.pop(key, None) is not None:
                happened()


def _woken(_number: int, _frame: object) -> None:
    """Do nothing: the interpreter has written the number to the pipe."""
