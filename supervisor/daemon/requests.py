"""Receives and handles requests (see `scrun.protocol.wire`, and `scrun.commands`)."""

import json
import math
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from functools import partial
from signal import SIGKILL, SIGTERM

import msgspec
import trio

from scrun.cli.pools import nodes_of
from scrun.core.errors import ScrunError, StateError, UsageError, described
from scrun.core.paths import outer_id
from scrun.core.rights import MOST, fds_in
from scrun.model.record import Record, stopped_state
from scrun.model.states import Ending, Phase, killed, not_running
from scrun.oci.signals import parse_signal
from scrun.protocol import wire
from scrun.protocol.wire import REASON_SHOWN
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.caller import Caller, hang_up, send_progress
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.containers import Containers
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import (
    CreateRequest,
    preserved_fds,
    read_command_line,
    read_create_request,
)
from scrun.supervisor.contracts.pool_call import read_pool_call
from scrun.supervisor.core.descriptors import is_a_pipe
from scrun.supervisor.core.inheritance import KeeperLine
from scrun.supervisor.core.mounts import OURS, MountNamespace
from scrun.supervisor.core.names import learn
from scrun.supervisor.core.nurseries import until, unwrapped
from scrun.supervisor.core.threads import in_thread, look
from scrun.supervisor.daemon.succession import Retirement, Succession
from scrun.supervisor.keeper.main import END
from scrun.supervisor.log.supervisor_log import fault

DESCRIPTORS = 4
"""The number of descriptors with `create` and `exec`: three, and the anchor's socket. `create` may
have one more: the mount namespace of its caller, if that is not ours."""

_RELEASING = 20.0
_DIGITS = 20

_OF_A_CONTAINER = (
    *(b"state", b"start", b"kill", b"delete", b"pause", b"resume"),
    *(b"ps", b"events", b"update", b"follow", b"attach", b"forward", b"runs"),
)

_TELLING = 2.0

DONE = b"\0"
"""The first byte of an answer, the exit status, on success."""
# Arguments and variables of a call take at most 6 MiB, each of them at least nine bytes
_FIELDS = 1 << 20
_NOBODY = 65534


