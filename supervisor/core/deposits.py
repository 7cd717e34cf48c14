"""What containers need to live, where it outlives the supervisor.

A descriptor in a message that nobody has received stays open in the kernel, for as long as the
socket does that the message waits in (unix(7), SCM_RIGHTS). So each container has a socket with
one message: a description and the descriptors beside it. Another message replaces it. So has each
job, which several containers may need, and each program of `exec`. The
receiving ends of all these sockets wait in a further one, whose receiving end the keeper inherits
(`supervisor.daemon.keeper`), a process that reads nothing. When the supervisor is killed, nothing
sees an end of file, and the successor finds what there was, without taking it out: if it is killed
as well, the next one finds the same.
"""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
import trio

from scrun.core.errors import StateError
from scrun.core.supervisors import is_newer
from scrun.core.version import VERSION
from scrun.supervisor.core.held_messages import MOST, close_all, drop_first, peeked, put_in

JOB = "job."
"""Begins the names of what holds a job: it goes when that is given back."""

STEP = "step."
"""Begins the names of what belongs to the step of a job's shim: it goes when that is to end."""

OWN = "own."
"""Begins the names of what belongs to the container alone."""

_OF = "of"
_OF_JOB = "/"  # no container's id has it
_IN = "in"
_OF_PROGRAM = "@"  # likewise

_SINGLE = 64


class Together:
    """The containers of one job, which are adopted together.

    Attributes:
        complete: Set when all of them have come, or never will.
    """

    def __init__(self) -> None:
        """Wait for none."""
        self.complete = trio.Event()
        self._awaited: set[str] = set()

    def awaits(self, container: str) -> None:
        """Wait for one more."""
        self._awaited.add(container)

    def without(self, container: str) -> None:
        """Wait no more for one: it has come, or never will."""
        self._awaited.discard(container)
        if not self._awaited:
            self.complete.set()


class Found(msgspec.Struct):
    """What a supervisor has left for a container, or for a job.

    Attributes:
        container: Its id; the name of a job's.
        facts: What it noted.
        fds: The descriptors, by their names; they belong to whoever asks.
        job: What it has left for the container's job, the same for all containers of that.
        programs: What it has left for the programs of `exec` in the container.
        together: Of a job: its containers, and their programs.
    """

    container: str
    facts: dict[str, Any]
    fds: dict[str, int]
    job: "Found | None" = None
    programs: "list[Found]" = msgspec.field(default_factory=list)
    together: Together = msgspec.field(default_factory=Together)

    @property
    def is_of_job(self) -> bool:
        """Whether it was left for a job, not for a container."""
        return _OF_JOB in self.container

    def take(self, name: str) -> int:
        """Return a descriptor, which belongs to the caller from now on."""
        return self.fds.pop(name)

    def close(self) -> None:
        """Close the descriptors that nobody has taken."""
        while self.fds:
            os.close(self.fds.popitem()[1])
        while self.programs:
            self.programs.pop().close()


class _Message(msgspec.Struct):
    container: str
    number: int
    facts: dict[str, Any]
    names: list[str]
    version: str = VERSION


