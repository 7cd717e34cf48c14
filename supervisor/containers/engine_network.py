"""Answers connections in the network namespace that an engine made here for a container in a job.

Whatever connects to the container on this machine gets into that namespace: clients of a published
port, other containers, health checks. Rules of its packet filter send all TCP to one socket there,
and each connection is carried to the same port of the container. A socket stays in the namespace
in which it was made, so no process has to be in there.
"""

import errno
import os
import socket
import struct
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial

import trio

from scrun.core.errors import EngineError, ScrunError, described
from scrun.oci.config import Config
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv, answer_of, own_program
from scrun.supervisor.containers.connections import Connections
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.core.deposits import OWN, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import unwrapped
from scrun.supervisor.core.threads import in_last_thread, in_thread
from scrun.supervisor.log.journal import Journal

NETWORK = f"{OWN}network."
"""Begins the names by which the listening sockets are kept; the families follow."""

_FAMILIES = {"ip": socket.AF_INET, "ip6": socket.AF_INET6}
_ANY = {"ip": "0.0.0.0", "ip6": "::"}
_LEVEL = {socket.AF_INET: socket.IPPROTO_IP, socket.AF_INET6: socket.IPPROTO_IPV6}
_ORIGINAL_DESTINATION = 80  # SO_ORIGINAL_DST, IP6T_SO_ORIGINAL_DST: linux/netfilter_ipv4.h
_ADDRESS = struct.Struct("!2xH24x")  # of struct sockaddr_in6, and of the shorter sockaddr_in
_QUEUE = 4096
_LISTENS = "0A"
_PATIENCE = 10.0
_CHILD_ENV = ChildEnv({"PATH": SYSTEM_PATH, "XTABLES_LOCKFILE": os.devnull})

_NFT = """\
add table {family} scrun; delete table {family} scrun; add table {family} scrun
add chain {family} scrun outside {{ type nat hook prerouting priority -100; }}
add chain {family} scrun inside {{ type nat hook output priority -100; }}
add rule {family} scrun outside fib daddr type local meta l4proto tcp redirect to :{port}
add rule {family} scrun inside fib daddr type local meta l4proto tcp redirect to :{port}
"""
_RULE = "-w -t nat -I {} -p tcp -m addrtype --dst-type LOCAL -j REDIRECT --to-ports {{port}}"
_CALLS = {
    "nft": [[_NFT]],
    "iptables": [_RULE.format(chain).split() for chain in ("PREROUTING", "OUTPUT")],
}


_WAYS = ("nft", "iptables")


def engine_network(config: Config) -> str:
    """Return the network namespace that an engine has made for a container; "" without one.

    That of a process is another container's, which answers for it.
    """
    namespaces = () if config.linux is None else config.linux.namespaces
    paths = (namespace.path or "" for namespace in namespaces if namespace.type == "network")
    path = next(paths, "")
    return "" if path.startswith("/proc/") else path


async def answer(
    container: str,
    path: str,
    job: Job,
    begun: trio.Event,
    journal: Journal,
    deposit: Deposit,
    found: Inheritance | None,
) -> None:
    """Answer connections until this is cancelled; if that is impossible, the log says why.

    Args:
        path: The namespace.
        begun: Set when the container runs.
        deposit: The container's, which keeps the sockets.
        found: What another supervisor has left of the container.
    """

    async def say(line: str) -> None:
        journal.write("info", line)

    try:
        if (reaching := job.reaching()) is None:
            raise EngineError('that needs launch = "shim" in scrun.toml')
        async with AsyncExitStack() as stack:
            listeners = _left(found) or await _prepared(path)
            for listener in listeners.values():
                stack.enter_context(listener)
            deposit.hold({NETWORK + name: one.fileno() for name, one in listeners.items()})
            await begun.wait()
            if job.is_beside_us:  # a port that is published by its own number would lead to itself
                raise EngineError("its container is in this machine's network: use its own ports")
            reach = await stack.enter_async_context(reaching)
            async with unwrapped() as nursery:
                connections = Connections(container, nursery, reach, say)
                for listener in listeners.values():
                    accepting = trio.socket.from_stdlib_socket(listener)
                    nursery.start_soon(connections.accept, accepting, original_port)
    except (ScrunError, OSError) as error:
        deposit.drop(NETWORK)  # else clients wait for ever
        journal.write("info", f"nothing here reaches its ports: {path}: {described(error)}")


