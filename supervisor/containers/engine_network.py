"""The network namespace that an engine made on this machine for a container in a job.

Whatever connects to the container here gets into that namespace: clients of a published port,
other containers, health checks. Rules of its packet filter send all TCP to one socket there, and
each connection is carried to the same port of the container. The other way round, what the
container connects to in the engine's networks is connected to from there, and what it asks their
name server is asked there. A socket stays in the namespace in which it was made, so no process has
to be in there.
"""

import errno
import fcntl
import os
import select
import socket
import struct
import sys
from array import array
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import TypeVar

import trio

from scrun.core.errors import EngineError, ScrunError, described
from scrun.core.namespaces import news_of_files
from scrun.core.paths import ENGINES_NETWORK
from scrun.oci.config import Config, Mount
from scrun.oci.signals import its_end
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv, answer_of, own_program
from scrun.supervisor.containers.connections import ClientConnections
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.networks import Networks
from scrun.supervisor.core.deposits import OWN, Deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.nurseries import bulkhead, unwrapped
from scrun.supervisor.core.threads import in_last_thread, in_thread
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.shim.network import addresses_of
from scrun.supervisor.wire.filters import DOMAIN, ORIGINAL_DESTINATION, PROGRAMS

NETWORK = f"{OWN}network."
"""Begins the names by which the listening sockets are kept; the families follow."""

T = TypeVar("T")

_FAMILIES = {"ip": socket.AF_INET, "ip6": socket.AF_INET6}
_UDP = "udp"
_ANY = {"ip": "0.0.0.0", "ip6": "::"}
_LEVEL = {socket.AF_INET: socket.IPPROTO_IP, socket.AF_INET6: socket.IPPROTO_IPV6}
_ADDRESS = struct.Struct("!2xH24x")  # of struct sockaddr_in6, and of the shorter sockaddr_in
_QUEUE = 4096
_LISTENS = "0A"
_PATIENCE = 10.0
_ASKING = 5.0
_LONGEST = 1 << 16
_ROUTES = 0x41  # RTMGRP_IPV4_ROUTE, RTMGRP_LINK: linux/rtnetlink.h
_SETTLES = 0.2
_RESOLVER = "/etc/resolv.conf"
_FILES = (_RESOLVER, "/etc/hosts")
_STATUS, _FAILED = 3, 0xF  # the byte of an answer with its RCODE: RFC 1035, 4.1.1
_GET_DRIVER, _ASK_DRIVER = 3, 0x8946  # ETHTOOL_GDRVINFO, SIOCETHTOOL: linux/ethtool.h
_DRIVER = struct.Struct("=I32s160x")  # struct ethtool_drvinfo
_TO_A_BRIDGE = b"veth"
_OF_DOCKER = "127.0.0.11"  # dockerd's name server in each network
_OF_DOCKER_IN_PROC = f"{int.from_bytes(socket.inet_aton(_OF_DOCKER), sys.byteorder):08X}:"
_CHILD_ENV = ChildEnv({"PATH": SYSTEM_PATH, "XTABLES_LOCKFILE": os.devnull})

_NFT = """\
add table {family} scrun; delete table {family} scrun; add table {family} scrun
add chain {family} scrun outside {{ type nat hook prerouting priority -100; }}
add chain {family} scrun inside {{ type nat hook output priority -100; }}
add rule {family} scrun outside fib daddr type local meta l4proto tcp redirect to :{port}
add rule {family} scrun inside fib daddr type local meta l4proto tcp redirect to :{port}
"""
_TO_UDP = "fib daddr type local ip daddr != 127.0.0.11 meta l4proto udp redirect to :{port}"
_NFT_UDP = "".join(f"add rule ip scrun {chain} {_TO_UDP}\n" for chain in ("outside", "inside"))
_RULE = "-w -t nat -I {} -p {} -m addrtype --dst-type LOCAL -j REDIRECT --to-ports {{port}}"
_CHAINS = ("PREROUTING", "OUTPUT")
_CALLS = {
    "nft": [[_NFT]],
    "iptables": [_RULE.format(chain, "tcp").split() for chain in _CHAINS],
}
_CALLS_UDP = {
    "nft": [[_NFT_UDP]],
    "iptables": [_RULE.format(chain, "udp ! -d 127.0.0.11").split() for chain in _CHAINS],
}


