"""A shim on a node, as engines see it (see `supervisor.shim` for what it can do)."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio

from scrun.core.errors import EngineError, described
from scrun.core.text import one_line, printable, printable_lines
from scrun.model.usage import Usage
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.target import Mounting, NotThere, OthersThere, RootRefused
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.nodes.code import code, known_code
from scrun.supervisor.nodes.dialing import Listener
from scrun.supervisor.nodes.ends import Source
from scrun.supervisor.nodes.link import Broken, Sealing, ShimLink, direct_link
from scrun.supervisor.nodes.messages import (
    LONGEST_REPLY,
    Asked,
    Ended,
    Event,
    Forged,
    Reply,
    Strangers,
    decoded,
    is_end,
    longest,
    longest_reply,
)
from scrun.supervisor.nodes.messages import Hello as Hello
from scrun.supervisor.nodes.messages import ShimError as ShimError
from scrun.supervisor.nodes.messages import ShimLost as ShimLost
from scrun.supervisor.nodes.streams import ContainerStreams, Ends, Outgoing, StreamTable
from scrun.supervisor.wire.frames import (
    CALL,
    DATA,
    EVENT,
    HEADER,
    LONGEST,
    PROTOCOL,
    REPLY,
    BrokenFrame,
)

S = TypeVar("S", bound="Shim")

_MOST_FILTERS = 16  # some 10 KiB each
_LONGEST_FILTER = 1 << 18
_OF_CRUN = "run.oci.seccomp"
"""Begins crun's annotations for it: one says what becomes of unknown system calls."""

_Key = tuple[str, str, bytes]

_filters: OrderedDict[_Key, str] = OrderedDict()
"""Seccomp filters by the shim's place, its runtime and the rules; the one used last comes last.
Not by what a shim calls its node: one that lies would give other nodes its filters."""

BEGINS_WITH = HEADER.pack(EVENT, 0, 0)[:5]
"""How the first frame of a shim begins, an event."""

_LAST_DATA = 1.0
_ANSWER = 5.0
_MOST_WORDS = 500
_SAID_AGAIN = 60.0  # seconds between lines about strangers


class Awaited:
    """What arrives once, a reply of so many bytes at most or a status, or never will."""

    def __init__(self, longest: int = 0) -> None:
        self.longest = longest
        self.value: Any = None
        self.came = False
        self.known = trio.Event()

    def set(self, value: object) -> None:
        """Note that it has arrived: a second one is not expected."""
        if self.came:
            return
        self.value = value
        self.came = True
        self.known.set()


