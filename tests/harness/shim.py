"""A shim as a process, and its supervisor's end: blocking, in a few lines."""

import hmac
import json
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scrun.core.ready import ready
from scrun.supervisor.wire.frames import (
    CALL,
    CLOSED,
    CREDIT,
    CREDIT_BYTES,
    DATA,
    END,
    EVENT,
    LINE,
    PIECE,
    QUIET,
    REPLY,
    WINDOW,
    proof,
    sum_of,
)
from scrun.supervisor.wire.seals import PLAIN, Plain, sealed
from tests import CHECKOUT
from tests.harness.bundle import make_config, map_user
from tests.harness.frames import WholeFrames
from tests.harness.users import User

COMMAND = (
    *(sys.executable, "-I", "-S", "-c"),
    f"import sys; sys.path.insert(0, {str(CHECKOUT)!r});"
    "from scrun.supervisor.shim.arrival import arrive; arrive(len, '')",
)
"""A shim that finds its code here."""

SECRET = bytes(range(32))
BEGIN = {
    "verb": "begin",
    "port": 0,
    "secret": SECRET.hex(),
    "host": "",
    "patience": 1.5,
    "alone": 600,
    "runtime": "",
    "needed": False,
    "kill_wait": 1,
    "reaches_all": False,
    "told": [],
    "key": SECRET.hex(),
    "code": [sum_of(b"")],
    "seal_streams": True,
    "quiet": 20.0,
}

PURE_V2 = (
    *("unshare", "--mount", "--propagation", "slave", "sh", "-c"),
    *('mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"', "sh"),
)
"""Before a program: crun refuses to work where there are cgroups of both versions."""

FOLDERS = ("/tmp", "/dev/shm")
"""Where shims have their directories, unless TMPDIR says otherwise."""


