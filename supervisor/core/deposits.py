"""What containers need to live, where it outlives the supervisor.

A description, and descriptors, of each container, of each job, which several containers may need,
and of each program of `exec`. The keeper receives them (`supervisor.keeper`), and holds them when
the supervisor is killed: nothing sees an end of file, and the successor gets all of it. The keeper
has it until then: if the successor is killed as well, the next one gets the same.

What is sent is there for a successor at once: the message waits in the keeper's socket, also when
the supervisor has died. What a slow keeper has no room for waits in our memory, and whoever has to
know that it is safe waits for that (`be_safe`): nobody else does. For another keeper, if this one
dies, we have a duplicate of each descriptor, or that of an owner who lets it go here first
(`share`), or make it anew (`make`): of thousands of idle containers each one counts.
"""

import errno
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import msgspec
import trio

from scrun.core.rights import MOST
from scrun.supervisor.core.inheritance import (
    IN,
    OF,
    OF_JOB,
    DepositContent,
    Inheritance,
    KeeperLine,
    close_all,
)
from scrun.supervisor.keeper.main import BEGIN, COMPLETE, END, LONGEST

JOB = "job."
"""Begins the names of what holds a job: it goes when that is given back."""

STEP = "step."
"""Begins the names of what belongs to the step of a job's shim: it goes when that is to end."""

OWN = "own."
"""Begins the names of what belongs to the container alone, and is shared."""

_OF_PROGRAM = "@"  # no container's id has it
_SLOW = 3.0
_MOST = 10_000


class _Outbox:
    """The way to one keeper: messages go in order, and wait here while its socket is full.

    The event loop does not wait for a keeper, which may be starting, or stopped.

    Attributes:
        line: The line to it; the caller's.
        lost: Set when the keeper takes nothing more.
    """

    def __init__(self, line: KeeperLine, changed: Callable[[], None]) -> None:
        """`changed` is called when the first message waits, and when the last one has gone."""
        self.line = line
        self.lost = trio.Event()
        self._changed = changed
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._waits = trio.Event()
        self._awaits_room = trio.Lock()  # one task at a time may wait for a descriptor

    @property
    def is_empty(self) -> bool:
        """Whether the keeper has everything."""
        return not self._waiting

    def put(self, message: bytes, fds: list[int]) -> None:
        """Tell the keeper, now or when it has room; the descriptors stay the caller's."""
        if self.lost.is_set():
            return
        try:
            if self._waiting or not self._send(message, fds):
                self._wait_with(message, fds)
        except OSError as error:
            if error.errno == errno.EMSGSIZE:
                raise
            self._lose()

    def _send(self, message: bytes, fds: list[int]) -> bool:
        """Send a message if there is room; return whether there was."""
        try:
            self.line.send(message, fds, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return True

    def _wait_with(self, message: bytes, fds: list[int]) -> None:
        """Let a message wait, with descriptors of its own; OSError if it is too long, or many."""
        if len(message) > LONGEST:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        if len(self._waiting) >= _MOST:
            raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))
        own: list[int] = []
        try:
            for fd in fds:
                own.append(os.dup(fd))  # noqa: PERF401 - those before are closed
        except OSError:
            close_all(own)
            raise
        self._waiting.append((message, own))
        if len(self._waiting) == 1:
            self._waits.set()
            self._changed()

    async def deliver(self, patience: float) -> None:
        while True:
            await self._waits.wait()
            if self.lost.is_set():
                return
            with trio.move_on_after(patience):
                await self.room()
                self._send_waiting()
                continue
            self._lose()

    def _send_waiting(self) -> None:
        try:
            while self._waiting and self._send(*self._waiting[0]):
                close_all(self._waiting.popleft()[1])
        except OSError:
            self._lose()
        if not self._waiting and not self.lost.is_set():
            self._waits = trio.Event()
            self._changed()

    def _lose(self) -> None:
        self.lost.set()
        self._waits.set()

    async def room(self) -> None:
        """Wait until the keeper has taken most of what it was sent."""
        async with self._awaits_room:
            if not self.lost.is_set():
                with suppress(trio.ClosedResourceError):
                    await trio.lowlevel.wait_writable(self.line.sock)

    def dismiss(self, patience: float) -> None:
        """End the keeper without a successor; see `Deposits.dismiss`."""
        with suppress(OSError):
            self.line.sock.settimeout(patience)
            self.line.send(END)

    def close(self) -> None:
        """Say nothing more; the line is closed by its owner."""
        self._lose()
        trio.lowlevel.notify_closing(self.line.sock)
        while self._waiting:
            close_all(self._waiting.popleft()[1])