class Shim:
    """A shim.

    Attributes:
        asked: How it has asked for its code, when it has.
        place: What is known of its node without its word: its name for Slurm, or a step's number.
            What it tells counts there only; "": nowhere else than for itself.
        short_of_memory: The containers that may have ended for want of memory.
        without_files: Those whose root file system went away.
        told_to_end: Those that ended after Slurm had sent SIGTERM.
        usages: What those that have ended have used, until somebody takes it.
    """

    def __init__(self, control: ShimLink, nursery: trio.Nursery, journal: Journal) -> None:
        self.lost = trio.Event()
        self.place = ""
        self.asked = Asked("")
        self.short_of_memory: set[str] = set()
        self.without_files: set[str] = set()
        self.told_to_end: set[str] = set()
        self.usages: dict[str, Usage] = {}
        self._reason = ""
        self._control = control
        self._nursery = nursery
        self._journal = journal
        self._come, self._hello = Awaited(), Awaited()
        self._asked_over: ShimLink | None = None
        self._direct_scope: trio.CancelScope | None = None
        self._say_from = 0.0
        self._last_call = 0
        self._last_target = 0
        self._calls: dict[int, Awaited] = {}
        self._scripts: set[int] = set()  # calls whose replies may be long, and have not arrived
        self._targets: dict[str, Awaited] = {}
        self._container_of: dict[str, str] = {}
        self.table = StreamTable(control)

    async def hello(self) -> Hello:
        """Wait until it is there; raises ShimLost if it never will be."""
        hello: Hello = await self._coming(self._hello)
        if hello.protocol != PROTOCOL:
            raise ShimLost(
                f"the shim on {hello.node} speaks protocol {hello.protocol}, not {PROTOCOL}"
            )
        return hello

    async def call(
        self,
        verb: str,
        along: Callable[[], None] | None = None,
        sent: Callable[[Awaited], Awaitable[None]] | None = None,
        /,
        **fields: object,
    ) -> dict[str, Any]:
        """Call it, and wait for its reply; a cancellation only forgets the reply.

        Raises ShimError if it could not be done, and ShimLost if the shim has gone. What `along`
        puts goes in one write with the call. `sent` is called when it is on its way, with the
        reply that is waited for.
        """
        target = str(fields.get("id"))
        begins = verb in ("create", "exec", "copy", "files", "rootfs")
        if along is None:
            number, waiting = self._send(verb, fields)
        else:
            with self.table.link.together():
                number, waiting = self._send(verb, fields)
                along()
        if begins:
            self._targets[target] = Awaited()
            self._container_of[target] = str(fields.get("container", target))
        try:
            if sent is not None:
                await sent(waiting)
            reply: dict[str, Any] = await self._coming(waiting)
        finally:
            del self._calls[number]
        if (error := reply.get("error")) is not None:
            if begins:
                self._targets.pop(target, None)
                self._container_of.pop(target, None)
            raise ShimError(
                error,
                reply.get("log", ""),
                unseen=reply.get("unseen", False),
                others=reply.get("others", ()),
                refused=reply.get("root", False),
            )
        if begins:
            self.table.begin(fields.get("streams"))
        elif verb == "delete":
            self._forget(target)
        return reply

    async def send(
        self, verb: str, opened: AbstractAsyncContextManager[Source], **fields: object
    ) -> dict[str, Any]:
        """Call it, and send a stream of bytes along; see `call`."""
        number = self.table.number()
        outgoing = self.table.outgoing[number] = Outgoing(self.table.link, number)
        try:
            async with unwrapped() as nursery:
                nursery.start_soon(outgoing.pump, opened)
                await outgoing.opened.wait()
                outgoing.begun.set()  # the call goes before
                reply = await self.call(verb, stream=number, **fields)
                nursery.cancel_scope.cancel()
        finally:
            self.table.forget(number)
        return reply

    async def handles(self, container: str, number: int) -> bool:
        """Ask whether a container handles a signal; False: unknown. Raises ShimLost."""
        with trio.move_on_after(_ANSWER), suppress(ShimError):
            return bool((await self.call("handles", id=container, number=number))["handles"])
        return False

    def forget(self, target: str) -> None:
        """Let it forget an exec that has ended."""
        self._targets.pop(target, None)
        self._container_of.pop(target, None)
        self.tell("delete", id=target)

    def name(self, kind: str) -> str:
        """Return the `id` of another target, which none had before."""
        self._last_target += 1
        return f"{kind}-{self._last_target}"

    def tell(self, verb: str, **fields: object) -> None:
        """Call it, whether that succeeds or not."""
        number, _ = self._send(verb, fields)
        del self._calls[number]

    def _send(self, verb: str, fields: Mapping[str, object]) -> tuple[int, Awaited]:
        try:
            payload = msgspec.json.encode({**fields, "call": self._last_call + 1, "verb": verb})
        except UnicodeEncodeError as error:
            raise ShimError(f"{verb}: {error.object!r} is not UTF-8") from None
        if len(payload) > LONGEST:
            raise ShimError(f"{verb}: {len(payload)} bytes are more than a shim takes")
        self._last_call += 1
        waiting = self._calls[self._last_call] = Awaited(longest_reply(verb))
        if waiting.longest > LONGEST_REPLY:
            self._scripts.add(self._last_call)
        if not self.lost.is_set():
            self.table.link.put(CALL, 0, payload)
        return self._last_call, waiting

    async def ended(self, target: str) -> int:
        """Wait for the end of a container or an exec; return its wait status (waitpid(2)).

        Call `create` or `exec` first. Raises ShimLost if the shim has gone before.
        """
        status: int = await self._coming(self._targets.setdefault(target, Awaited()))
        return status

    async def _coming(self, awaited: Awaited) -> Any:  # noqa: ANN401 (JSON)
        if not self.lost.is_set():
            await awaited.known.wait()
        if not awaited.came:
            raise ShimLost(f"the shim has gone: {self._reason}")
        return awaited.value

    def _forget(self, container: str) -> None:
        for target in [of for of, its in self._container_of.items() if its == container]:
            del self._container_of[target]
            if self._targets[target].came:
                del self._targets[target]

    def streams(
        self,
        stdio: tuple[int, int, int],
        terminal: bool,
        child_env: ChildEnv,
        failed: Callable[[str], None] | None = None,
        ends: Ends | None = None,
        fields: Mapping[str, int] | None = None,
    ) -> AbstractAsyncContextManager[ContainerStreams]:
        """Carry the streams of a container or an exec while the block runs.

        Args:
            stdio: The caller's descriptors; stay open while the streams are in use.
            failed: Called when output can no longer be written, with the reason, unless its
                reader has ended. Else the shim's journal has that.
            ends: What is read and written instead of those descriptors that are not /dev/null.
            fields: `ContainerStreams.fields` of another supervisor that has begun them, without
                those that are over.
        """
        failed = failed or partial(self._journal.write, "error")
        return ContainerStreams(
            self.table, stdio, terminal, child_env, failed, self.tell, ends, fields
        ).carried()

    @property
    def is_direct(self) -> bool:
        """Whether it has a direct connection; else all goes over srun."""
        return self.table.link is not self._control

    async def begin(
        self, call: Mapping[str, object], listener: Listener | None, sealing: Sealing
    ) -> None:
        """Call it, and wait until it has asked for its code.

        It may connect to the listener; None: nowhere. Raises ShimLost if it ended, or never began.
        """
        self._control.put(CALL, 0, msgspec.json.encode(call))
        async with unwrapped() as nursery:
            if listener is not None:
                nursery.start_soon(self._accept, listener, sealing)
            await self._coming(self._come)
            nursery.cancel_scope.cancel()

    async def _accept(self, listener: Listener, sealing: Sealing) -> None:
        link = direct_link(await listener.connected(), sealing)
        self._nursery.start_soon(self._run_direct, link)

    async def _run_direct(self, link: ShimLink) -> None:
        with trio.CancelScope() as scope:
            self._direct_scope = scope
            try:
                await link.run(partial(self._dispatch, link), self._longest)
            except Broken as error:
                if self.table.link is not link:
                    return  # it has asked for its code over srun
                if self._fail_direct(str(error)):
                    return
        if self.table.link is link:
            self.table.over()

    def _take_forged(self, forged: Forged) -> None:
        if self._fail_direct(forged.error) and self._direct_scope is not None:
            self._direct_scope.cancel()

    def _fail_direct(self, reason: str) -> bool:
        """Go on over srun, if a shim does that; return whether."""
        if self._hello.came:
            self._lose(f"its direct connection: {reason}")
            return False
        self.table.use(self._control)  # it goes on there, or ends
        self.asked = Asked("", f"its direct connection: {reason}")
        return True

    async def run_control(self) -> None:
        """Carry frames over srun until that ends."""
        try:
            await self._control.run(partial(self._dispatch, self._control), self._longest)
        except Broken as error:
            self._lose(f"srun's streams: {error}")
        finally:
            self._say_others()
        if not self.is_direct:
            self.table.over()

    def _say_others(self) -> None:
        """Log output that is not a frame: sites have scripts that write to a step's output."""
        words = printable_lines(bytes(self._control.before)).decode().strip()
        self._control.before.clear()
        if words:
            self._journal.write("verbose", f"the step's output: {words[:_MOST_WORDS]}")

    def left(self) -> None:
        """End the waits for replies and endings: the connection is about to be closed."""
        self._lose("the connection was closed")

    def _lose(self, reason: str) -> None:
        if self.lost.is_set():
            return
        self._reason = reason
        self.lost.set()
        for awaited in (self._come, self._hello, *self._calls.values(), *self._targets.values()):
            awaited.known.set()
        if self._direct_scope is not None:  # what it sent last may be on its way
            self._direct_scope.deadline = trio.current_time() + _LAST_DATA

    def _dispatch(self, link: ShimLink, kind: int, stream: int, payload: memoryview) -> None:
        event = decoded(payload, Event).event if kind == EVENT else ""
        if event == "code":
            if self._hello.came or link is self._asked_over:
                raise BrokenFrame("it asks for its code again")
            self._send_code(link, decoded(payload, Asked))
        elif event == "forged" and link is self._control and self.is_direct:
            self._take_forged(decoded(payload, Forged))
        elif link is not self.table.link:
            raise BrokenFrame(f"a frame of kind {kind} is in the wrong place")
        elif kind == REPLY:
            self._take_reply(payload)
        elif kind == EVENT:
            self._take_event(event, payload)
        else:
            self.table.dispatch(kind, stream, payload)

    def _longest(self, kind: int) -> int:
        return longest(kind, script=bool(self._scripts))

    def _take_reply(self, payload: memoryview) -> None:
        reply = decoded(payload, Reply)
        self._scripts.discard(reply.call)
        if (waiting := self._calls.get(reply.call)) is not None:  # else nobody waits any more
            if len(payload) > waiting.longest:
                raise BrokenFrame(f"a reply of {len(payload)} bytes")
            waiting.set(msgspec.structs.asdict(reply))

    def _send_code(self, link: ShimLink, asked: Asked) -> None:
        """Use the connection over which it asks: it has found no other, or that one failed."""
        if link is self._control and self._direct_scope is not None:
            self._direct_scope.cancel()
        self.table.use(link)
        self.asked, self._asked_over = asked, link
        self._come.set(asked)

        @self._nursery.start_soon
        async def send() -> None:
            try:
                if (found := known_code(asked.python)) is None:
                    found = await in_thread(code, asked.python)
                link.put(DATA, 0, found)
                link.seal()
            except OSError as error:
                self._lose(f"its code cannot be read: {described(error)}")

    def _take_event(self, event: str, payload: memoryview) -> None:
        if event == "hello":
            hello = decoded(payload, Hello)
            if hello.gmac:
                self.table.link.use_gmac()
            self._hello.set(hello)
            self._say_others()
        elif event == "ended":
            self._take_ended(decoded(payload, Ended))
        elif event == "strangers":
            self._say_strangers(decoded(payload, Strangers).who)

    def _say_strangers(self, who: str) -> None:
        if trio.current_time() >= self._say_from:  # whatever the shim does
            self._say_from = trio.current_time() + _SAID_AGAIN
            node = self._hello.value.node if self._hello.came else "a node"
            text = f"{node}: connections for an image that are not of shims: {who}"
            self._journal.write("info", printable(one_line(text)))

    def _take_ended(self, ended: Ended) -> None:
        """Note the end of a container or an exec; BrokenFrame if nothing ends with that status."""
        if not is_end(ended.status):
            raise BrokenFrame(f"{ended.status} is not the status of an end")
        waiting = self._targets.get(ended.target)
        if waiting is None or waiting.came:  # forgotten, or never there: nobody asks for it
            return
        if ended.memory:
            self.short_of_memory.add(ended.target)
        if ended.lost:
            self.without_files.add(ended.target)
        if ended.told:
            self.told_to_end.add(ended.target)
        if ended.usage is not None:
            self.usages[ended.target] = ended.usage
        waiting.set(ended.status)


