"""The caller's standard streams, shared by the tasks of a container as srun shares them.

Each task gets all of the standard input. Of output whole lines are mixed; each may be labelled
with the number of its task.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.nodes.ends import Gone, Sink, Source, Unbuffered, is_null, sink, source
from scrun.supervisor.nodes.link import buffer

_PIECE = 1 << 16
_LONGEST_LINE = 1 << 16
_OUTPUTS = {"stdout": 1, "stderr": 2}


class SharedStreams:
    """The streams of a container of several tasks."""

    def __init__(
        self,
        stdio: Sequence[int],
        tasks: int,
        child_env: ChildEnv,
        *,
        labels: bool = False,
        lines: bool = True,
    ) -> None:
        """`labels`: lines have the number of their task. `lines`: they are kept whole."""
        width = len(str(tasks - 1)) if labels else 0
        self._stdio = stdio
        self._child_env = child_env
        self._input = _Input(tasks)
        self._outputs = {
            name: _Output(tasks, width, lines=lines or labels)
            for name, number in _OUTPUTS.items()
            if not is_null(stdio[number])
        }

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["SharedStreams"]:
        async with unwrapped() as nursery:
            if not is_null(self._stdio[0]):
                nursery.start_soon(self._input.carry, self._stdio[0], self._child_env)
                await self._input.opened.wait()
            for name, output in self._outputs.items():
                nursery.start_soon(output.carry, self._stdio[_OUTPUTS[name]], self._child_env)
                await output.opened.wait()
            yield self
            nursery.cancel_scope.cancel()

    def of(self, task: int) -> "TaskEnds":
        """Return what a task has of them; to be called once for each."""
        return TaskEnds(task, self._input, self._outputs)

    async def finished(self) -> None:
        """Wait until what no task has open any more is written."""
        for output in self._outputs.values():
            if not output.writers:
                await output.closed.wait()


class TaskEnds:
    """What a task has of them (see `supervisor.nodes.streams.Ends`)."""

    def __init__(self, task: int, shared: "_Input", outputs: "dict[str, _Output]") -> None:
        self._task, self._input, self._outputs = task, shared, outputs

    @asynccontextmanager
    async def source(self) -> AsyncIterator[Source]:
        """Get its own copy of the input."""
        async with self._input.copies[self._task] as copy:
            yield _TaskInput(copy, self._input.wanted)

    @asynccontextmanager
    async def sink(self, name: str) -> AsyncIterator[Sink]:
        """Write into the common output."""
        output = self._outputs[name]
        writer = _Writer(output, self._task)
        try:
            yield writer
            await writer.finish()
        finally:
            output.writers -= 1
            if not output.writers:
                output.over.set()


class _Input:
    """Standard input, copied for each task. The slowest one makes the others wait."""

    def __init__(self, tasks: int) -> None:
        self.opened = trio.Event()
        self.wanted = trio.Event()
        pairs = [trio.open_memory_channel[bytes](0) for _ in range(tasks)]
        self.copies = [receive for _, receive in pairs]
        self._to = [send for send, _ in pairs]

    async def carry(self, fd: int, child_env: ChildEnv) -> None:
        """Copy until its end, or until no task takes it any more."""
        async with source(fd, child_env) as found:
            self.opened.set()
            await self.wanted.wait()
            room = buffer(_PIECE)
            while self._to and (count := await found.read_into(room)):
                for send in [*self._to]:
                    try:
                        await send.send(bytes(room[:count]))
                    except trio.BrokenResourceError:  # it has ended
                        self._to.remove(send)
        for send in self._to:
            send.close()


class _TaskInput:
    """A task's copy of standard input."""

    def __init__(self, pieces: trio.MemoryReceiveChannel[bytes], wanted: trio.Event) -> None:
        self._pieces, self._wanted = pieces, wanted
        self._rest = b""

    async def read_into(self, room: memoryview) -> int:
        self._wanted.set()
        if not self._rest:
            try:
                self._rest = await self._pieces.receive()
            except trio.EndOfChannel:
                return 0
        count = min(len(room), len(self._rest))
        room[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count


class _Output:
    """Standard output or error, into which all tasks write.

    Attributes:
        opened: Set when the caller's descriptor is not needed any more.
        writers: How many tasks may still write.
    """

    def __init__(self, tasks: int, width: int, *, lines: bool) -> None:
        self.opened = trio.Event()
        self.over = trio.Event()
        self.closed = trio.Event()
        self.writers = tasks
        self.width = width
        self.lines = lines
        self._sink: Sink | None = None
        self._turn = trio.Lock()

    async def carry(self, fd: int, child_env: ChildEnv) -> None:
        """Keep it open while a task may write."""
        async with sink(fd, child_env) as self._sink:
            self.opened.set()
            await self.over.wait()
            self._sink = None
        self.closed.set()

    async def write(self, data: bytes) -> None:
        """Write all of this, with nothing of other tasks between; Gone if that is not possible."""
        rest = memoryview(data)
        async with self._turn:
            while rest:
                if self._sink is None:
                    raise Gone
                rest = rest[await self._sink.write(rest) :]


class _Writer(Unbuffered):
    """A task's end of an output."""

    def __init__(self, output: _Output, task: int) -> None:
        self._output = output
        self._label = f"{task:>{output.width}}: ".encode() if output.width else b""
        self._rest = b""

    def try_write(self, data: memoryview) -> int:
        """Write nothing: others may be at it."""
        return 0

    async def write(self, data: memoryview) -> int:
        """Write whole lines, and keep the rest, which counts as written; Gone if that fails."""
        text = self._rest + bytes(data)
        end = text.rfind(b"\n") + 1
        if not self._output.lines or len(text) - end > _LONGEST_LINE:
            end = len(text)
        self._rest = text[end:]
        await self._write(text[:end])
        return len(data)

    async def finish(self) -> None:
        """Write what no line break has ended."""
        rest, self._rest = self._rest, b""
        try:
            await self._write(rest)
        except Gone:
            pass

    async def _write(self, text: bytes) -> None:
        if text and self._label:
            lines = text.removesuffix(b"\n").split(b"\n")
            text = b"".join(self._label + line + b"\n" for line in lines)
        if text:
            await self._output.write(text)