class ClientRequest:
    """One request, on its connection."""

    def __init__(
        self,
        containers: Containers,
        retirement: Retirement,
        succession: Succession,
        connection: trio.socket.SocketType,
        fields: list[bytes],
        fds: list[int],
        unread: bytes = b"",
        serve: Callable[[trio.socket.SocketType], None] = lambda _: None,
    ) -> None:
        """`fds`: the descriptors beside it; those taken over are removed from the list."""
        self._containers = containers
        self._serve_also = serve
        self._retirement = retirement
        self._succession = succession
        self._connection = connection
        self._operation, *self._arguments = fields
        self._unread = unread
        self._fds = fds
        self._afterwards: Callable[[], None] = lambda: None
        self._created: Container | None = None

    async def answer(self) -> bytes:
        """Carry it out, and return the reply; its first byte is the exit status."""
        handlers: dict[bytes, tuple[int, Callable[[], Awaitable[bytes]]]] = {
            b"state": (1, self._state),
            b"start": (1, self._start),
            b"kill": (2, self._kill),
            b"delete": (2, self._delete),
            b"pause": (1, partial(self._pause, resume=False)),
            b"resume": (1, partial(self._pause, resume=True)),
            b"ps": (2, self._ps),
            b"events": (1, self._events),
            b"update": (3, self._update),
            b"create": (4, self._create),
            b"exec": (4, self._exec),
            b"runs": (2, self._program_runs),
            b"follow": (2, self._follow),
            b"attach": (1, self._attach),
            b"forward": (2, self._forward),
            b"tidy": (0, self._tidy),
            b"jobs": (0, self._jobs),
            b"release": (1, self._release),
            b"borrow": (1, self._borrow),
            b"pool": (4, self._pool),
            b"pools": (0, self._pools),
            b"adopt": (0, self._adopt),
            b"serve": (0, self._serve),
            b"aside": (1, self._aside),
            b"give": (0, self._give),
            b"succeed": (0, self._succeed),
        }
        try:
            count, handler = handlers.get(self._operation, (0, self._unknown))
            if len(self._arguments) < count:
                raise UsageError(
                    "the request has too few fields: does it come from another scrun?"
                )
            if self._operation in _OF_A_CONTAINER:
                # its phase is known before its node, which may hang, has answered
                patience = _TELLING if self._operation == b"state" else math.inf
                await self._containers.arrivals.of(self._id, patience)
            return await handler()
        except ScrunError as error:
            return bytes([error.exit_code]) + str(error).encode(errors="replace")
        except trio.BrokenResourceError:
            return b""  # the caller is gone
        except Exception as error:  # an internal error, which must not end other requests
            fault(f"request {self._operation.decode(errors='replace')}", error)
            return b"\1" + described(error).encode(errors="replace")

    async def _unknown(self) -> bytes:
        raise UsageError(f"unknown request {self._operation!r}: does it come from another scrun?")

    def answered(self) -> None:
        """Start what the caller does not wait for."""
        self._afterwards()

    async def confirmed(self) -> None:
        """Wait until `create` has read its answer; if it dies instead, end the container."""
        container = self._created
        if container is None:
            if self._operation == b"create":
                await hang_up(self._connection)
            return
        try:
            taken = await self._connection.recv(1)
        except OSError:
            taken = b""
        if not taken and container.phase is Phase.CREATED:
            container.delete_requested = True
            container.end(_without_caller(container))

    @property
    def _id(self) -> str:
        return os.fsdecode(self._arguments[0])

    @property
    def _is_asked_again(self) -> bool:
        """Whether a supervisor that has died before it answered may have carried it out."""
        return self._arguments[1:2] == [b"1"]

    @property
    def _was_replaced(self) -> bool:
        """Whether another container has the id of the one whose pid the caller has named."""
        if not (named := self._arguments[2:3]):
            return False
        try:
            return named != [b"%d" % self._containers.find(self._id).pid]
        except ScrunError:  # there is none, or its record is damaged
            return False

    def _live(self, purpose: str) -> Container:
        return self._containers.live(self._id, purpose)

    async def _state(self) -> bytes:
        found = self._containers.find(self._id)
        if isinstance(found, Container):
            await found.notice()
        return DONE + (stopped_state(found) if isinstance(found, Record) else found.state)

    async def _start(self) -> bytes:
        container = self._live("start")
        if self._was_replaced:
            raise StateError(f"container {self._id} was replaced before it was started")
        await container.files.shown.wait()
        self._afterwards = await container.start(again=self._is_asked_again)
        return DONE

    async def _kill(self) -> bytes:
        number = parse_signal(os.fsdecode(self._arguments[1]))
        found = self._containers.find(self._id)
        if isinstance(found, Container):
            await found.notice()
        if isinstance(found, Record) or found.phase is Phase.STOPPED:
            if self._arguments[2:] != [b"1"]:  # kill --all succeeds without a process
                raise StateError(not_running(self._id))
        elif number == SIGKILL and found.can_be_killed:
            # it cannot be refused, and kill(2) does not wait for the end either
            found.is_to_be_killed()
            self._afterwards = found.begin_to_kill
        else:
            await found.kill(number)
        return DONE

    async def _delete(self) -> bytes:
        if self._was_replaced:
            return DONE
        force = bool(self._arguments[1])
        note = b"" if force else await self._runs_still()
        caller, own = wire.peer_pid(self._connection), bool(self._arguments[2:])
        await self._containers.delete(self._id, force=force, caller=caller, own=own)
        return DONE + note

    async def _runs_still(self) -> bytes:
        """Say that a container runs, which crun and runc would not delete; else nothing."""
        try:
            found = self._containers.find(self._id)
        except ScrunError:
            return b""
        if not isinstance(found, Container) or found.is_being_killed:
            return b""
        await found.notice()
        if found.phase not in (Phase.WAITING, Phase.STARTING, Phase.RUNNING):
            return b""
        what = "its job was pending" if found.phase is Phase.WAITING else "it was running"
        return f"container {self._id} was ended: {what}; --force says that you mean it".encode()

    async def _tidy(self) -> bytes:
        self._containers.successor.again()
        return DONE

    async def _adopt(self) -> bytes:
        if len(self._fds) != 1:
            raise UsageError("adopt: the request lacks a descriptor")
        with KeeperLine(self._fds) as line:
            await self._containers.adopt(line)
            with suppress(OSError):
                # what it has grows old: it may not call another successor, should we die now
                line.send(END)
        return DONE

    async def _serve(self) -> bytes:
        """Answer somebody who has called the `scrun run` that has given us its container."""
        if len(self._fds) != 1:
            raise UsageError("serve: the request lacks a descriptor")
        fd = self._fds.pop()
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.close(fd)
            raise UsageError("serve: the descriptor is not a socket")
        self._serve_also(trio.socket.from_stdlib_socket(socket.socket(fileno=fd)))
        return DONE

    async def _aside(self) -> bytes:
        staying = self._retirement.step_aside(force=bool(self._arguments[0]))
        return DONE + msgspec.json.encode(staying)

    async def _give(self) -> bytes:
        await self._retirement.give(self._connection)
        return b"\1the successor has gone"

    async def _succeed(self) -> bytes:
        self._succession.begin()
        if self._arguments:
            with self._retirement.cut_off():
                await self._succession.finished()
        return DONE

    async def _jobs(self) -> bytes:
        return DONE + msgspec.json.encode(self._containers.pods.waiting_jobs())

    async def _release(self) -> bytes:
        with trio.move_on_after(_RELEASING):
            released = await self._containers.pods.release_waiting(self._id)
            return DONE + "".join(f"{job_id}\n" for job_id in released).encode()
        raise StateError(
            "Slurm does not answer: jobs are still being released; the supervisor goes on trying"
        )

    async def _pools(self) -> bytes:
        return DONE + msgspec.json.encode(self._containers.pools.rows())

    async def _pool(self) -> bytes:
        """Start, stop or resize a pool; the answer is empty if it is not ours."""
        parsed, call = await look("the settings", read_pool_call, self._arguments)
        what, name = parsed.operands[0], call.name
        if what == "start":
            async with until(partial(trio.lowlevel.wait_readable, self._connection)):
                jobs = await self._containers.start_pool(call, nodes_of(parsed))
                return DONE + f"pool {name}: {', '.join(jobs)}\n".encode()
            return b""  # the caller is gone
        pools = self._containers.pools
        with trio.move_on_after(_RELEASING):
            is_ours = await (
                pools.stop(name) if what == "stop" else pools.resize(name, nodes_of(parsed))
            )
            return DONE + f"{name}\n".encode() * is_ours
        then = "the supervisor goes on to stop it" if what == "stop" else "it stays as it was"
        raise StateError(f"pool {name}: Slurm or a container takes too long; {then}")

    async def _borrow(self) -> bytes:
        with self._retirement.cut_off():  # who has the job holds it when we have gone
            await self._containers.lend(self._arguments[0], trio.SocketStream(self._connection))
        return b""

    async def _pause(self, *, resume: bool) -> bytes:
        from scrun.supervisor.sessions.operations import pause

        container = self._live("resume" if resume else "pause")
        if not (self._is_asked_again and container.paused is not resume):
            await pause(container, resume=resume)
        return DONE

    async def _ps(self) -> bytes:
        from scrun.supervisor.sessions.inspection import processes
        from scrun.supervisor.sessions.operations import check_goes_on

        form, words = os.fsdecode(self._arguments[1]), map(os.fsdecode, self._arguments[2:])
        container = self._live("ps")
        check_goes_on(container, "ps")
        job = (await container.running("ps")).job
        return DONE + await processes(job, container.pid, form, [*words])

    async def _events(self) -> bytes:
        from scrun.supervisor.sessions.inspection import statistics
        from scrun.supervisor.sessions.operations import check_goes_on

        container = self._live("events")
        check_goes_on(container, "events")
        running = await container.running("events")
        resources = running.bundle.config.linux.resources
        return DONE + await statistics(running.job, container.id, resources)

    async def _update(self) -> bytes:
        from scrun.oci.resources import changes, read_resources

        limit, text = os.fsdecode(self._arguments[1]), self._arguments[2]
        resources = read_resources(text, "linux.resources")
        job, bundle, *_ = await self._live("update").running("update")
        wanted = changes(resources, bundle.config.linux.resources)
        await job.update(json.dumps(resources), wanted, limit)
        return DONE

    async def _create(self) -> bytes:
        """Answer when the container is created; end it if the caller goes before that."""
        more = self._preserved("create", "run")
        mounts = MountNamespace(self._fds.pop()) if len(self._fds) > DESCRIPTORS + more else OURS
        caller = Caller(self._connection, self._unread, mounts)
        try:
            if not (mounts.are_ours or await in_thread(mounts.may_be_entered)):
                mounts.close()
                return b""  # the caller goes on with a supervisor of its own
            with mounts.seen():
                create_request = await look("the settings", _read, self._arguments)
            self._check_descriptors(more)
            container = await self._containers.create(create_request, self._fds, caller)
        except BaseException:
            mounts.close()
            raise
        async with send_progress(container.journal, caller.send):
            async with unwrapped() as nursery:
                nursery.start_soon(_end_with_caller, caller, container)
                await container.settled.wait()
                nursery.cancel_scope.cancel()
            if container.failure is not None:
                await container.gone.wait()
        if container.failure is None:
            self._created = container
            return DONE + (b"%d" % container.pid if container.process else b"")
        await self._containers.forget(container)
        if container.failure_shown:
            await caller.send(REASON_SHOWN + b"\0")
        raise container.failure

    async def _exec(self) -> bytes:
        """Answer when the program runs; from then on it needs its anchor, not the caller."""
        from scrun.supervisor.sessions.operations import execute

        call = read_command_line(self._arguments, "exec", "shell", "cp")
        self._check_descriptors(self._preserved("exec", "shell", "cp"))
        container_id, purpose = call.parsed.id or "", "exec"
        if call.parsed.command == "cp":
            from scrun.cli.copied import read_copied

            container_id, purpose = read_copied(call.parsed.operands).container, "cp"
        await self._containers.arrivals.of(container_id)
        container = self._containers.live(container_id, purpose)
        stdio, anchor, preserved = self._fds[:3], self._fds[3], self._fds[DESCRIPTORS:]
        options = ("tty", "console-socket")  # docker gives only the socket
        terminal = call.parsed.command == "shell" or any(map(call.parsed.options.get, options))
        self._fds.clear()  # they are the session's now
        streams = Stdio(stdio, terminal=terminal, preserved=preserved)
        await execute(container, call, Anchor(anchor), streams)
        return DONE

    async def _program_runs(self) -> bytes:
        """Answer to an `exec` for a supervisor that has died."""
        container = self._live("exec")
        if int(self._arguments[1]) in container.programs.known:
            return DONE
        raise StateError(
            f"container {container.id}: its supervisor died before the program ran; try again"
        )

    def _preserved(self, *commands: str) -> int:
        """Return how many descriptors of `--preserve-fds` come with a request; or UsageError."""
        if not any(b"preserve-fds" in word for word in self._arguments):
            return 0
        return preserved_fds(read_command_line(self._arguments, *commands).parsed)

    def _check_descriptors(self, more: int) -> None:
        if len(self._fds) != DESCRIPTORS + more:
            what = self._operation.decode()
            raise UsageError(
                f"{what}: the request lacks descriptors: does it come from another scrun?"
            )

    async def _follow(self) -> bytes:
        """Send a container's output or log as it grows."""
        from scrun.supervisor.sessions.viewers import captured_output, follow

        container = self._live("logs --follow")
        output = self._arguments[1] == b"output"
        followed = captured_output(container).output if output else container.log
        connection = trio.SocketStream(self._connection)
        with self._retirement.cut_off():
            await follow(followed, connection.send_all, self._position(2))
        return b""

    async def _attach(self) -> bytes:
        from scrun.supervisor.sessions.viewers import attach

        connection, position = trio.SocketStream(self._connection), self._position(1)
        resumes = len(self._arguments) > 1
        with self._retirement.cut_off() if resumes else nullcontext():
            await attach(self._live("attach"), connection, position, self._pipe(), resumes=resumes)
        return b""

    async def _forward(self) -> bytes:
        from scrun.supervisor.sessions.forwarding import forward

        ports = self._arguments[1].split(b",")
        if len(ports) != len(self._fds) or not all(port.isdigit() for port in ports):
            raise UsageError("forward: the request lacks ports or descriptors")
        with self._retirement.cut_off():
            await forward(self._live("forward"), self._connection, self._fds, [*map(int, ports)])
        return DONE

    def _pipe(self) -> int | None:
        """Return the pipe beside the request; it stays the request's."""
        is_pipe = len(self._fds) == 1 and is_a_pipe(self._fds[0])
        return self._fds[0] if is_pipe else None

    def _position(self, at: int) -> int | None:
        """Return the position in the output that the request asks for, if it does."""
        digits = self._arguments[at] if len(self._arguments) > at else b""
        return int(digits) if digits.isdigit() and len(digits) < _DIGITS else None


