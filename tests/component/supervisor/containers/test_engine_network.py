"""Connections in a network namespace of an engine's, answered from outside of it."""

import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
import trio.testing

from scrun.core import namespaces as ns
from scrun.core.errors import EngineError
from scrun.oci.config import Config, Mount, read_config
from scrun.settings.file.load import Log
from scrun.supervisor.containers.engine_network import (
    NETWORK,
    EngineNetwork,
    bridges,
    files_of,
    opened,
    redirect,
)
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.networks import EngineSide, Networks, Reach
from scrun.supervisor.core.deposits import Deposit, Deposits, no_deposit
from scrun.supervisor.core.inheritance import Inheritance
from scrun.supervisor.core.threads import in_last_thread
from scrun.supervisor.log.journal import Journal
from tests.harness.wait import wait_until

PORT = 5432


@pytest.fixture
def network() -> Iterator[str]:
    """A namespace with a loopback, as an engine makes one."""
    script = "ip link set lo up && echo there && read forever"
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout
        assert holder.stdin
        assert holder.stdout.readline() == b"there\n"
        yield f"/proc/{holder.pid}/ns/net"
        holder.stdin.close()


def within(network: str, call: Callable[[], Any]) -> Any:
    """Call a function in a network namespace."""

    def there() -> Any:
        namespace = os.open(network, os.O_RDONLY)
        ns.enter(namespace, ns.NEW_NETWORK)
        os.close(namespace)
        return call()

    return in_last_thread(there)


async def connect(network: str, address: str, port: int) -> trio.SocketStream:
    """Connect from within a network namespace."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = trio.socket.from_stdlib_socket(within(network, partial(socket.socket, family)))
    await sock.connect((address, port))
    return trio.SocketStream(sock)


class Answering:
    """A container that says which port it was asked for, and repeats what it gets."""

    def __init__(self, path: str, journal: Journal, *, beside_us: bool = False) -> None:
        self.path, self.journal = path, journal
        self.begun = trio.Event()
        self.keeps_alive = 0
        words = SimpleNamespace(
            reaching=self.reaching, is_beside_us=beside_us, reach_out=self.reach_out,
            connect_network=self.connect_network,
        )  # fmt: skip
        self.reached: list[Networks] = []
        self.refuses = ""
        self.job = cast(Job, words)
        self.config = cast(Config, SimpleNamespace(mounts=()))
        self.network = EngineNetwork(path, "c1", self.config, journal, no_deposit())

    @asynccontextmanager
    async def reaching(self, *, outside: bool) -> AsyncIterator[Reach]:
        assert outside

        async def reach(client: trio.socket.SocketType, port: int) -> None:
            if port != PORT:
                raise EngineError("Connection refused")
            self.keeps_alive = client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            await client.send(b"%d\n" % port)
            while data := await client.recv(100):
                await client.send(data)

        yield reach

    async def reach_out(self, engine: EngineSide) -> None:
        """It connects to nothing, and most have no networks of the engine's here."""
        assert self.network.networks.addresses
        await trio.sleep_forever()

    async def connect_network(self, networks: Networks) -> None:
        self.reached.append(networks)
        if self.refuses:
            raise EngineError(self.refuses)

    async def run(self) -> None:
        async with self.network.answered(self.job, self.begun):
            await trio.sleep_forever()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(str(tmp_path / "log"), Log(), "c1")
    yield made
    made.close()


async def rules_are_there(network: str) -> None:
    """Wait until both families are sent to our sockets."""
    words = ["nsenter", f"--net={network}", "nft", "list", "table", "ip6", "scrun"]
    await trio.to_thread.run_sync(wait_until, "the rules", lambda: b"redirect" in said_by(words))


def log_of(journal: Journal) -> str:
    return Path(journal.path).read_text()