class Deposit:
    """What a container or a job needs to live. Nothing is kept before `begin` or after `give_up`.

    Attributes:
        name: The container's id, or a name for the job's.
        facts: What a successor has to know, for JSON.
        job: That of the container's job, if it needs that.
    """

    def __init__(self, name: str, begin: Callable[[Sequence["Deposit"]], None]) -> None:
        """Use `Deposits.new`."""
        self.facts: dict[str, Any] = {}
        self.name = name
        self.job: Deposit | None = None
        self._begin_all = begin
        self._names: list[str] = []
        self._early: dict[str, int] = {}  # before `begin`: they belong to others
        self._number = 0
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._given_up = ""

    @property
    def is_kept(self) -> bool:
        """Whether the container can outlive the supervisor."""
        return self._ends is not None

    @property
    def why_not(self) -> str:
        """Why it cannot, or ""."""
        return self._given_up or (self.job.why_not if self.job is not None else "")

    @property
    def held(self) -> int:
        """The receiving end."""
        assert self._ends is not None
        return self._ends[1].fileno()

    def needs(self, job: "Deposit") -> None:
        """Note the job of a container: without that it cannot live."""
        self.job = job
        self.note(**{_OF: job.name})

    def of_program(self) -> "Deposit":
        """Return one for a program of `exec` in this container, which has to be kept itself."""
        if not self.is_kept:
            return no_deposit("nothing of its container is kept")
        deposit = Deposit(f"{self.name}{_OF_PROGRAM}{os.urandom(8).hex()}", self._begin_all)
        deposit.note(**{_IN: self.name})
        return deposit

    def begin(self) -> None:
        """Keep what is there, from now on, and its job, unless something stands against it."""
        if self.why_not:
            return
        self._begin_all([self] if self.job is None else [self.job, self])

    def open(self) -> bool:
        """Keep it in a socket of its own; return whether it was not kept and is now."""
        if self._given_up or self._ends is not None:
            return False
        try:
            self._ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self.give_up(str(error.strerror))
            return False
        self._commit(self._early)
        return self.is_kept

    def note(self, **facts: object) -> None:
        """Note more facts."""
        if any(name not in self.facts or self.facts[name] != facts[name] for name in facts):
            self.facts.update(facts)
            self._commit({})

    def hold(self, fds: Mapping[str, int], **facts: object) -> None:
        """Keep duplicates of more descriptors, and note facts; before `begin` they stay open."""
        self.facts.update(facts)
        if self._ends is None and not self._given_up:
            self._early.update(fds)
        self._commit(fds)

    def drop(self, *beginnings: str) -> None:
        """Let descriptors go: those whose names begin so. Then they can have an end of file."""
        for name in [name for name in self._early if name.startswith(beginnings)]:
            del self._early[name]
        if any(name.startswith(beginnings) for name in self._names):
            self._commit({}, beginnings)

    def give_up(self, why: str) -> None:
        """Keep nothing: the container ends with the supervisor."""
        self._given_up = self._given_up or why
        self.end()

    def end(self) -> None:
        """Keep nothing any more."""
        self._given_up = self._given_up or "it has ended"
        self._early.clear()
        ends, self._ends = self._ends, None
        if ends is not None:
            if self._number:
                drop_first(ends[1])
            for end in ends:
                end.close()

    def _commit(self, more: Mapping[str, int], without: tuple[str, ...] = ()) -> None:
        """Replace the message: the descriptors are those of the last one, and some more."""
        if self._ends is None:
            return
        fds: list[int] = []
        try:
            if self._number:
                ((_, fds),) = peeked(self.held)
            held = {**dict(zip(self._names, fds, strict=True)), **more}
            if without:
                held = {name: fd for name, fd in held.items() if not name.startswith(without)}
            message = _Message(self.name, self._number + 1, self.facts, [*held])
            put_in(self._ends[0], msgspec.json.encode(message), [*held.values()])
        except (OSError, ValueError, TypeError) as error:
            self.give_up(getattr(error, "strerror", None) or str(error))
            return
        finally:
            for fd in fds:
                os.close(fd)
        if self._number:
            drop_first(self._ends[1])
        self._number += 1
        self._names = [*held]


def no_deposit(why: str = "nothing of it is kept") -> Deposit:
    """Return one that keeps nothing."""
    deposit = Deposit("", lambda _: None)
    deposit.give_up(why)
    return deposit


