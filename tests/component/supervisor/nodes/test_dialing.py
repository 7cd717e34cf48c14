"""The direct connection: who gets it, who does not, and what is done without one."""

import json
import os
import re
import socket
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from scrun.supervisor.nodes import beginning as beginning_module
from scrun.supervisor.nodes import connection as connection_module
from scrun.supervisor.nodes import dialing
from scrun.supervisor.nodes.beginning import LONGEST_ALONE, Direct, begin_call, begun
from scrun.supervisor.nodes.connection import ShimLost
from scrun.supervisor.nodes.dialing import NotReached, Unreached, addresses, listen
from scrun.supervisor.shim import door
from scrun.supervisor.wire.frames import CALL, EVENT, RANDOM, frame, knock, proof
from tests.harness.peer import (
    Said,
    beginning,
    connection,
    exactly,
    played,
    prove,
    silent_connection,
    soon,
    talking,
)

pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


async def test_it_is_used() -> None:
    said = Said()
    async with talking(direct=True, said=said) as (_, peer):
        assert peer.stream is not None
        sock = peer.stream.socket
        assert sock.getpeername()[1] > 0
    assert said.lines == []


async def test_the_call() -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery, patience=0.5, alone=1e9)
        assert len(call["secret"]) == 64
        assert call["patience"] == 0.5
        assert call["alone"] == LONGEST_ALONE
        assert call["host"] == socket.gethostname()
        assert not call["needed"]
        await peer.come(call, direct=False)
        await soon(lambda: hellos)
        assert not shim.is_direct


async def test_the_call_is_short() -> None:
    """srun holds back what is longer."""
    secret = b"x" * RANDOM
    call = begin_call(65535, secret, Direct(True, None), "/usr/local/bin/" + "x" * 100)
    assert len(json.dumps(call)) < 700


async def test_a_failure_is_said_once() -> None:
    said = Said()
    async with talking(said=said):
        pass
    assert said.lines == [("info", "node1: streams go over srun: it was not wanted")]


async def test_where_slurm_encrypts_its_connections() -> None:
    said = Said()
    async with played(said) as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery, said=said, allowed=False)
        assert call["port"] == 0
        await peer.come(call, direct=False)
        await soon(lambda: hellos)
    assert said.lines == [("info", "node1: streams go over srun: Slurm encrypts them")]


@pytest.mark.parametrize("direct", [True, False])
async def test_nobody_listens_afterwards(*, direct: bool) -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery)
        await peer.come(call, direct=direct)
        await soon(lambda: hellos)
        with pytest.raises(OSError, match="refused"):
            silent_connection(call)


async def test_a_wrong_secret() -> None:
    said = Said()
    async with played(said) as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery, said=said)
        for _ in range(3):
            assert not await peer.dial(call, secret=b"wrong" * 6)
        assert not shim.is_direct
        await peer.come(call)
        await soon(lambda: hellos)
        assert shim.is_direct
    first, last = (text for _, text in said.lines)
    assert first.endswith(f"connections that are not the shim's: 1 of user {os.getuid()}")
    assert sum(map(int, re.findall(r"(\d+) of ", last))) == 3


@pytest.mark.parametrize("parts", [[b""], [b"x"], [b"x" * 32, b"y"], [b"x" * 32, b"y" * 32]])
async def test_others_who_connect(parts: list[bytes]) -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery)
        with silent_connection(call) as other:
            for part in parts:
                other.sendall(part)
            if len(parts) == 1:
                other.shutdown(socket.SHUT_WR)
            await peer.come(call)
            await soon(lambda: hellos)


