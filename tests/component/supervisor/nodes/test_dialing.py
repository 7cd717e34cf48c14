"""The direct connection: who gets it, who does not, and what is done without one."""

import socket
from typing import Any

import pytest
import trio

from scrun.supervisor.nodes import dialing
from scrun.supervisor.nodes.connection import Shim, ShimLost
from scrun.supervisor.nodes.dialing import Unreached
from scrun.supervisor.nodes.listening import NotReached, addresses, listen
from scrun.supervisor.shim.frames import CALL, frame
from tests.harness.peer import Peer, Said, played, prove, silent_connection, soon, talking

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


async def asked(
    shim: Shim, peer: Peer, nursery: trio.Nursery, **how: Any
) -> tuple[Any, list[bool]]:
    """The call `dial`, and where its outcome will be."""
    outcome: list[bool] = []

    async def ask() -> None:
        outcome.append(await shim.dial(how.get("ports"), patience=how.get("patience", 2)))

    nursery.start_soon(ask)
    return await peer.call("dial"), outcome


async def greeted(shim: Shim, peer: Peer) -> None:
    await peer.hello()
    await shim.hello()


async def test_it_is_used() -> None:
    said = Said()
    async with talking(direct=True, said=said) as (_, peer):
        assert peer.stream is not None
        sock = peer.stream.socket
        assert sock.getpeername()[1] > 0
    assert said.lines == []


async def test_the_call() -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        await greeted(shim, peer)
        call, outcome = await asked(shim, peer, nursery, patience=0.5)
        assert len(call["secret"]) == 64
        assert call["patience"] == 0.5
        assert call["addresses"][-1][0] == "127.0.0.1"
        assert socket.gethostname() in {host for host, _ in call["addresses"]}
        await peer.reply(call, error="cannot")
        await soon(lambda: outcome)
        assert outcome == [False]


async def test_a_failure_is_said_once() -> None:
    said = Said()
    async with talking(said=said):
        pass
    assert said.lines == [("info", "node1: streams go over srun: it was not wanted")]


async def test_nobody_listens_afterwards() -> None:
    for direct in (True, False):
        async with played() as (shim, peer), trio.open_nursery() as nursery:
            await greeted(shim, peer)
            call, outcome = await asked(shim, peer, nursery)
            if direct:
                await peer.dial(call)
                await peer.reply(call)
            else:
                await peer.reply(call, error="cannot")
            await soon(lambda: outcome)  # noqa: B023 (it is called at once)
            with pytest.raises(OSError, match="refused"):
                silent_connection(call)


async def test_a_wrong_secret() -> None:
    said = Said()
    async with played(said) as (shim, peer), trio.open_nursery() as nursery:
        await greeted(shim, peer)
        call, outcome = await asked(shim, peer, nursery)
        for _ in range(3):
            assert not await peer.dial(call, secret=b"wrong" * 6)
        assert not outcome
        assert await peer.dial(call)
        await peer.reply(call)
        await soon(lambda: outcome)
        assert outcome == [True]
    assert len(said.lines) == 1
    assert "somebody who is not the shim" in said


@pytest.mark.parametrize("parts", [[b""], [b"x"], [b"x" * 32, b"y"], [b"x" * 32, b"y" * 32]])
async def test_others_who_connect(parts: list[bytes]) -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        await greeted(shim, peer)
        call, outcome = await asked(shim, peer, nursery)
        with silent_connection(call) as other:
            for part in parts:
                other.sendall(part)
            if len(parts) == 1:
                other.shutdown(socket.SHUT_WR)
            assert await peer.dial(call)
            await peer.reply(call)
            await soon(lambda: outcome)


async def test_one_proof_is_no_use_to_another() -> None:
    """What was heard cannot be said again: the supervisor's random bytes differ."""
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        await greeted(shim, peer)
        call, outcome = await asked(shim, peer, nursery)
        heard = b""
        stream = await trio.open_tcp_stream(*call["addresses"][-1])
        await stream.send_all(b"r" * 32)
        heard = bytes(await stream.receive_some(32))
        other = await trio.open_tcp_stream(*call["addresses"][-1])
        await other.send_all(b"r" * 32)
        assert bytes(await other.receive_some(32)) != heard
        await stream.aclose()
        await other.aclose()
        await peer.reply(call, error="enough")
        await soon(lambda: outcome)


async def test_silent_ones_are_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "_TO_PROVE", 0.3)
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        await greeted(shim, peer)
        call, outcome = await asked(shim, peer, nursery)
        address = call["addresses"][-1]
        others = [await trio.open_tcp_stream(*address) for _ in range(dialing.MOST_UNPROVED + 4)]
        with trio.fail_after(5):
            assert await peer.dial(call)
        await peer.reply(call)
        await soon(lambda: outcome)
        for other in others:
            await other.aclose()