class Deposits:
    """The deposits of all containers of a supervisor.

    Attributes:
        needed: Set when there is one.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.needed = trio.Event()
        self._ends: tuple[socket.socket, socket.socket] | None = None
        self._messages = 0
        self._kept: dict[str, Deposit] = {}

    @property
    def held(self) -> int:
        """The receiving end, for the keeper."""
        return self._open()[1].fileno()

    def _open(self) -> tuple[socket.socket, socket.socket]:
        if self._ends is None:
            self._ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return self._ends

    def close(self) -> None:
        """Let all go."""
        if self._ends is not None:
            for end in self._ends:
                end.close()
            self._ends = None

    def new(self, container: str) -> Deposit:
        """Return a deposit for a container."""
        return Deposit(container, self.begin)

    def new_of_job(self, container: str) -> Deposit:
        """Return a deposit for the job of a container."""
        return Deposit(f"{container}{_OF_JOB}{os.urandom(8).hex()}", self.begin)

    def again(self, found: Found) -> Deposit:
        """Return a deposit for what another supervisor has left: it has the same."""
        deposit = Deposit(found.container, self.begin)
        deposit.hold(found.fds, **found.facts)
        return deposit

    def begin(self, deposits: Sequence[Deposit]) -> None:
        """Keep some, which a successor finds together, or none of them."""
        begun = [deposit for deposit in deposits if deposit.open()]
        self._kept.update({deposit.name: deposit for deposit in begun})
        for at in range(0, len(begun), MOST):
            part = begun[at : at + MOST]
            self.needed.set()
            try:
                put_in(self._open()[0], b"-", [deposit.held for deposit in part])
            except OSError as error:
                for deposit in part:
                    deposit.give_up(str(error.strerror))
            else:
                self._messages += 1
        if self._messages > _SINGLE:
            self._put_together()

    def _put_together(self) -> None:
        """Use few messages: a socket takes some hundreds."""
        self._kept = {name: one for name, one in self._kept.items() if one.is_kept}
        fds = [deposit.held for deposit in self._kept.values()]
        older, self._messages = self._messages, 0
        for at in range(0, len(fds), MOST):
            put_in(self._open()[0], b"-", fds[at : at + MOST])
            self._messages += 1
        for _ in range(older):
            drop_first(self._open()[1])


def _take_newest(one: socket.socket, newest: dict[str, tuple[_Message, list[int]]]) -> None:
    """Take the messages of a socket, and close the descriptors of those that are replaced."""
    for content, fds in peeked(one.fileno()):
        message = msgspec.json.decode(content, type=_Message)
        known = newest.get(message.container)
        if known is None or known[0].number < message.number:
            newest[message.container] = message, fds
            fds = known[1] if known else []
        close_all(fds)


def find(held: int) -> list[Found]:
    """Find what a dead supervisor has left; it stays there, too.

    Args:
        held: The receiving end of its `Deposits`.

    Raises:
        StateError: It was a newer scrun's.
        OSError: We are out of descriptors.
    """
    newest: dict[str, tuple[_Message, list[int]]] = {}
    with ExitStack() as ones:
        inner = [fd for _, fds in peeked(held) for fd in fds]
        try:
            for one in [ones.enter_context(socket.socket(fileno=fd)) for fd in inner]:
                _take_newest(one, newest)
        except BaseException:
            for _, fds in newest.values():
                close_all(fds)
            raise
    found = {
        name: Found(name, message.facts, dict(zip(message.names, fds, strict=True)))
        for name, (message, fds) in newest.items()
    }
    for message, _ in newest.values():
        if is_newer(message.version):
            for left in found.values():
                left.close()
            raise StateError(
                f"what a supervisor of scrun {message.version} has left is not for {VERSION}: "
                "install the newer one again"
            )
    for left in found.values():
        left.job = found.get(left.facts.get(_OF, ""))
    return _without_programs(found)


def _without_programs(found: Mapping[str, Found]) -> list[Found]:
    """Give the programs of `exec` to their containers; a program has no life without one."""
    whole = []
    for left in found.values():
        if _IN not in left.facts:
            whole.append(left)
        elif (container := found.get(left.facts[_IN])) is not None:
            container.programs.append(left)
        else:
            left.close()
    return whole