@pytest.mark.covers("security say again what was heard")
async def test_a_copied_proof_is_no_use() -> None:
    """What was heard cannot be said again: it is known, and our random bytes differ."""
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, _ = await beginning(shim, peer, nursery)
        secret = bytes.fromhex(call["secret"])
        heard = knock(secret, os.urandom(RANDOM // 2))
        streams = [await connection(call) for _ in range(2)]
        await streams[0].send_all(heard)
        both = heard + await exactly(streams[0], RANDOM)
        await streams[1].send_all(heard + proof(secret, b"shim", both))
        with trio.fail_after(10), suppress(trio.BrokenResourceError):
            assert await streams[1].receive_some(1) == b""
        await peer.come(call)
        for stream in streams:
            await stream.aclose()


async def test_silent_ones_delay_nobody() -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, _ = await beginning(shim, peer, nursery)
        others = [await connection(call) for _ in range(2 * door.MOST_UNKNOWN)]
        with trio.fail_after(5):
            await peer.come(call)
        for other in others:
            await other.aclose()


async def test_the_second_one_who_knows_is_not_taken() -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, _ = await beginning(shim, peer, nursery)
        second = await connection(call)
        assert await peer.dial(call)
        await prove(second, bytes.fromhex(call["secret"]))
        await peer.ask()
        await peer.hello()
        assert await second.receive_some(1) == b""
        await second.aclose()


async def test_there_is_no_second_one_beside_the_first() -> None:
    """Who knows the secret and comes twice is not taken for one who is still to come."""
    secret = os.urandom(32)
    async with dialing.Listener(None, secret, Said().journal).listening() as listener:
        call = {"port": listener.port}
        first, second = await connection(call), await connection(call)
        assert await prove(first, secret)
        os.close((await listener.connected()).fd)
        assert await prove(second, secret)
        with trio.fail_after(10):
            assert await second.receive_some(1) == b""
        with trio.move_on_after(0.2) as waited:
            await listener.connected()
        assert waited.cancelled_caught
        for stream in (first, second):
            await stream.aclose()


@pytest.mark.parametrize("before", ["code", "hello"])
async def test_it_breaks_before_either_has_come(before: str) -> None:
    """Without its code the shim asks for that over srun, and is told nothing twice."""
    said, why = Said(), "reset" if before == "code" else "its direct connection: it ended"
    async with played(said) as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery, said=said)
        assert await peer.dial(call)
        code = await peer.ask()
        assert peer.stream is not None
        await peer.stream.aclose()
        peer.stream = None
        if before == "code":
            assert await peer.ask(error="reset") == code
        else:
            await soon(lambda: not shim.is_direct)
        await peer.hello()
        await soon(lambda: hellos)
        assert not shim.is_direct
        assert not shim.lost.is_set()
    assert said.lines == [("info", f"node1: streams go over srun: {why}")]


async def test_it_does_not_answer_before_the_code_has_come() -> None:
    """Nothing comes through: the first connection is closed as soon as srun is used."""
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery)
        assert await peer.dial(call)
        await peer.ask()
        first, peer.stream = peer.stream, None
        assert first is not None
        await peer.ask(error="the shim's code did not arrive")
        with trio.fail_after(5):
            assert await first.receive_some(1) == b""
        await first.aclose()
        await peer.hello()
        await soon(lambda: hellos)
        assert not shim.is_direct