def said_by(words: list[str]) -> bytes:
    return subprocess.run(words, capture_output=True, check=False).stdout


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1"])
async def test_every_port(address: str, network: str, journal: Journal) -> None:
    container = Answering(network, journal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await rules_are_there(network)
        container.begun.set()
        async with await connect(network, address, PORT) as client:
            await client.send_all(b"hello")
            await client.send_eof()
            assert b"".join([part async for part in client]) == b"5432\nhello"
        async with await connect(network, address, PORT + 1) as client:
            with pytest.raises(trio.BrokenResourceError):  # a reset, not silence
                await client.receive_some()
        nursery.cancel_scope.cancel()
    assert "port 5433: Connection refused" in log_of(journal)


class Noting(Deposit):
    """Notes whether the rules were there when the sockets were kept."""

    def __init__(self, network: str) -> None:
        super().__init__("", Deposits())
        self.give_up("only its calls count")
        self.network, self.seen = network, list[bool]()

    def hold(self, fds: Mapping[str, int], **facts: object) -> None:
        words = ["nsenter", f"--net={self.network}", "nft", "list", "table", "ip", "scrun"]
        self.seen.append(bool(fds) and b"redirect" in said_by(words))


async def test_a_successor_finds_no_sockets_without_rules(network: str, journal: Journal) -> None:
    """It takes those that it finds for ready, and makes no rules."""
    container = Answering(network, journal)
    deposit = Noting(network)
    container.network = EngineNetwork(network, "c1", container.config, journal, deposit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await rules_are_there(network)
        await trio.to_thread.run_sync(wait_until, "they are kept", lambda: deposit.seen)
        nursery.cancel_scope.cancel()
    assert deposit.seen == [True]


async def test_a_successor_that_cannot_enter_it(journal: Journal, tmp_path: Path) -> None:
    """Clients of the sockets that were left are refused; they waited for the container's end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address, left = listener.getsockname(), {f"{NETWORK}ip": os.dup(listener.fileno())}
    container = Answering(str(tmp_path / "none"), journal)
    found = Inheritance("c1", {}, left)
    async with container.network.answered(container.job, container.begun, found):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
    assert "No such file" in log_of(journal)


async def test_more_clients_than_room(network: str, journal: Journal) -> None:
    """They wait, the log says so, and the kernel finds out about those that have gone."""
    container = Answering(network, journal)
    container.begun.set()
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        nursery.start_soon(container.run)
        await rules_are_there(network)
        clients = [
            await stack.enter_async_context(await connect(network, "127.0.0.1", PORT))
            for _ in range(257)
        ]
        for client in clients[:-1]:
            assert await client.receive_some() == b"5432\n"
        assert container.keeps_alive
        with trio.move_on_after(0.2) as patience:
            await clients[-1].receive_some()
        assert patience.cancelled_caught
        await clients[0].aclose()
        assert await clients[-1].receive_some() == b"5432\n"
        nursery.cancel_scope.cancel()
    assert "256 are open, and others wait until one ends" in log_of(journal)


async def test_clients_wait_until_it_runs(network: str, journal: Journal) -> None:
    container = Answering(network, journal)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await rules_are_there(network)
        async with await connect(network, "127.0.0.1", PORT) as client:
            with trio.move_on_after(0.1) as patience:
                await client.receive_some()
            assert patience.cancelled_caught
            container.begun.set()
            assert await client.receive_some() == b"5432\n"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("way", ["nft", "iptables"])
@pytest.mark.parametrize("family", ["ip", "ip6"])
async def test_each_packet_filter(way: str, family: str, network: str) -> None:
    """It may be called again: what it sends to the newest socket then."""
    kind = {"ip": socket.AF_INET, "ip6": socket.AF_INET6}[family]
    address = {"ip": "127.0.0.1", "ip6": "::1"}[family]
    listening = partial(socket.create_server, (address, 0), family=kind)
    namespace = os.open(network, os.O_RDONLY)
    with within(network, listening) as first, within(network, listening) as second:
        for listener in (first, second):
            await redirect(namespace, family, listener.getsockname()[1], [way])
            async with await connect(network, address, PORT):
                listener.settimeout(5)
                listener.accept()[0].close()
    os.close(namespace)


async def test_a_filter_that_refuses(network: str) -> None:
    namespace = os.open(network, os.O_RDONLY)
    with pytest.raises(EngineError, match="nft: Error: "):
        await redirect(namespace, "ip", 70_000, ["nft"])
    os.close(namespace)


async def said(container: Answering) -> str:
    """What the log has when it cannot be answered."""
    container.begun.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await trio.to_thread.run_sync(
            wait_until, "a line", lambda: container.path in log_of(container.journal)
        )
        nursery.cancel_scope.cancel()
    return log_of(container.journal)


def test_this_machines_own_network() -> None:
    with pytest.raises(EngineError, match="it is this machine's own network"):
        opened("/proc/self/ns/net")


async def test_a_network_with_other_servers(network: str, journal: Journal) -> None:
    """Somebody else may have named it: their clients are not to come to us."""
    with within(network, partial(socket.create_server, ("127.0.0.1", PORT))):
        assert "other programs listen in that network" in await said(Answering(network, journal))
    assert not said_by(["nsenter", f"--net={network}", "nft", "list", "ruleset"])


async def test_what_is_no_network(journal: Journal, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in ("/proc/self/ns/mnt", "/etc/passwd", str(tmp_path / "fifo")):
        assert f"{path}: setns: Invalid argument" in await said(Answering(path, journal))
    assert "No such file" in await said(Answering(str(tmp_path / "none"), journal))


@pytest.mark.covers(
    "security connect from the submit host to addresses outside of its container's networks"
)
@pytest.mark.parametrize("address", ["127.0.0.1", "10.90.0.1", "::1", "localhost", "10.89.0.0/24"])
async def test_a_node_asks_for_another_address(
    address: str, network: str, journal: Journal
) -> None:
    of_engine = Answering(network, journal).network
    of_engine.networks = Networks(("10.89.0.5/24",))
    with pytest.raises(EngineError, match=r"is not in 10.89.0.5/24"):
        await of_engine.connect(address, PORT)


def run_ip(network: str, *calls: str) -> None:
    for words in calls:
        subprocess.run(["nsenter", f"--net={network}", "ip", *words.split()], check=True)


def add_bridge(network: str, number: int) -> None:
    run_ip(
        network,
        f"link add veth{number} type veth peer name peer{number}",
        f"addr add 10.89.{number}.2/24 dev veth{number}",
        f"link set veth{number} up",
    )


def test_networks_that_lead_to_bridges(network: str) -> None:
    """A bridge's end is a veth; what slirp4netns and pasta make leads to no other container."""
    add_bridge(network, 3)
    run_ip(
        network,
        "tuntap add tap0 mode tap",
        "addr add 10.0.2.100/24 dev tap0",
        "link set tap0 up",
        "route add default via 10.89.3.1",
    )
    assert within(network, bridges) == ("10.89.3.2/24",)


async def test_a_network_that_comes_later(network: str, journal: Journal) -> None:
    """Its node is told, also of one that goes; clients there are answered, as everywhere."""
    add_bridge(network, 3)
    container = Answering(network, journal)
    container.begun.set()
    reached = container.reached
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await rules_are_there(network)
        async with await connect(network, "10.89.3.2", PORT) as client:
            assert await client.receive_some() == b"5432\n"
        assert not reached
        add_bridge(network, 4)
        await trio.to_thread.run_sync(wait_until, "both", lambda: len(reached) == 1)
        async with await connect(network, "10.89.4.2", PORT) as client:
            assert await client.receive_some() == b"5432\n"
        container.refuses = "it has gone"
        run_ip(network, "link del veth3")
        await trio.to_thread.run_sync(wait_until, "the other", lambda: len(reached) == 2)
        with pytest.raises(EngineError, match=r"is not in 10.89.4.2/24"):
            await container.network.connect("10.89.3.1", PORT)
        nursery.cancel_scope.cancel()
    both, one = ("10.89.3.2/24", "10.89.4.2/24"), ("10.89.4.2/24",)
    assert [networks.addresses for networks in reached] == [both, one]
    assert "of its engine's networks it reaches 10.89.3.2/24, 10.89.4.2/24" in log_of(journal)
    assert "it does not reach 10.89.4.2/24: it has gone" in log_of(journal)


async def test_a_file_of_the_engines_that_is_written_late(
    network: str, journal: Journal, tmp_path: Path
) -> None:
    """Those for all containers, and what is no text, stay as they are."""
    add_bridge(network, 3)
    (tmp_path / "c1").mkdir()
    hosts, binary = (tmp_path / "c1" / name for name in ("hosts", "binary"))
    hosts.touch()
    binary.write_bytes(b"\xff")
    mounts = [
        Mount("/etc/hosts", source=str(hosts)),
        Mount("/etc/resolv.conf", source=str(binary)),
    ]
    assert not files_of([Mount("/etc/hosts", source="/etc/hosts")], "c1")
    container = Answering(network, journal)
    config = cast(Config, SimpleNamespace(mounts=mounts))
    container.network = EngineNetwork(network, "c1", config, journal, no_deposit())
    container.begun.set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(container.run)
        await rules_are_there(network)
        async with await connect(network, "10.89.3.2", PORT) as client:
            await client.receive_some()
        hosts.write_text("10.89.3.2 db\n")
        await trio.to_thread.run_sync(wait_until, "it", lambda: len(container.reached) == 1)
        nursery.cancel_scope.cancel()
    assert container.reached[0].files == {"/etc/hosts": "10.89.3.2 db\n"}
    assert "reaches" not in log_of(journal)


async def test_each_network_has_its_name_server(
    network: str, journal: Journal, tmp_path: Path
) -> None:
    """The one of the first does not know those of the second; that of another has gone."""
    servers, gone = ("10.89.0.1", "10.89.0.2", "10.89.0.3"), "10.89.0.4"
    run_ip(network, *(f"addr add {one}/24 dev lo" for one in (*servers, gone)))
    resolver = tmp_path / "resolv.conf"
    resolver.write_text("".join(f"nameserver {one}\n" for one in ("10.1.1.1", gone, *servers)))
    config = SimpleNamespace(mounts=[Mount("/etc/resolv.conf", source=str(resolver))])
    of_engine = EngineNetwork(network, "c1", cast(Config, config), journal, no_deposit())
    of_engine.networks = Networks(("10.89.0.0/24",))
    of_engine._namespace = os.open(network, os.O_RDONLY)

    async def serve(address: str, answer: bytes) -> None:
        made = within(network, partial(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        with trio.socket.from_stdlib_socket(made) as server:
            await server.bind((address, 53))
            while True:
                _, asker = await server.recvfrom(512)
                await server.sendto(answer, asker)

    unknown, known = b"id\x81\x83", b"id\x81\x80the address"
    async with trio.open_nursery() as nursery:
        for server, answer in zip(servers, (unknown, known, unknown), strict=True):
            nursery.start_soon(serve, server, answer)
        await trio.testing.wait_all_tasks_blocked()
        assert await of_engine.ask(b"id?") == known
        resolver.write_text(f"nameserver {servers[0]}\n")
        assert await of_engine.ask(b"id?") == unknown
        resolver.write_text(f"nameserver {gone}\n")
        with pytest.raises(EngineError, match="no server of its engine's networks answers"):
            await of_engine.ask(b"id?")
        nursery.cancel_scope.cancel()
    os.close(of_engine._namespace)


async def test_a_container_in_our_own_network(network: str, journal: Journal) -> None:
    """Else a port that is published by its own number leads to itself, for ever."""
    text = await said(Answering(network, journal, beside_us=True))
    assert "its container is in this machine's network: use its own ports" in text


@pytest.mark.parametrize(
    ("namespaces", "path"),
    [
        ('[{"type": "network", "path": "/run/netns/one"}]', "/run/netns/one"),
        ('[{"type": "pid", "path": "/run/netns/one"}]', ""),
        ('[{"type": "network"}]', ""),
        ('[{"type": "network", "path": "/proc/12/ns/net"}]', ""),
        ("[]", ""),
    ],
)
def test_which_network_an_engine_has_made(namespaces: str, path: str, tmp_path: Path) -> None:
    linux = f'"linux": {{"namespaces": {namespaces}}}'
    process = '"process": {"cwd": "/", "args": ["a"], "user": {"uid": 0, "gid": 0}}'
    file = tmp_path / "config.json"
    file.write_text(f'{{"ociVersion": "1.0.0", "root": {{"path": "r"}}, {process}, {linux}}}')
    assert read_config(str(file))[1].engine_network == path
