"""The program: says hello, does what it is asked, and leaves nothing behind."""

import _signal as signal  # without enum, which takes longer than hello
import fcntl
import os
import sys
import zlib

from scrun.supervisor.wire.frames import (
    CALL,
    EVENT,
    FROM_SRUN,
    PROTOCOL,
    REPLY,
    SEALED,
    BrokenFrame,
)
from scrun.supervisor.wire.processor import has_gmac
from scrun.supervisor.wire.seals import sealed

from .children import TOLD, Children, become_subreaper
from .dial import dial
from .files import (
    DIFFER,
    ShimDirectory,
    make_directory,
    others,
    plain,
    remove_left,
    unlike,
)
from .json_text import dumps, loads
from .link import Link
from .loop import Loop
from .mpi import Mpi
from .processes import descendants, kill_quietly
from .runtime import Runtime, installed
from .slurm_signals import SlurmSignals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .cache import Cache
    from .connections import Connections
    from .containers import NodeContainers, Reply
    from .link import Seals
    from .streams import ShimStreams
    from .targets import NodeProcess

_BY_THE_WAY = ("_ctypes",)
_AFTER_HELLO = tuple(
    f"{__package__}.{name}"
    for name in ("streams", "targets", "making", "console", "site", "containers")
)
_TEXTS = ("id", "name", "container", "images", "beside", "script")  # of calls
_OF_CONTAINERS = ("start", "signal", "handles", "resize", "delete")
_OF_MAKING = ("create", "exec", "copy", "files", "rootfs")
_HIGH = 10
_TRYING = 5.0
_KILLING = 2.0
_DELETING = 5.0
_LAST_CHANCE = 2.0
# srun and slurmstepd hold longer messages back for some 40 ms, until the first KiB is acknowledged
_PLACE = (*FROM_SRUN, "SLURMD_NODENAME", "SLURM_STEP_ID")
_CONF = "/etc/slurm/slurm.conf"
_LARGEST = 1 << 20