class Deposit:
    """What a container or a job needs to live. Nothing is kept before `begin` or after `give_up`.

    Attributes:
        name: The container's id, or a name for the job's.
        facts: What a successor has to know, for JSON.
        job: That of the container's job, if it needs that.
    """

    def __init__(self, name: str, deposits: "Deposits") -> None:
        self.facts: dict[str, Any] = {}
        self.name = name
        self.job: Deposit | None = None
        self._is_kept = False
        self._deposits = deposits
        self._early: dict[str, int] = {}  # before `begin`: they belong to others
        self._shared: set[str] = set()  # these do so always
        self._made: dict[str, Callable[[], AbstractContextManager[int]]] = {}
        self._held: dict[str, int] = {}
        self._ours: dict[str, int] = {}  # of those, the duplicates
        self._given_up = ""

    @property
    def is_kept(self) -> bool:
        """Whether the container can outlive the supervisor."""
        return self._is_kept and not self.why_not

    @property
    def why_not(self) -> str:
        """Why it cannot, or ""."""
        return self._given_up or (self.job.why_not if self.job is not None else "")

    def needs(self, job: "Deposit") -> None:
        """Note the job of a container: without that it cannot live."""
        self.job = job
        self.note(**{OF: job.name})

    def of_program(self) -> "Deposit":
        """Return one for a program of `exec` in this container, which has to be kept itself."""
        if not self.is_kept:
            return no_deposit("nothing of its container is kept")
        deposit = Deposit(f"{self.name}{_OF_PROGRAM}{os.urandom(8).hex()}", self._deposits)
        deposit.note(**{IN: self.name})
        return deposit

    def begin(self) -> None:
        """Keep what is there, from now on, and its job, unless something stands against it."""
        if self.why_not:
            return
        self._deposits.begin([self] if self.job is None else [self.job, self])

    async def be_safe(self) -> None:
        """Wait until a keeper has it; not for ever, as there may be no memory for one."""
        if self.is_kept:
            with trio.move_on_after(_SLOW):
                await self._deposits.be_safe()

    def open(self) -> None:
        """Keep it, unless it is kept already, or given up."""
        if self._given_up or self._is_kept:
            return
        self._is_kept = True
        early, self._early = self._early, {}
        self._commit(early, whole=True)

    def rest(self) -> None:
        """Let no successor find it until it is kept again: nobody needs it now."""
        if self._is_kept:
            self._is_kept = False
            self._deposits.end(self.name)

    def note(self, **facts: object) -> None:
        if any(name not in self.facts or self.facts[name] != facts[name] for name in facts):
            self.facts.update(facts)
            self._commit({})

    def hold(self, fds: Mapping[str, int], **facts: object) -> None:
        """Keep duplicates of more descriptors, and note facts; before `begin` they stay open."""
        self._shared.difference_update(fds)
        self._hold(fds, facts)

    def share(self, fds: Mapping[str, int], **facts: object) -> None:
        """Do the same without duplicates: the owner calls `drop` or `end` before it closes one."""
        self._shared.update(fds)
        self._hold(fds, facts)

    def make(self, name: str, made: Callable[[], AbstractContextManager[int]]) -> None:
        """Keep a descriptor that is made anew for each keeper; call it before `begin`."""
        self._made[name] = made

    def _hold(self, fds: Mapping[str, int], facts: Mapping[str, object]) -> None:
        self.facts.update(facts)
        if not self._is_kept and not self._given_up:
            self._early.update(fds)
        self._commit(fds)

    def drop(self, *beginnings: str) -> None:
        """Let descriptors go: those whose names begin so. Then they can have an end of file."""
        for name in [name for name in self._early if name.startswith(beginnings)]:
            del self._early[name]
        if gone := [name for name in self._held if name.startswith(beginnings)]:
            if self._is_kept:
                self._commit({}, gone)
            else:
                self._let_go(gone)

    def give_up(self, why: str) -> None:
        """Keep nothing: the container ends with the supervisor."""
        self._given_up = self._given_up or why
        self.end()

    def end(self) -> None:
        self._given_up = self._given_up or "it has ended"
        self._early.clear()
        self._made.clear()
        self.rest()
        self._let_go([*self._held])

    def _let_go(self, names: Iterable[str]) -> None:
        for name in names:
            self._held.pop(name, None)
            if name in self._ours:
                os.close(self._ours.pop(name))

    def say_all(self) -> None:
        """Tell another keeper all of it.

        Raises OSError if there is no descriptor for what is made: a later keeper is told it.
        """
        if self._is_kept:
            try:
                self._say(self._held, made=True)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                self.give_up(str(error.strerror))

    def _commit(
        self, more: Mapping[str, int], gone: Sequence[str] = (), *, whole: bool = False
    ) -> None:
        """Keep some more descriptors, some no longer, and the facts as they are.

        Args:
            whole: Whether the keeper has nothing of it yet, or nothing more: it may have rested.
        """
        if not self._is_kept:
            return
        ours: dict[str, int] = {}
        try:
            for name in more.keys() - self._shared:
                ours[name] = os.dup(more[name])
            self._say({**(self._held if whole else {}), **more, **ours}, gone, made=whole)
        except (OSError, ValueError, TypeError) as error:
            close_all(ours.values())
            self.give_up(getattr(error, "strerror", None) or str(error))
            return
        self._let_go((*gone, *more))
        self._held.update({**more, **ours})
        self._ours.update(ours)
        if len(self._held) > MOST:
            self.give_up("it has too many descriptors")

    def _say(
        self, new: Mapping[str, int], gone: Sequence[str] = (), *, made: bool = False
    ) -> None:
        """Tell the keeper; `made`: with what is made anew.

        Raises OSError if it is too long, and TypeError if it cannot be written as JSON.
        """
        content = msgspec.json.encode(DepositContent(self.facts))
        with ExitStack() as stack:
            makes = self._made if made else {}
            new = {**new, **{name: stack.enter_context(each()) for name, each in makes.items()}}
            names = [" ".join(each).encode() for each in (gone, new)]
            self._deposits.say([self.name.encode(), content, *names], [*new.values()])