def _read(fields: list[bytes]) -> CreateRequest:
    learn()
    return read_create_request(fields, "create", "run")


async def _end_with_caller(caller: Caller, container: Container) -> None:
    """End a container whose `create` is killed, and delete its record: nobody knows of it.

    It may have become created in the same moment.
    """
    await caller.listen()
    container.delete_requested = True
    container.end(_without_caller(container))


def _without_caller(container: Container) -> Ending:
    return killed(SIGTERM, f"container {container.id}: its create was ended")


def may_call(connection: trio.socket.SocketType) -> bool:
    """Return whether the caller is this user, or root."""
    uid = wire.peer_uid(connection)
    if uid == _NOBODY:  # in a user namespace, this stands for every unmapped user
        return uid == os.geteuid() == outer_id("uid", uid)
    return uid in (0, os.geteuid())


async def receive(connection: trio.socket.SocketType, fds: list[int]) -> tuple[list[bytes], bytes]:
    """Read one request, and the descriptors beside it into `fds`.

    Returns its fields; and what was received after it. Raises UsageError if it is not a request,
    and StateError if we are out of descriptors.
    """
    space = socket.CMSG_SPACE(MOST * 4)
    data = bytearray()
    length = None
    while length is None or len(data) < length:
        part, ancillary, flags, _ = await connection.recvmsg(65536, space, socket.MSG_CMSG_CLOEXEC)
        fds += fds_in(ancillary)
        if flags & socket.MSG_CTRUNC and len(fds) < DESCRIPTORS:
            raise StateError("the supervisor is out of file descriptors: raise ulimit -n")
        if not part or flags & socket.MSG_CTRUNC or len(fds) > MOST:
            raise UsageError("this is not a request")
        data += part
        if length is None and len(data) >= 4:
            length = 4 + int.from_bytes(data[:4], "big")
            if length > wire.LIMIT:
                raise UsageError("the request is too long")
    request, unread = bytes(data[4:length]), bytes(data[length:])
    if request.count(0) > _FIELDS:
        raise UsageError("the request has too many fields")
    return request.split(b"\0"), unread