class EngineNetwork:
    """The network of one container; an `EngineSide` for its job.

    Attributes:
        networks: What it has of the engine's bridges, once it is answered.
    """

    def __init__(
        self, path: str, container: str, config: Config, journal: Journal, deposit: Deposit
    ) -> None:
        """`deposit`: the container's, which keeps the sockets."""
        self.networks = Networks()
        self._files = files_of(config.mounts, container)
        self._path, self._container, self._config = path, container, config
        self._journal, self._deposit = journal, deposit
        self._namespace = -1

    @asynccontextmanager
    async def answered(
        self, job: Job, begun: trio.Event, found: Inheritance | None = None
    ) -> AsyncIterator[None]:
        """Answer connections while the block runs; if that is impossible, the log says why.

        Args:
            begun: Set when the container runs.
            found: What another supervisor has left of the container.
        """
        listeners = _left(found)
        is_new = not listeners
        with ExitStack() as stack:
            try:
                self._namespace = await in_thread(opened, self._path)
                stack.callback(os.close, self._namespace)
                self.networks = await self._found()
                if is_new:
                    listeners = await self._within(_listening)
                for listener in listeners.values():
                    stack.enter_context(listener)
            except (ScrunError, OSError) as error:
                self._give_up(error, listeners)
                yield
                return
            async with unwrapped() as nursery:
                answering = partial(self._answer, listeners, job, begun, is_new)
                nursery.start_soon(bulkhead, f"container {self._container}: network", answering)
                yield
                nursery.cancel_scope.cancel()

    async def _found(self) -> Networks:
        """Return what it has now.

        Raises:
            OSError: Its namespace, or its resolv.conf, cannot be read.
        """
        found = await self._within(bridges)
        if found and _OF_DOCKER in await in_thread(self._name_servers):
            found += (f"{_OF_DOCKER}/32",)
        return Networks(found, await in_thread(read_files, self._files))

    async def _answer(
        self, listeners: dict[str, socket.socket], job: Job, begun: trio.Event, is_new: bool
    ) -> None:
        try:
            if (reaching := job.reaching(outside=True)) is None:
                raise EngineError('that needs launch = "shim" in scrun.toml')
            if is_new:
                await self._send_all_to(listeners)
            # not before: a successor that finds them takes them for those that the rules know
            kept = {NETWORK + name: one.fileno() for name, one in listeners.items()}
            self._deposit.hold(kept)
            await begun.wait()
            if job.is_beside_us:  # a port that is published by its own number would lead to itself
                raise EngineError("its container is in this machine's network: use its own ports")
            async with reaching as reach, unwrapped() as nursery:
                connections = ClientConnections(self._container, nursery, reach, self._say)
                if udp := listeners.pop(_UDP, None):
                    nursery.start_soon(self._refuse_datagrams, udp)
                for listener in listeners.values():
                    nursery.start_soon(connections.accept, listener, original_port)
                if self.networks.addresses:
                    nursery.start_soon(job.reach_out, self)
                    await self._follow(job, self.networks if is_new else None)
        except (ScrunError, OSError) as error:
            self._give_up(error, listeners)

    def _give_up(self, error: Exception, listeners: dict[str, socket.socket]) -> None:
        self._deposit.drop(NETWORK)
        for listener in listeners.values():  # else clients wait for ever
            listener.close()
        why = described(error)
        self._journal.write("info", f"nothing here reaches its ports: {self._path}: {why}")

    async def _say(self, line: str) -> None:
        self._journal.write("info", line)

    async def _send_all_to(self, listeners: dict[str, socket.socket]) -> None:
        """Send all TCP of each family to its socket, and UDP, which is not carried.

        Raises:
            EngineError: It cannot be done.
        """
        with trio.move_on_after(_PATIENCE) as patience:
            await redirect(self._namespace, "ip", listeners["ip"].getsockname()[1])
            if six := listeners.get("ip6"):
                try:
                    await redirect(self._namespace, "ip6", six.getsockname()[1])
                except EngineError:  # its packet filter knows IPv4 only
                    listeners.pop("ip6").close()
            try:
                await redirect(self._namespace, "ip", listeners[_UDP].getsockname()[1], udp=True)
            except EngineError:  # then the kernel refuses it, and nobody is told
                listeners.pop(_UDP).close()
        if patience.cancelled_caught:
            raise EngineError(f"its rules took longer than {_PATIENCE:g} s")

    async def _follow(self, job: Job, given: Networks | None) -> None:
        """Let it reach what its engine connects it to, and nothing that it is disconnected from.

        Args:
            given: What its node knows; None: whatever that was.
        """
        with ExitStack() as stack:
            routes = stack.enter_context(await self._within(_news_of_routes))
            files = await in_thread(news_of_files, self._files.values())
            stack.callback(os.close, files)
            news = stack.enter_context(select.epoll())
            for source in (routes.fileno(), files):
                news.register(source, select.EPOLLIN)
            while True:
                found = await self._found()
                if found != given:
                    await self._change(job, found)
                    given = found
                await trio.lowlevel.wait_readable(news.fileno())
                await trio.sleep(_SETTLES)
                for source in (routes.fileno(), files):
                    with suppress(OSError):  # no more, or more than it has kept
                        while os.read(source, _LONGEST):
                            pass

    async def _change(self, job: Job, found: Networks) -> None:
        before, self.networks = self.networks, found
        where = ", ".join(found.addresses) or "nothing"
        try:
            await job.connect_network(found)
        except EngineError as error:
            text = f"it does not reach {where}: {described(error)}"
        else:
            text = f"of its engine's networks it reaches {where}"
            if found.addresses == before.addresses:
                return
        await self._say(f"container {self._container}: {text}")

    async def _refuse_datagrams(self, udp: socket.socket) -> None:
        """Say once that UDP is not carried; the kernel refuses it then (ICMP)."""
        with udp:
            await trio.lowlevel.wait_readable(udp)
            self._deposit.drop(NETWORK + _UDP)
        await self._say(f"container {self._container}: UDP does not reach its ports, TCP does")

    async def _within(self, call: Callable[[], T]) -> T:
        """Call a function in the namespace.

        Raises:
            OSError: It cannot be entered; or what the function raises.
        """
        return await in_thread(in_last_thread, partial(_entered, self._namespace, call))

    # What the container reaches by it: `EngineSide`

    async def connect(self, address: str, port: int) -> trio.socket.SocketType:
        if not self._is_at(address):  # a node's word is not trusted
            raise EngineError(f"{address} is not in {', '.join(self.networks.addresses)}")
        sock = await self._within(partial(socket.socket, socket.AF_INET))
        return await _connected(sock, address, port)

    async def ask(self, question: bytes) -> bytes:
        answer = b""
        for resolver in await in_thread(self._name_servers):
            if not self._is_at(resolver):
                continue
            udp = partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM)
            with suppress(OSError), trio.move_on_after(_ASKING):  # that one has gone
                sock = await self._within(udp)
                with await _connected(sock, resolver, DOMAIN) as asking:
                    await asking.send(question)
                    answer = await asking.recv(_LONGEST)
                    if len(answer) > _STATUS and not answer[_STATUS] & _FAILED:
                        break  # each network has its server, which knows no others' names
        if not answer:
            raise EngineError("no server of its engine's networks answers")
        return answer

    def _name_servers(self) -> list[str]:
        """Return those in its resolv.conf. Blocks.

        Raises:
            OSError: It cannot be read.
        """
        sources = [one.source for one in self._config.mounts if one.destination == _RESOLVER]
        found = []
        for source in sources:
            with open(source, errors="replace") as file:
                lines = [line.split() for line in file.read(_LONGEST).splitlines()]
            found += [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
        return found

    def _is_at(self, address: str) -> bool:
        try:
            ours = self.networks.addresses
            return any(IPv4Address(address) in IPv4Interface(one).network for one in ours)
        except ValueError:
            return False


async def _connected(sock: socket.socket, address: str, port: int) -> trio.socket.SocketType:
    found = trio.socket.from_stdlib_socket(sock)
    try:
        with trio.fail_after(_PATIENCE):
            await found.connect((address, port))
    except BaseException as error:
        found.close()
        if isinstance(error, trio.TooSlowError):
            raise EngineError(f"{address}:{port} does not answer") from None
        raise
    return found


def original_port(client: trio.socket.SocketType) -> int:
    """Return the port that a client has asked for, before it was sent to our socket.

    Raises:
        OSError: The kernel does not know.
        EngineError: It is our socket's own.
    """
    family = client.family
    asked = client.getsockopt(_LEVEL[family], ORIGINAL_DESTINATION, _ADDRESS.size)
    (port,) = _ADDRESS.unpack(asked.ljust(_ADDRESS.size, b"\0"))
    if port == client.getsockname()[1]:
        raise EngineError("nothing listens there")
    return int(port)


def _left(found: Inheritance | None) -> dict[str, socket.socket]:
    """Take the sockets that another supervisor has left."""
    if found is None:
        return {}
    there = [name for name in (*_FAMILIES, _UDP) if NETWORK + name in found.fds]
    return {name: socket.socket(fileno=found.take(NETWORK + name)) for name in there}


def files_of(mounts: Sequence[Mount], container: str) -> dict[str, str]:
    """Return which files with names and addresses its engine has for a container alone.

    Engines write them late: podman from 5 on after `create`, each when it connects a network.

    Returns:
        Their sources, by where it mounts them.
    """
    there = [one for one in mounts if one.destination in _FILES]
    return {one.destination: one.source for one in there if container in one.source.split("/")}


def read_files(files: Mapping[str, str]) -> dict[str, str]:
    """Return what is in them; one that is too long, or no text, is left out. Blocks."""
    found = {}
    for name, source in files.items():
        with suppress(OSError, UnicodeDecodeError), open(source) as file:
            text = file.read(_LONGEST)
            if not file.read(1):
                found[name] = text
    return found


def is_of_this_machine(path: str) -> bool:
    """Tell whether a network namespace is that of this machine, or of our engine. Blocks."""
    try:
        found = os.stat(path)
    except OSError:  # it is said when the network is opened
        return False
    return _is_own(found)


def _is_own(namespace: os.stat_result) -> bool:
    if str(namespace.st_ino) == os.environ.get(ENGINES_NETWORK):
        return True
    for process in ("self", "1"):
        try:
            if os.path.samestat(os.stat(f"/proc/{process}/ns/net"), namespace):
                return True
        except OSError:  # an ordinary user cannot enter what process 1 has
            continue
    return False


def opened(path: str) -> int:
    """Open a namespace.

    Raises:
        OSError: It cannot be opened.
        EngineError: It is this machine's.
    """
    namespace = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if _is_own(os.fstat(namespace)):
        os.close(namespace)
        raise EngineError("it is this machine's own network")
    return namespace


def _entered(namespace: int, call: Callable[[], T]) -> T:
    from scrun.core import namespaces as ns  # few supervisors need it

    ns.enter(namespace, ns.NEW_NETWORK)
    return call()


def _listening() -> dict[str, socket.socket]:
    """Listen on any free port of this thread's network, by family.

    Raises:
        OSError: That is not possible.
        EngineError: Somebody listens there: all connections would come to us.
    """
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
    listeners[_UDP] = udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind((_ANY["ip"], 0))
    udp.setblocking(False)
    return listeners


def somebody_listens() -> bool:
    """Tell whether anybody listens for TCP in this thread's network (proc(5))."""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/thread-self/net/{name}") as lines:
                next(lines)
                words = [line.split() for line in lines]
                if any(
                    line[3] == _LISTENS and not line[1].startswith(_OF_DOCKER_IN_PROC)
                    for line in words
                ):
                    return True
        except FileNotFoundError:  # no IPv6
            continue
    return False


def bridges() -> tuple[str, ...]:
    """Return the networks that this thread's network is at by bridges, of IPv4 (proc(5)).

    Each comes with the address that it has there, as `10.89.0.5/24`. slirp4netns and pasta lead to
    no network of an engine's.
    """
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        addresses = addresses_of(sock.fileno())
    with open("/proc/thread-self/net/route") as lines:
        for line in [line.split() for line in lines][1:]:
            name, destination, gateway, mask = line[0], *line[1:3], line[7]
            if not int(gateway, 16) and int(mask, 16) and _driver_of(name) == _TO_A_BRIDGE:
                base, bits = (_dotted(word) for word in (destination, mask))
                network = IPv4Network(f"{base}/{bits}")
                own = [one for one in addresses.get(name, ()) if IPv4Address(one) in network]
                found.append(f"{(own or [base])[0]}/{network.prefixlen}")
    return tuple(dict.fromkeys(found))


def _news_of_routes() -> socket.socket:
    """Return what is readable when routes of this thread's network have changed (rtnetlink(7))."""
    news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK)
    try:
        news.bind((0, _ROUTES))
    except OSError:
        news.close()
        raise
    return news