class Deposits:
    """The deposits of all containers of a supervisor; `needed` is set when there is one."""

    def __init__(self) -> None:
        self.needed = trio.Event()
        self._outbox: _Outbox | None = None
        self._safe: Callable[[], None] = lambda: None
        self._begun = 0
        self._has_all = trio.Event()
        self._is_told = False  # the keeper, all that there was when it began
        self._kept: dict[str, Deposit] = {}
        self._awaits_room = trio.Lock()

    @property
    def line(self) -> KeeperLine | None:
        """That to the keeper; None without one."""
        return None if self._outbox is None else self._outbox.line

    @property
    def are_safe(self) -> bool:
        """Whether a keeper has all there is."""
        return not self._kept or self._has_all.is_set()

    async def be_safe(self) -> None:
        """Wait until a keeper has all there is."""
        if self._kept:
            await self._has_all.wait()

    def new(self, container: str) -> Deposit:
        return Deposit(container, self)

    def new_of_job(self, container: str) -> Deposit:
        return Deposit(f"{container}{OF_JOB}{os.urandom(8).hex()}", self)

    def again(self, found: Inheritance) -> Deposit:
        """Return a deposit for what another supervisor has left: it has the same."""
        deposit = Deposit(found.container, self)
        deposit.share({name: fd for name, fd in found.fds.items() if name.startswith(OWN)})
        deposit.hold(
            {n: fd for n, fd in found.fds.items() if not n.startswith(OWN)}, **found.facts
        )
        return deposit

    def begin(self, deposits: Sequence[Deposit]) -> None:
        """Keep some, which a successor finds together, or none of them."""
        new = [deposit for deposit in deposits if not deposit.is_kept]
        with self._together() if len(new) > 1 else nullcontext():
            for deposit in new:
                deposit.open()
                if deposit.is_kept:
                    self._kept[deposit.name] = deposit
        self.needed.set()

    def end(self, name: str) -> None:
        self._kept.pop(name, None)
        self.say([name.encode(), b"", b"", b""])

    async def connect(self, line: KeeperLine, safe: Callable[[], None]) -> None:
        """Tell a new keeper everything, and from now on what changes; then call `deliver`.

        The line to it is the caller's, who has to call `disconnect` before it is closed. `safe` is
        called whenever it has all there is.
        """
        self._safe = safe
        outbox = self._outbox = _Outbox(line, self._look_whether_safe)
        with self._together():
            for deposit in [*self._kept.values()]:
                await self.room()
                deposit.say_all()
        if self._outbox is outbox:
            self._is_told = True
            self._look_whether_safe()

    async def deliver(self) -> None:
        """Tell the keeper what it had no room for, until it takes nothing more."""
        if self._outbox is not None:
            await self._outbox.deliver(_SLOW)

    def _look_whether_safe(self) -> None:
        if self._is_told and self._outbox is not None and self._outbox.is_empty:
            self._has_all.set()
            self._safe()
        elif self._has_all.is_set():
            self._has_all = trio.Event()

    def disconnect(self) -> None:
        """Have no keeper for a while."""
        if self._outbox is not None:
            self._outbox.close()
            self._outbox, self._is_told = None, False
            self._look_whether_safe()

    def dismiss(self, patience: float = 0) -> None:
        """End the keeper without a successor; one that has no room for that is to be killed.

        This blocks for up to `patience` seconds until it has: only for one who exits at once.
        """
        if self._outbox is not None:
            self._outbox.dismiss(patience)

    async def room(self) -> None:
        """Wait until the keeper has taken most of what it was told, before it is told much."""
        async with self._awaits_room:
            if self._outbox is not None:
                with trio.move_on_after(_SLOW):
                    await self._outbox.room()

    def say(self, fields: Sequence[bytes], fds: Sequence[int] = ()) -> None:
        """Tell the keeper; raises OSError if it is too long."""
        self._send(b"\0".join([BEGIN if self._begun else COMPLETE, *fields]), [*fds])

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Let all messages of the block count together."""
        self._begun += 1
        try:
            yield
        finally:
            self._begun -= 1
            if not self._begun:
                self._send(COMPLETE, [])

    def _send(self, message: bytes, fds: list[int]) -> None:
        """Tell the keeper; a new one will be told all. OSError if the message is too long."""
        if self._outbox is not None:
            self._outbox.put(message, fds)


_NONE = Deposits()


def no_deposit(why: str = "nothing of it is kept") -> Deposit:
    """Return one that keeps nothing."""
    deposit = Deposit("", _NONE)
    deposit.give_up(why)
    return deposit