async def test_the_second_one_who_knows_is_not_taken() -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        await greeted(shim, peer)
        call, outcome = await asked(shim, peer, nursery)
        second = await trio.open_tcp_stream(*call["addresses"][-1])
        assert await peer.dial(call)
        await prove(second, bytes.fromhex(call["secret"]))
        await peer.reply(call)
        await soon(lambda: outcome)
        assert await second.receive_some(1) == b""
        await second.aclose()


async def test_a_shim_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrun.supervisor.nodes.connection._DIAL_ANSWERS", 0.1)
    async with played() as (shim, peer):
        await greeted(shim, peer)
        with trio.fail_after(5), pytest.raises(ShimLost, match="did not answer"):
            await shim.dial(None, patience=0.1)
        assert shim.lost.is_set()


async def test_a_node_that_does_not_reach_us() -> None:
    """Only the first container waits for that."""
    said = Said()
    for first in (True, False):
        async with played(said) as (shim, peer), trio.open_nursery() as nursery:
            await peer.hello(node="behind-a-firewall")
            if first:
                call, outcome = await asked(shim, peer, nursery, patience=0.1)
                await trio.sleep(0.1)
                await peer.reply(call, error="no answer")
                await soon(lambda: outcome)  # noqa: B023 (it is called at once)
            else:
                assert not await shim.dial(None)
    assert "streams go over srun: no answer" in said
    assert "streams go over srun, as before" in said
    async with played(said) as (shim, peer), trio.open_nursery() as nursery:
        await peer.hello(node="another")
        call, _ = await asked(shim, peer, nursery)
        await peer.reply(call, error="refused")


async def test_nodes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Unreached()
    monkeypatch.setattr(dialing, "_MOST_NODES", 3)
    for node in "abcd":
        nodes.add(node)
    assert "d" in nodes
    assert "a" not in nodes
    monkeypatch.setattr(dialing, "_REMEMBERED", 0.01)
    nodes.add("e")
    await trio.sleep(0.02)
    assert "e" not in nodes


async def test_it_breaks() -> None:
    async with talking(direct=True) as (shim, peer):
        assert peer.stream is not None
        await peer.stream.aclose()
        with trio.fail_after(5):
            await shim.lost.wait()
        with pytest.raises(ShimLost, match="its direct connection"):
            await shim.call("start", id="c")


@pytest.mark.parametrize("nonsense", [b"\xff" * 20, frame(CALL, 0, b"{}"), frame(5, 3, b"12345")])
async def test_nonsense(nonsense: bytes) -> None:
    async with talking(direct=True) as (shim, peer):
        assert peer.stream is not None
        await peer.stream.send_all(nonsense)
        with trio.fail_after(5):
            await shim.lost.wait()


async def test_streams_over_srun_though_there_is_a_connection() -> None:
    async with talking(direct=True) as (shim, peer):
        await peer.control[1].send_all(frame(4, 1, b"x"))
        with trio.fail_after(5):
            await shim.lost.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        return port


async def test_ports_of_a_range() -> None:
    port = free_port()
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        await greeted(shim, peer)
        call, outcome = await asked(shim, peer, nursery, ports=f"{port}-{port}")
        assert {number for _, number in call["addresses"]} == {port}
        assert await peer.dial(call)
        await peer.reply(call)
        await soon(lambda: outcome)


@pytest.mark.parametrize("ports", ["{port}-{port}", "{port}", "nonsense", "70000-70001", "9-1"])
async def test_no_port(ports: str) -> None:
    said = Said()
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        async with played(said) as (shim, peer):
            await greeted(shim, peer)
            assert not await shim.dial(ports.format(port=port))
    assert "streams go over srun" in said


def test_listen_takes_another_port_of_the_range() -> None:
    with listen(None) as taken:
        port = taken.getsockname()[1]
        with listen(f"{port}-{port + 20}") as other:
            assert port < other.getsockname()[1] <= port + 20
        with pytest.raises(NotReached):
            listen(str(port))


def test_listen_without_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def made(family: int = -1, *args: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *args)

    monkeypatch.setattr(socket, "socket", made)
    with listen(None) as sock:
        assert sock.family == socket.AF_INET


async def test_addresses() -> None:
    """A name service is asked only without Slurm's word."""
    slurm = {"SLURM_LAUNCH_NODE_IPADDR": "10.9.8.7", "SLURM_SRUN_COMM_HOST": "10.9.8.7"}
    assert await addresses(slurm, 60001) == [("10.9.8.7", 60001), ("127.0.0.1", 60001)]


async def test_addresses_without_slurm() -> None:
    found = await addresses({"SLURM_LAUNCH_NODE_IPADDR": ""}, 60001)
    assert found[0] == (socket.gethostname(), 60001)
    assert found[-1] == ("127.0.0.1", 60001)
    assert len(set(found)) == len(found)


async def test_addresses_without_the_name_service(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    hosts = [host for host, _ in await addresses({}, 1)]
    assert hosts == [socket.gethostname(), "127.0.0.1"]