def main(
    call: "dict[str, Any]", direct: "tuple[socket, bytes] | None", told: "Iterable[int]" = ()
) -> None:
    """Be the shim; never returns.

    Args:
        direct: The direct connection, with the random bytes of both ends; None: all goes over
            srun.
        told: What Slurm has told by signals so far.
    """
    status = 1
    try:
        shim = ShimProcess(call, direct)
        for number in (*call["told"], *told):
            shim.signalled(number)
        status = shim.run()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class ShimProcess:
    """The whole."""

    def __init__(self, call: "dict[str, Any]", direct: "tuple[socket, bytes] | None") -> None:
        """Take the standard streams, the signals and the connection; see `main`."""
        ours = -1 if direct is None else direct[0].fileno()
        # before the number of its descriptor could be another one of ours
        self._mpi = Mpi(os.environ, ours)
        self._loop = Loop()
        source, sink = _standard_streams()
        self._children = Children()
        self._signals = SlurmSignals(self._loop, call)
        self._loop.take_signals((signal.SIGCHLD, *TOLD), self.signalled)
        self._over = ""
        self._is_left = False
        self._link = Link(self._loop, source, sink, self._received, self._broken, lines=True)
        self._address = ""  # as the supervisor reaches us
        self._direct = None
        self._uses_gmac = call["gmac"] = bool(call.get("gmac")) and has_gmac()
        if direct is not None:
            self._direct = self._linked(direct[0], _seals(call, direct[1]))
        self._supervisors = 0  # after the first
        self._alone: object | None = None
        self._patience = float(call["alone"])
        self._is_heard = bool(call["needed"])  # else srun is a way, too, until the first call
        self._known_runtime = str(call["runtime"])
        self._key = bytes.fromhex(call["key"])
        self._directory: ShimDirectory | None = None
        self._runtime = Runtime("", "")
        self._conf = ("", 0)
        self._containers: NodeContainers | None = None
        self._streams: ShimStreams | None = None
        self._cache: Cache | None = None
        self._connections: Connections | None = None

    def run(self) -> int:
        """Run to the end; return the exit status."""
        try:
            self._directory = make_directory(os.environ, self._key)
            self._children.use_own_null(self._directory.path)
        except OSError as error:
            sys.stderr.write(f"no directory for temporary files: {plain(error)}\n")
            return 1
        try:
            self._conf = _oci_conf(os.environ)
            self._find_runtime(self._directory.path)
            self._say_hello()
            self._link.listen()
            if self._direct is not None:
                self._direct.listen()
            self._import_meanwhile(_AFTER_HELLO, [])
            self._ready()
            self._loop.run(lambda: bool(self._over))
        finally:
            self._end()
        if self._link.is_nonsense:
            sys.stderr.write(f"srun's streams: {self._link.broken}\n")
            return 1
        return self._containers.last_status if self._containers is not None else 0

    def _find_runtime(self, directory: str) -> None:
        """Take the first runtime that can say its version, unless one is known to."""
        if self._conf[0]:
            return  # its commands are the runtime
        known = self._known_runtime
        if known and os.access(known, os.X_OK):
            self._runtime = Runtime(known, directory)
            return
        for path in installed(os.environ.get("PATH", "")):
            answers: list[int] = []
            runtime = Runtime(path, directory)
            # with a directory: else crun 1.21 makes one of its own first, which it often cannot
            pid = self._children.spawn([*runtime.options(), "--version"], answers.append)
            self._import_meanwhile(_BY_THE_WAY, answers)
            self._wait_for(pid, answers)
            if answers == [0]:
                self._runtime = runtime
                return

    def _import_meanwhile(self, names: "Sequence[str]", answers: "list[int]") -> None:
        """Import later modules until there is an answer; take frames that arrive between."""
        for name in names:
            self._loop.turn()
            if answers:
                return
            __import__(name)

    def _wait_for(self, trial: int, answers: "list[int]") -> None:
        late = self._loop.after(_TRYING, lambda: kill_quietly(trial, signal.SIGKILL))
        self._loop.run(lambda: bool(answers or self._over))
        self._loop.cancel(late)

    def _say_hello(self) -> None:
        assert self._directory is not None
        said = _hello(self._runtime.path, self._directory.path, self._conf, self._uses_gmac)
        self._used().send(EVENT, 0, said)

    def _ready(self) -> "NodeContainers":
        """Do what need not be done before the supervisor knows that this is here."""
        if self._containers is not None:
            return self._containers
        from .containers import NodeContainers
        from .streams import ShimStreams

        assert self._directory is not None
        become_subreaper()
        self._streams = ShimStreams(self._loop, self._used())
        self._containers = NodeContainers(
            self._loop,
            self._children,
            self._streams,
            self._runtime,
            self._directory.path,
            self._mpi,
            self._signals,
            self._tell_ended,
        )
        left = others(os.environ, self._directory.path)
        if left:
            self._children.fork(lambda: self._remove_left(left), lambda _: None, ())
        return self._containers

    def _remove_left(self, paths: "Sequence[str]") -> int:
        """Remove what dead shims have left, in a child."""
        runtimes = [
            [os.path.basename(path), *Runtime(path, "").options()[:-1]]
            for path in installed(os.environ.get("PATH", ""))
        ]
        try:
            remove_left(paths, runtimes, self._key)
        except OSError:  # the next shim tries again
            pass
        return 0

    def signalled(self, number: int) -> None:
        """Take a signal; one of Slurm's is for the containers."""
        if number == signal.SIGCHLD:
            self._children.reap()
            return
        self._signals.came(number, self._containers)
        if self._alone is not None and number == signal.SIGTERM:
            self._broken()  # the job ends, and nobody is there to decide anything

    def _broken(self) -> None:
        """End, as soon as no container makes use of the time that Slurm gives it."""
        self._is_left = True
        self._end_if_left()

    def _end_if_left(self) -> None:
        if not self._is_left:
            return
        seconds = self._signals.time_left(self._containers)
        if seconds:
            self._loop.after(seconds, self._end_if_left)
        else:
            self._over = "the supervisor has gone"

    def _direct_broken(self) -> None:
        """Wait for another supervisor (`resume`), or for the end of srun."""
        if self._direct is not None and self._direct.is_nonsense:
            # over srun: whoever is on the way may keep an end of the connection from it
            said = {"error": self._direct.broken, "times": self._supervisors}
            self._say(self._link, EVENT, {"event": "forged", **said})
        if not self._is_heard and self._direct is not None:
            self._direct.leave()
            self._direct = None
            self._ready()
            assert self._streams is not None
            self._streams.link = self._link
            self._say_hello()
            return
        patience = self._patience
        if self._signals.job_ends:  # and srun, of whose end slurmstepd does not tell us
            patience = min(patience, _LAST_CHANCE)
        self._alone = self._loop.after(patience, self._broken)

    def _tell_ended(self, target: "NodeProcess") -> None:
        if self._connections is not None:
            self._connections.ended(target.id)
        assert target.ended is not None
        status, memory, lost = target.ended
        fields: dict[str, object] = {"status": status, "memory": memory, "lost": lost}
        if target.usage is not None:
            fields["usage"] = target.usage
        fields["told"] = self._signals.job_ends
        self._tell(EVENT, event="ended", target=target.id, **fields)
        self._end_if_left()

    def _tell(self, kind: int, **fields: object) -> None:
        self._say(self._used(), kind, fields)

    def _used(self) -> Link:
        return self._link if self._direct is None else self._direct

    def _say(self, link: Link, kind: int, fields: "dict[str, Any]") -> None:
        link.send(kind, 0, dumps(fields).encode())

    def _received(self, kind: int, stream: int, payload: memoryview) -> None:
        """Take a frame that arrived over srun; where there is a direct connection, `resume`."""
        if self._direct is not None:
            self._resume(kind, payload)
            return
        self._carried(kind, stream, payload)

    def _carried(self, kind: int, stream: int, payload: memoryview) -> None:
        if self._over:
            return
        self._is_heard = True
        if kind == CALL:
            self._call(_call_of(bytes(payload)))
            return
        self._ready()
        assert self._streams is not None
        self._streams.dispatch(kind, stream, payload)

    def _call(self, call: "dict[str, Any]") -> None:
        """Do what the supervisor asks; whatever is wrong with that is its answer."""
        number = call["call"]
        supervisor = self._supervisors

        def reply(answer: "dict[str, Any]") -> None:
            if supervisor == self._supervisors:  # else nobody waits for it, or for another one
                self._tell(REPLY, call=number, **answer)

        verb = call.get("verb")
        try:
            for name in _TEXTS:
                if not isinstance(call.get(name, ""), str):
                    raise ValueError(f"{name}: {call[name]!r} is not a text")
            if verb == "script":
                self._run_script(call, reply)
            elif verb == "expect":
                self._signals.expect(call["names"], self._containers)
                reply({})
            elif verb == "mount":
                self._mount(call, reply)
            elif verb == "unmount":
                self._ready().unmount(call["id"])
                reply({})
            elif verb in ("fetch", "wait", "serve", "receive", "leave"):
                getattr(self._images_here(), verb)(call, reply)
            elif verb == "connect":
                target = self._ready().get(call["container"])
                where = call["port"], call["stream"], call.get("outside", False)
                self._connections_here().connect(target, *where, reply)
            elif verb == "reach":
                target = self._ready().get(call["container"])
                where = call["place"], call["pid"], call["name"]
                reply({"way": self._connections_here().reach(target, *where)})
            elif verb == "disconnect":
                self._connections_here().disconnect(call["stream"])
                reply({})
            elif verb == "network":
                self._ready().making.connect_network(call, reply)
            elif verb in ("accept", "attach", "refuse", "answer"):
                self._outbound(verb, call, reply)
            elif verb in _OF_CONTAINERS:
                getattr(self._ready(), verb)(call, reply)
            elif verb in _OF_MAKING:
                getattr(self._ready().making, verb)(call, reply)
            else:
                reply({"error": f"there is no {verb}"})
        except Exception as error:
            text = plain(error) if isinstance(error, (OSError, ValueError)) else ""
            reply({"error": text or f"{type(error).__name__}: {error}"})

    def _mount(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Mount something, unless directories are others; most calls only ask that."""
        looks = call.get("looks", ())
        # with `users` they are looked at in the namespace of these
        found = [] if call.get("users") else unlike(looks)
        if found:
            reply({"error": DIFFER, "others": found})
        elif looks and not (call["files"] or call.get("root") or call.get("users")):
            reply({"way": ""})
        else:
            self._ready().making.mount(call, reply)

    def _images_here(self) -> "Cache":
        if self._cache is None:
            from .cache import Cache

            self._ready()
            assert self._streams is not None
            self._cache = Cache(
                self._loop, self._children, self._streams, self._address, self._tell_strangers
            )
        return self._cache

    def _connections_here(self) -> "Connections":
        if self._connections is None:
            from .connections import Connections

            self._ready()
            assert self._streams is not None
            self._connections = Connections(self._loop, self._children, self._streams)
        return self._connections

    def _outbound(self, verb: str, call: "dict[str, Any]", reply: "Reply") -> None:
        """Do something about what a container has connected to."""
        target = self._ready().get(call["container"])
        outbound = None if target.network is None else target.network.outbound
        arrivals = target.sockets if call.get("sockets") else outbound
        if arrivals is None:
            what = "sockets" if call.get("sockets") else "network"
            raise ValueError(f"{target.id} has no {what} of an engine's")
        if verb == "accept":
            arrivals.take(reply)
        elif verb == "attach":
            client = arrivals.client(call["number"])
            self._connections_here().attach(call["stream"], client, reply)
        else:
            if verb == "answer" and outbound is not None:
                outbound.answer(call["number"], call["text"])
            arrivals.refuse(call["number"])
            reply({})

    def _tell_strangers(self, who: str) -> None:
        self._tell(EVENT, event="strangers", who=who)

    def _run_script(self, call: "dict[str, Any]", reply: "Reply") -> None:
        from .scripts import Script

        containers = self._ready()
        name, runtime = call.get("images"), self._runtime.options()
        enter = containers.images.of(name).space.enter if name else None
        Script(self._loop, self._children, call["script"], runtime, reply, enter)

    def _linked(self, sock: "socket", seals: "Seals | None") -> Link:
        self._address = sock.getsockname()[0]
        fd = sock.detach()
        return Link(self._loop, fd, fd, self._carried, self._direct_broken, seals=seals)

    def _resume(self, kind: int, payload: memoryview) -> None:
        """Go on for the successor of a supervisor that has died."""
        call = _call_of(bytes(payload)) if kind == CALL else {}
        if call.get("verb") != "resume":
            raise BrokenFrame(f"a frame of kind {kind} arrived over srun")
        assert self._direct is not None
        assert self._streams is not None
        assert self._containers is not None
        self._supervisors += 1
        self._direct.leave()
        answer = {"event": "resumed", "token": call["token"], "times": self._supervisors}
        try:
            secret = bytes.fromhex(call["secret"])
            sock, both = dial(call["addresses"], secret, call["patience"])
            seals = _seals(call, both) if call.get("protocol", 1) >= SEALED else None
        except Exception as error:
            # the last connection stays in its place, closed: the next try is made over srun
            self._say(self._link, EVENT, {**answer, "error": str(error)})
            return
        if self._alone is not None:
            self._loop.cancel(self._alone)
            self._alone = None
        self._is_left = False
        self._patience = float(call["alone"])
        self._direct = self._streams.link = self._linked(sock, seals)
        self._direct.listen()
        if self._connections is not None:
            self._connections.disconnect_all()
        self._containers.forget_others(call["targets"])
        self._containers.offer_again()
        self._signals.expect((), self._containers)
        inputs = self._streams.inputs()
        self._tell(EVENT, **answer, targets=self._containers.state(), inputs=inputs)
        self._streams.resume(call["written"])

    def _end(self) -> None:
        """Kill and delete all containers, and remove the directory, whatever fails."""
        try:
            self._undo()
        finally:
            for pid in descendants(os.getpid()):
                kill_quietly(pid, signal.SIGKILL)
            if self._directory is not None:
                self._directory.remove()

    def _undo(self) -> None:
        if self._cache is not None:
            self._cache.leave_all()
        self._kill_all()
        if self._containers is not None:
            try:
                self._containers.delete_all()
            except OSError:  # its processes are dead, and its state is in the directory
                pass
            self._wait_for_children(_DELETING)
            self._kill_all()
            self._containers.remove_all()

    def _kill_all(self) -> None:
        """Kill all descendants; orphans come to us."""
        for _ in range(2):
            for pid in descendants(os.getpid()):
                kill_quietly(pid, signal.SIGKILL)
        self._wait_for_children(_KILLING)

    def _wait_for_children(self, seconds: float) -> None:
        late: list[bool] = []
        key = self._loop.after(seconds, lambda: late.append(True))
        self._loop.run(lambda: bool(late) or not descendants(os.getpid()))
        self._loop.cancel(key)


def _seals(call: "dict[str, Any]", both: bytes) -> "Seals":
    """Return the seals of a direct connection whose ends sent these random bytes."""
    ours, theirs = sealed(bytes.fromhex(call["secret"]), both, call["seal_streams"])
    if call.get("gmac"):
        ours.use_gmac()
        theirs.use_gmac()
    return ours, theirs, float(call["quiet"])


def _call_of(payload: bytes) -> "dict[str, Any]":
    """Return a call.

    Raises:
        BrokenFrame: It is not one.
    """
    try:
        call: dict[str, Any] = loads(payload.decode("utf-8", "surrogatepass"))
    except ValueError as error:
        raise BrokenFrame(f"a call that is not JSON: {error}") from None
    if not isinstance(call, dict) or not isinstance(call.get("call"), int):
        raise BrokenFrame("a call without a number")
    return call


def _standard_streams() -> "tuple[int, int]":
    """Take the frames' descriptors from 0 and 1, so that nothing else is written there."""
    source = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    sink = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    return source, sink


def _oci_conf(env: "Mapping[str, str]") -> "tuple[str, int]":
    """Return the node's oci.conf(5), and a sum by which another copy of it is known; or "" and 0.

    Args:
        env: The environment: slurmd tells its own slurm.conf there, and looks beside that.
    """
    path = os.path.join(os.path.dirname(env.get("SLURM_CONF") or _CONF), "oci.conf")
    try:
        with open(path, "rb") as file:
            return path, zlib.crc32(file.read(_LARGEST))
    except OSError:  # or the site keeps it from users
        return "", 0


def _hello(runtime: str, directory: str, conf: "tuple[str, int]", gmac: bool) -> bytes:
    """Return the event.

    Args:
        runtime: The path of the OCI runtime, or "".
    """
    event: dict[str, object] = {
        "event": "hello",
        "protocol": PROTOCOL,
        "node": os.uname().nodename,
        "pid": os.getpid(),
        "python": "{}.{}.{}".format(*sys.version_info),
        "runtime": runtime,
        "directory": directory,
        "oci_conf": conf[0],
        "oci_conf_sum": conf[1],
        "rank": int(os.environ.get("SLURM_PROCID") or 0),
        "gmac": gmac,
        "environment": {name: os.environ[name] for name in _PLACE if name in os.environ},
    }
    return dumps(_as_utf8(event)).encode()


def _as_utf8(value: object) -> object:
    """Return a value whose texts are UTF-8: other bytes are replaced."""
    if isinstance(value, dict):
        return {name: _as_utf8(one) for name, one in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value