def _dotted(word: str) -> str:
    """Return an address that proc(5) writes as a number in the machine's order."""
    return socket.inet_ntoa(struct.pack("=I", int(word, 16)))


def _driver_of(interface: str) -> bytes:
    """Return the name of an interface's driver (netdevice(7))."""
    asked = array("B", _DRIVER.pack(_GET_DRIVER, b""))
    request = struct.pack("16sP16x", interface.encode(), asked.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            fcntl.ioctl(sock, _ASK_DRIVER, request)
        except OSError:  # it has none
            return b""
    return bytes(_DRIVER.unpack(asked)[1].rstrip(b"\0"))


async def redirect(
    namespace: int,
    family: str,
    port: int,
    ways: Sequence[str] = PROGRAMS,
    *,
    udp: bool = False,
) -> None:
    """Send all TCP of a family, or all UDP, to a port of ours, by nft(8) or iptables(8).

    Raises:
        EngineError: It cannot be done.
    """
    why = "needs nft or iptables on this machine"
    for name in ways:
        program = own_program(name.replace("ip", family))
        if not os.path.isabs(program):
            continue
        for call in (_CALLS_UDP if udp else _CALLS)[name]:
            words = [word.format(family=family, port=port) for word in call]
            words = [own_program("nsenter"), f"--net=/proc/self/fd/{namespace}", program, *words]
            status, said = await answer_of(words, _CHILD_ENV, namespace)
            if status:
                why = f"{name}: {said.strip() or f'it {its_end(status)}'}"
                break
        else:
            return
    raise EngineError(why)