def original_port(client: trio.socket.SocketType) -> int:
    """Return the port that a client has asked for, before it was sent to our socket.

    Raises:
        OSError: The kernel does not know.
        EngineError: It is our socket's own.
    """
    family = client.family
    asked = client.getsockopt(_LEVEL[family], _ORIGINAL_DESTINATION, _ADDRESS.size)
    (port,) = _ADDRESS.unpack(asked.ljust(_ADDRESS.size, b"\0"))
    if port == client.getsockname()[1]:
        raise EngineError("nothing listens there")
    return int(port)


def _left(found: Inheritance | None) -> dict[str, socket.socket]:
    """Take the sockets that another supervisor has left."""
    if found is None:
        return {}
    there = [name for name in _FAMILIES if NETWORK + name in found.fds]
    return {name: socket.socket(fileno=found.take(NETWORK + name)) for name in there}


async def _prepared(path: str) -> dict[str, socket.socket]:
    """Listen in a namespace, and send all TCP there.

    Raises:
        OSError: It cannot be entered.
        EngineError: Nothing can send it; or it is not the container's alone.
    """
    namespace = await in_thread(opened, path)
    try:
        listeners = await in_thread(in_last_thread, partial(_listening, namespace))
        try:
            with trio.fail_after(_PATIENCE):
                await redirect(namespace, "ip", listeners["ip"].getsockname()[1])
                if six := listeners.get("ip6"):
                    try:
                        await redirect(namespace, "ip6", six.getsockname()[1])
                    except EngineError:  # its packet filter knows IPv4 only
                        listeners.pop("ip6").close()
        except BaseException as error:
            for listener in listeners.values():
                listener.close()
            if isinstance(error, trio.TooSlowError):
                raise EngineError(f"its rules took longer than {_PATIENCE:g} s") from None
            raise
    finally:
        os.close(namespace)
    return listeners


def opened(path: str) -> int:
    """Open a namespace.

    Raises:
        OSError: It cannot be opened.
        EngineError: It is this machine's.
    """
    namespace = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    for process in ("self", "1"):
        try:
            ours = os.stat(f"/proc/{process}/ns/net")
        except OSError:  # an ordinary user cannot enter what process 1 has
            continue
        if os.path.samestat(ours, os.fstat(namespace)):
            os.close(namespace)
            raise EngineError("it is this machine's own network")
    return namespace


def _listening(namespace: int) -> dict[str, socket.socket]:
    """Listen on any free port of a namespace, which this thread enters, by family.

    Raises:
        OSError: It cannot be entered.
        EngineError: Somebody listens there: all connections would come to us.
    """
    from scrun.core import namespaces as ns  # few supervisors need it

    ns.enter(namespace, ns.NEW_NETWORK)
    if somebody_listens():
        raise EngineError("other programs listen in that network")
    listeners: dict[str, socket.socket] = {}
    for name, family in _FAMILIES.items():
        try:
            listener = socket.create_server((_ANY[name], 0), family=family, backlog=_QUEUE)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
            continue
        listener.setblocking(False)
        listeners[name] = listener
    return listeners


def somebody_listens() -> bool:
    """Tell whether anybody listens for TCP in this thread's network (proc(5))."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/thread-self/net/{name}") as lines:
                next(lines)
                if any(line.split()[3] == _LISTENS for line in lines):
                    return True
        except FileNotFoundError:  # no IPv6
            continue
    return False


async def redirect(namespace: int, family: str, port: int, ways: Sequence[str] = _WAYS) -> None:
    """Send all TCP of a family to a port of ours, by nft(8) or iptables(8).

    Raises:
        EngineError: It cannot be done.
    """
    why = "needs nft or iptables on this machine"
    for name in ways:
        calls = _CALLS[name]
        program = own_program(name.replace("ip", family))
        if not os.path.isabs(program):
            continue
        for call in calls:
            words = [word.format(family=family, port=port) for word in call]
            words = [own_program("nsenter"), f"--net=/proc/self/fd/{namespace}", program, *words]
            status, said = await answer_of(words, _CHILD_ENV, namespace)
            if status:
                why = f"{name}: {said.strip() or f'status {status}'}"
                break
        else:
            return
    raise EngineError(why)