def connected(to_srun: int, from_srun: int, journal: Journal) -> AbstractAsyncContextManager[Shim]:
    """Carry frames to and from a shim while the block runs.

    The pipes to srun's standard input and from its output are closed at the end: so the shim ends.
    """
    return carried(Shim, ShimLink(from_srun, to_srun, BEGINS_WITH), journal)


@asynccontextmanager
async def carried(kind: type[S], control: ShimLink, journal: Journal) -> AsyncIterator[S]:
    """Carry frames over one link; see `connected`."""
    async with unwrapped() as nursery:
        shim = kind(control, nursery, journal)
        nursery.start_soon(shim.run_control)
        try:
            yield shim
        finally:
            shim.left()  # nobody waits for its replies any more
            nursery.cancel_scope.cancel()


async def create(shim: Shim, config: Mapping[str, Any], **fields: object) -> dict[str, Any]:
    """Let a shim create a container, whose runtime compiles its seccomp rules only once.

    crun 1.8 takes 12 of the 25 ms of a `create` to compile the rules of podman or docker. Newer
    ones keep filters, but in the directory of their state, which each shim has for itself.

    Returns the reply; raises as `Shim.call`.
    """
    key = None if "site" in fields else await _key_of(shim, config)
    if key is None:
        return await shim.call("create", config=config, **fields)
    known = _filters.get(key, "")
    reply = await shim.call("create", config=config, filter=known, **fields)
    told = reply.get("filter", "")
    if isinstance(told, str) and len(told) < _LONGEST_FILTER:
        _remember(key, known or told)
    return reply