class Shim:
    """A shim that runs, with what came from it.

    Attributes:
        process: Its process.
        asked: How it asked for its code.
        hello: What it said then.
        output: The bytes of each stream.
        finished: The streams that have ended.
        closed: The streams whose reader has gone.
        allowed: How many bytes may be sent in each stream.
        generous: Whether what comes is credited at once.
        rootfs: The root file system of `create`.
        user: Whose it is.
        env: What was added to its environment.
        resumed: The answers to `resume`.
        forged: What it has said of connections that were tampered with.
        strangers: Those of whom it told.
        short_of_memory: The targets that may have ended for want of memory.
        usage: What those that have ended have used.
        without_files: The targets whose root file system went away.
    """

    def __init__(
        self,
        rootfs: Path,
        user: User,
        env: Mapping[str, str],
        before: Sequence[str] = (),
        place: Sequence[str] = PURE_V2,
        begin: Mapping[str, object] | None = None,
        meet: Callable[["Shim"], None] = lambda shim: None,
    ) -> None:
        """Start it, and wait until it is there.

        Args:
            rootfs: See above.
            user: Likewise.
            env: Likewise.
            before: What runs its command.
            place: What runs that.
            begin: Other fields of the call `begin`.
            meet: Called when that is sent.
        """
        self.rootfs = rootfs
        self.user = user
        self.env = env
        self.process = subprocess.Popen(
            [*place, *user.prefix, *before, *COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # an oci.conf beside the cluster's slurm.conf would count
            env={**os.environ, "SLURM_CONF": "/nowhere/slurm.conf", **env},
            bufsize=0,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._to, self._from = self.process.stdin.fileno(), self.process.stdout.fileno()
        self._readers = {self._from: WholeFrames()}
        self._is_begun = False
        self.direct = -1
        self._seal: Plain = PLAIN
        self._calls = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._ended: dict[str, int] = {}
        self.usage: dict[str, dict[str, Any]] = {}
        self.output: dict[int, bytearray] = defaultdict(bytearray)
        self.finished: set[int] = set()
        self.closed: set[int] = set()
        self.allowed: dict[int, int] = defaultdict(lambda: WINDOW)
        self.resumed: list[dict[str, Any]] = []
        self.forged: list[str] = []
        self.strangers: list[str] = []
        self.short_of_memory: set[str] = set()
        self.without_files: set[str] = set()
        self.generous = True
        self._last_stream = 0
        self._hello: dict[str, Any] = {}
        self.hello: dict[str, Any] = {}
        self.asked: dict[str, Any] = {}
        self.send(CALL, 0, json.dumps({**BEGIN, **(begin or {})}).encode())
        meet(self)
        self.hello = self.until("hello", lambda: self._hello)

    def use_direct(self, fd: int, both: bytes) -> None:
        """Carry streams over this connection, on which both ends sent these random bytes."""
        self.seals = sealed(SECRET, both, True)
        self._readers[fd] = WholeFrames()
        self.direct = fd
        if self.hello:
            self._begin_seals()

    def use_plain(self, fd: int) -> None:
        """Carry streams over this connection without seals."""
        self._seal = PLAIN
        self._readers[fd] = WholeFrames()
        self.direct = fd

    def _begin_seals(self) -> None:
        theirs, self._seal = self.seals
        self._readers[self.direct] = WholeFrames(theirs)

    def die(self) -> None:
        """Close the direct connection, as a supervisor does that dies."""
        os.close(self.direct)
        self._readers.pop(self.direct, None)
        self.direct = -1

    def send(self, kind: int, stream: int = 0, payload: bytes = b"") -> None:
        fd = self.direct if self.direct >= 0 else self._to
        seal = self._seal if self.direct >= 0 else PLAIN
        data = memoryview(
            seal.head(kind, stream, len(payload)) + payload + seal.tail(kind, payload)
        )
        while data:
            data = data[os.write(fd, data) :]

    def ask(self, verb: object, **fields: Any) -> int:
        """Send a call; return its number."""
        self._calls += 1
        self.send(CALL, 0, json.dumps({"call": self._calls, "verb": verb, **fields}).encode())
        return self._calls

    def answer(self, call: int, timeout: float = 20) -> dict[str, Any]:
        """Wait for the reply to a call."""
        self.until(f"reply {call}", lambda: call in self._replies, timeout)
        return self._replies.pop(call)

    def call(self, verb: str, **fields: Any) -> dict[str, Any]:
        """Call, and wait for the reply."""
        return self.answer(self.ask(verb, **fields))

    def streams(self, *names: str) -> dict[str, int]:
        """Return `streams` with new numbers: of these names, or of all three."""
        found = {}
        for name in names or ("stdin", "stdout", "stderr"):
            self._last_stream += 1
            found[name] = self._last_stream
        return found

    def create(
        self,
        target: str,
        *args: str,
        streams: Mapping[str, int] | None = None,
        joins: Mapping[str, str] | None = None,
        images: str = "",
        name: str = "",
        networks: Sequence[str] | None = None,
        network: str = "own",
        sockets: Sequence[str] = (),
        files: Mapping[str, str] = {},
        **changes: Any,
    ) -> dict[str, Any]:
        """Create a container that runs a command; return the reply.

        Args:
            target: Its id.
            args: The command.
            streams: Its streams; none if missing.
            joins: Whose namespaces it enters.
            images: What was mounted for it.
            name: Its name, for the runtime.
            networks: Those of its engine, if it is to have the network that the next one says.
            network: As of the call.
            sockets: Where it mounts sockets of its engine's.
            files: As of the call.
            changes: Members of config.json.
        """
        terminal = "terminal" in (streams or {})
        config = make_config(args, str(self.rootfs), terminal=terminal)
        if self.user.uid:
            map_user(config, self.user)
        config = {**config, **changes}
        more: dict[str, object] = {"sockets": sockets} if sockets else {}
        if networks is not None:
            more |= {"network": network, "networks": networks, "files": files}
        return self.call(
            "create", id=target, name=name or f"name-{target}", config=config,
            streams=streams or {}, joins=joins or {}, images=images, **more,
        )  # fmt: skip

    def run(self, target: str, *args: str, **options: Any) -> None:
        """Create a container and start it; options as of `create`."""
        assert "error" not in (reply := self.create(target, *args, **options)), reply
        assert self.call("start", id=target) == {}

    def exec(
        self, target: str, container: str, *args: str, streams: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        """Run one more program in a container; return the reply."""
        terminal = "terminal" in (streams or {})
        process = make_config(args, terminal=terminal)["process"]
        return self.call(
            "exec", id=target, container=container, process=process, streams=streams or {}
        )

    def ended(self, target: str, timeout: float = 20) -> int:
        """Wait for the end of a container or exec; return its exit status as a child's."""
        self.until(f"end of {target}", lambda: target in self._ended, timeout)
        return os.waitstatus_to_exitcode(self._ended[target])

    def has_ended(self, target: str) -> bool:
        """Whether the end of a container or exec has been told."""
        self.pump(0)
        return target in self._ended

    def finish(self, *streams: int) -> bytes:
        """Wait for the ends of streams; return what the first one had."""
        self.until(f"ends of {streams}", lambda: self.finished.issuperset(streams))
        return bytes(self.output[streams[0]])

    def write(self, stream: int, data: bytes, end: bool = True) -> None:
        while data:
            self.until("credit", lambda: self.allowed[stream] or stream in self.closed)
            if stream in self.closed:
                return
            piece = data[: min(self.allowed[stream], PIECE)]
            self.allowed[stream] -= len(piece)
            self.send(DATA, stream, piece)
            data = data[len(piece) :]
        if end:
            self.send(END, stream)

    def credit(self, stream: int, count: int) -> None:
        """Allow a stream more bytes."""
        self.send(CREDIT, stream, CREDIT_BYTES.pack(count))

    def until(self, what: str, found: Callable[[], Any], timeout: float = 20) -> Any:
        """Take frames until something is so.

        Raises:
            AssertionError: It was not in time, or the shim has gone.
        """
        deadline = time.monotonic() + timeout
        while not (answer := found()):
            left = deadline - time.monotonic()
            assert left > 0, f"not within {timeout} s: {what}"
            assert self.pump(left), f"the shim ended before: {what}"
        return answer

    def pump(self, timeout: float) -> bool:
        """Take what comes within some seconds; return whether the shim is there."""
        for fd in ready(self._readers, seconds=timeout)[0]:
            data = os.read(fd, 1 << 20)
            if not data and fd == self.direct:  # srun's streams tell why
                del self._readers[fd]
                continue
            if not data:
                return False
            if fd == self._from and not self._is_begun:
                data = data.lstrip(b"\n")  # what is no frame comes first
                self._is_begun = bool(data)
            for kind, stream, payload in self._readers[fd].feed(data):
                self._take(kind, stream, payload)
        return True

    def _take(self, kind: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            assert stream not in self.finished
            self.output[stream] += payload
            if self.generous:
                self.credit(stream, len(payload))
        elif kind == CREDIT:
            self.allowed[stream] += CREDIT_BYTES.unpack(payload)[0]
        elif kind == END:
            assert stream not in self.finished
            self.finished.add(stream)
        elif kind == CLOSED:
            self.closed.add(stream)
        elif kind == LINE:
            assert payload == b"\n"
        elif kind == QUIET:
            assert not payload
        else:
            self._take_message(kind, json.loads(payload))

    def _take_message(self, kind: int, message: dict[str, Any]) -> None:
        if kind == REPLY:
            self._replies[message.pop("call")] = message
            return
        assert kind == EVENT
        event = message.pop("event")
        if event == "hello":
            self._hello = message
        elif event == "code":
            self.asked = message
            self.send(DATA)
            if self.direct >= 0:
                self._begin_seals()
        elif event == "strangers":
            self.strangers.append(message["who"])
        elif event == "forged":
            self.forged.append(message["error"])
        elif event == "resumed":
            self.resumed.append(message)
        else:
            assert event == "ended"
            assert message["target"] not in self._ended, "told twice"
            self._ended[message["target"]] = message["status"]
            if "usage" in message:
                self.usage[message["target"]] = message["usage"]
            if message["memory"]:
                self.short_of_memory.add(message["target"])
            if message["lost"]:
                self.without_files.add(message["target"])

    def close(self) -> tuple[int, str]:
        """End its standard input; return its exit status and what it wrote to standard error."""
        assert self.process.stdin is not None
        self.generous = False
        self.process.stdin.close()
        return self.wait()

    def wait(self) -> tuple[int, str]:
        """Wait for its end; return its exit status and what it wrote to standard error."""
        assert self.process.stderr is not None
        try:
            while self.pump(20):
                pass
            status = self.process.wait(20)
            return status, self.process.stderr.read().decode()
        finally:
            self.kill()

    def end(self) -> None:
        """End it in good order, unless it has ended."""
        if self.process.returncode is None:
            _, errors = self.close()
            assert errors == ""
        self.kill()

    def kill(self) -> None:
        """Make sure that it has ended."""
        self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert file is not None
            file.close()
        if self.direct >= 0:
            os.close(self.direct)
            self.direct = -1


def listening(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Listen where a shim may connect."""
    sock = socket.socket()
    sock.bind((host, port))
    sock.listen()
    sock.settimeout(10)
    return sock


def prove(sock: socket.socket, secret: bytes = SECRET) -> bytes:
    """Do the supervisor's part of the proof; return the random bytes if the shim's was right."""
    own = os.urandom(32)
    both = _exactly(sock, 32) + own
    sock.sendall(own)
    theirs = _exactly(sock, 32)
    sock.sendall(proof(secret, b"supervisor", both))
    return both if hmac.compare_digest(theirs, proof(secret, b"shim", both)) else b""


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = sock.recv(count - len(data))
        assert piece
        data += piece
    return data