async def test_a_connection_that_is_not_used_ends() -> None:
    """It was proved while the shim asked over srun, and nobody has read from it yet."""
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery)
        assert await peer.dial(call)
        await soon(lambda: shim._direct_scope is not None)
        shim._direct_scope = None
        first, peer.stream = peer.stream, None
        assert first is not None
        await peer.ask(error="no answer")
        await peer.hello()
        await soon(lambda: hellos)
        await first.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert not shim.lost.is_set()
        assert not shim.is_direct


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("after_hello", [True, False])
async def test_who_asks_twice(*, direct: bool, after_hello: bool) -> None:
    """Over srun it is lost; over a connection it may still come over srun."""
    async with played() as (shim, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def begin() -> None:
            with suppress(ShimLost):
                await begun(shim, Direct(True, None), Said().journal, "", "")

        call = await peer.call("begin")
        if direct:
            assert await peer.dial(call)
        await peer.ask()
        if after_hello:
            await peer.hello()
        await peer.event(event="code", python="")
        with trio.fail_after(5), suppress(EOFError):
            while await peer.frame():
                pass
        assert shim.lost.is_set() is (after_hello or not direct)
        nursery.cancel_scope.cancel()


async def test_a_shim_that_never_comes() -> None:
    async with played() as (shim, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def begin() -> None:
            with pytest.raises(ShimLost, match="it ended"):
                await begun(shim, Direct(True, None), Said().journal, "", "")

        await peer.call("begin")
        await peer.close()
    assert shim.lost.is_set()


async def test_code_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> bytes:
        raise PermissionError(13, "Permission denied", "/opt/scrun/shim/main.py")

    monkeypatch.setattr(connection_module, "code", fail)
    monkeypatch.setattr(connection_module, "known_code", lambda _: None)
    async with played() as (shim, peer), trio.open_nursery() as nursery:

        @nursery.start_soon
        async def begin() -> None:
            with pytest.raises(ShimLost, match=r"code cannot be read: .*Permission denied"):
                await begun(shim, Direct(True, None), Said().journal, "", "")

        await peer.call("begin")
        await peer.event(event="code", python="")


@pytest.mark.covers("security keep the shim from connecting")
async def test_a_node_that_does_not_reach_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first container waits for that."""
    monkeypatch.setattr(beginning_module, "_unreached", Unreached())
    said = Said()
    for place, port in (("wall", True), ("wall", False), ("another", True), ("", True)):
        async with played(said) as (shim, peer), trio.open_nursery() as nursery:
            call, hellos = await beginning(
                shim, peer, nursery, said=said, place=place, patience=0.1
            )
            assert bool(call["port"]) is port
            waited = 0.1 if place == "wall" else 0.0
            await peer.ask(error="no answer", waited=waited)
            await peer.hello()
            await soon(lambda: hellos)  # noqa: B023 (it is called at once)
    assert "streams go over srun: no answer" in said
    assert "streams go over srun: as before" in said


async def test_a_node_that_strangers_kept_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next container tries again: nobody may be in its way then."""
    unreached = Unreached()
    monkeypatch.setattr(beginning_module, "_unreached", unreached)
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery, place="wall", patience=0.1)
        with silent_connection(call):
            await trio.testing.wait_all_tasks_blocked()
            await peer.ask(error="no answer", waited=0.1)
            await peer.hello()
            await soon(lambda: hellos)
    assert "wall" not in unreached


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


@pytest.mark.parametrize("nonsense", [b"\xff" * 25, frame(CALL, 0, b"{}" * 9)])
async def test_nonsense(nonsense: bytes) -> None:
    async with talking(direct=True) as (shim, peer):
        assert peer.stream is not None
        await peer.stream.send_all(nonsense)
        with trio.fail_after(5):
            await shim.lost.wait()


async def test_what_comes_over_srun_though_there_is_a_connection() -> None:
    """What a site's script writes there does no harm; an event in the wrong place is one."""
    said = Said()
    async with talking(direct=True, said=said) as (shim, peer):
        await peer.control[1].send_all(b"epilog says\n")
        await trio.testing.wait_all_tasks_blocked()
        assert not shim.lost.is_set()
        await peer.control[1].send_all(frame(EVENT, 0, b'{"event": "signal", "number": 1}'))
        with trio.fail_after(5):
            await shim.lost.wait()
    assert said.lines == [("verbose", "the step's output: epilog says")]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        return port


async def test_ports_of_a_range() -> None:
    port = free_port()
    async with played() as (shim, peer), trio.open_nursery() as nursery:
        call, hellos = await beginning(shim, peer, nursery, ports=f"{port}-{port}")
        assert call["port"] == port
        await peer.come(call)
        await soon(lambda: hellos)


@pytest.mark.parametrize("ports", ["{port}-{port}", "{port}", "nonsense", "70000-70001", "9-1"])
async def test_no_port(ports: str) -> None:
    said = Said()
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        async with played(said) as (shim, peer), trio.open_nursery() as nursery:
            ports = ports.format(port=port)
            call, hellos = await beginning(shim, peer, nursery, said=said, ports=ports)
            assert call["port"] == 0
            await peer.come(call, direct=False)
            await soon(lambda: hellos)
            assert not shim.is_direct
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