async def _key_of(shim: Shim, config: Mapping[str, Any]) -> _Key | None:
    """Return what its filter depends on; None if it has none that could be used again."""
    if not shim.place:
        return None
    linux = config.get("linux")
    rules = linux.get("seccomp") if isinstance(linux, dict) else None
    if not isinstance(rules, dict) or rules.get("listenerPath"):
        return None
    hello = await shim.hello()
    annotations = config.get("annotations") or {}
    of_crun = sorted(item for item in annotations.items() if item[0].startswith(_OF_CRUN))
    return shim.place, hello.runtime, msgspec.json.encode([rules, of_crun])


def _remember(key: _Key, known: str) -> None:
    if known:
        _filters[key] = known
        _filters.move_to_end(key)
    if len(_filters) > _MOST_FILTERS:
        _filters.popitem(last=False)


async def mount(shim: Shim, name: str, mounting: Mounting, task: int) -> str:
    """Let the shim of a task mount something, and return by what; raises as `Job.mount`."""
    own = mounting.of(task)
    try:
        reply = await shim.call("mount", id=name, **own)
    except ShimError as error:
        if error.others:
            raise OthersThere(error.others) from None
        if error.unseen:
            raise NotThere(str(error)) from None
        if error.refused:
            raise RootRefused(str(error)) from None
        raise
    if own["root"] and not reply.get("root"):
        await shim.call("unmount", id=name)
        raise EngineError("its shim is of an older scrun")
    return str(reply["way"])
