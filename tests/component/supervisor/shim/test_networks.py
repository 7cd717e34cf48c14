"""A container's own network on its node, and what it reaches of its engine's."""

import contextlib
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.shim.network import SAME, host
from scrun.supervisor.wire.frames import DATA, END
from tests.component.supervisor.shim.conftest import MakeShim, without_crun
from tests.component.supervisor.shim.test_beginning import resume
from tests.component.supervisor.shim.test_containers import of_a_pod
from tests.harness import users
from tests.harness.bundle import make_config, map_user
from tests.harness.networks import answered, full_server
from tests.harness.networks import tun as tun
from tests.harness.shim import PURE_V2, Shim
from tests.harness.wait import wait_until, wait_while

NETWORK, OWN, ADDRESS = "10.89.7.5/24", "10.89.7.5", "10.89.7.9"
CONNECT = f"nc {ADDRESS} 80 < /dev/null"


def begin(shim: Shim, script: str, **options: Any) -> dict[str, Any]:
    """Run a script in a container with a network of its own; return the reply to its creation."""
    linux = of_a_pod(shim, "pid", "ipc", "uts")
    reply = shim.create(
        "a", "sh", "-c", script, networks=[NETWORK], linux=linux, hostname="", **options
    )
    assert "error" not in reply, reply
    assert not reply["why"], reply
    assert shim.call("start", id="a") == {}
    return reply


def accepted(shim: Shim) -> dict[str, Any]:
    return shim.call("accept", container="a")


def refuse_one(shim: Shim) -> None:
    assert shim.call("refuse", container="a", number=accepted(shim)["number"]) == {}


def attached(shim: Shim, number: int) -> int:
    stream = shim.streams("stdin")["stdin"]
    assert shim.call("attach", container="a", number=number, stream=stream) == {}
    return stream


PASTA_ALONE = """
mount --bind /dev/null /usr/bin/slirp4netns
mount -t tmpfs none /mnt
cp /usr/bin/pasta /mnt/pasta
printf '#!/bin/sh\\nexec 3<&- 4<&- 5<&-\\nexec /mnt/pasta "$@"\\n' >/mnt/closing
chmod 755 /mnt/closing
mount --bind /mnt/closing /usr/bin/pasta
exec "$@"
"""
"""A node with pasta, which closes what it is given from 3 on, as it does since 2024."""


@pytest.fixture(params=["root-slirp4netns", "user-slirp4netns", "root-pasta", "user-pasta"])
def shim(request: pytest.FixtureRequest, make_shim: MakeShim) -> Shim:
    """One with this program to connect networks."""
    who, program = request.param.split("-")
    hide = ("unshare", "--mount", "sh", "-ec", PASTA_ALONE, "sh") if program == "pasta" else ()
    user = users.root() if who == "root" else users.ordinary()
    shim = make_shim(user=user, place=(*PURE_V2, *hide))
    shim.env = {"program": program}
    return shim


def test_it_is_connected(shim: Shim) -> None:
    """It reaches the node, and has a name server; its connection ends with it."""
    with socket.create_server((address_of_node(), 0)) as server:
        host, port = server.getsockname()
        streams = shim.streams("stdout", "stderr")
        script = f"nc {host} {port} < /dev/null; ip addr show tap0; sleep 1000"
        assert begin(shim, script, streams=streams)["network"] == shim.env["program"]
        server.settimeout(10)
        with server.accept()[0]:
            pass
    shim.until("its address", lambda: b"inet " in shim.output[streams["stdout"]])
    programs = connectors(shim)
    assert programs
    assert shim.call("delete", id="a") == {}
    wait_while("what connected it", lambda: programs & connectors(shim))


@pytest.mark.parametrize("others", ["", "nameserver 192.0.2.53\n"])
def test_the_name_server_of_pasta_on_the_submit_host(
    others: str, shim: Shim, rootfs: Path
) -> None:
    """It is nowhere else: each question would wait for it first."""
    file = Path(rootfs.parent, "resolv.conf")
    file.write_text(f"search example.org\nnameserver 169.254.1.1\n{others}")
    there = {"destination": "/etc/resolv.conf", "source": str(file), "type": "bind"}
    mounts = [*make_config(())["mounts"], {**there, "options": ["bind"]}]
    config: dict[str, Any] = {"mounts": mounts}
    if shim.user.uid:
        map_user({"linux": {"namespaces": []}, **config}, shim.user)
    streams = shim.streams("stdout")
    (rootfs / "etc" / "resolv.conf").touch()
    begin(shim, "cat /etc/resolv.conf", streams=streams, mounts=config["mounts"])
    said = shim.finish(streams["stdout"]).decode()
    assert said == f"search example.org\n{others or 'nameserver 10.0.2.3'}".rstrip() + "\n"


def test_clients_from_outside(shim: Shim) -> None:
    """They are not taken for some on the loopback, which servers trust and some listen at only."""
    httpd = "httpd -p {}:{} -h /etc"
    servers = [httpd.format("127.0.0.1", 81), httpd.format("0.0.0.0", 82)]
    begin(shim, f"{'; '.join(servers)}; sleep 1000")

    wait_until("a server", lambda: connects(shim, 82, outside=True))
    assert connects(shim, 82)
    assert connects(shim, 81)
    assert not connects(shim, 81, outside=True)


def test_a_server_at_its_name(filtering: Shim) -> None:
    """Engines' files say that its host's name is its address in the engine's network."""
    shim, streams = filtering, filtering.streams("stdout")
    asks = f"printf 'GET /group HTTP/1.0\\r\\n\\r\\n' | nc {OWN} 82 | tail -n 1"
    begin(shim, f"httpd -p {OWN}:82 -h /etc; {asks}; sleep 1000", streams=streams)
    shim.until("an answer", lambda: shim.output[streams["stdout"]] == b"root:x:0:\n")
    assert connects(shim, 82, outside=True)
    assert shim.call("network", id="a", networks=[], files={})["why"] == ""
    assert not connects(shim, 82, outside=True)


def connects(shim: Shim, port: int, *, outside: bool = False) -> bool:
    """Whether a server of a container's takes a connection."""
    stream = shim.streams("stdin")["stdin"]
    reply = shim.call("connect", container="a", port=port, stream=stream, outside=outside)
    shim.call("disconnect", stream=stream)
    return "error" not in reply


def test_bytes_come_before_the_connection(direct: Shim) -> None:
    """They wait for that; and who has ended in both directions is forgotten, unasked."""
    begin(direct, "nc -ll -p 80 -e cat")
    wait_until("a server", lambda: connects(direct, 80))
    stream = direct.streams("stdin")["stdin"]
    for _ in range(3):  # of the same number, so nothing of the one before is there
        call = direct.ask("connect", container="a", port=80, stream=stream, outside=False)
        direct.send(DATA, stream, b"early")
        direct.send(END, stream)
        assert direct.answer(call) == {}
        assert direct.finish(stream) == b"early"
        direct.finished.clear()
        direct.output[stream].clear()


def test_a_server_that_is_slow_to_accept(direct: Shim) -> None:
    """Connections of other containers are made meanwhile."""
    direct.create("a", "sleep", "60", linux=of_a_pod(direct, "pid", "ipc", "uts"))
    assert direct.call("start", id="a") == {}
    stream = direct.streams("stdin")["stdin"]
    with full_server() as (server, port):
        call = direct.ask("connect", container="a", port=port, stream=stream, outside=False)
        direct.send(DATA, stream, b"early")
        with socket.create_server(("127.0.0.1", 0)) as other:
            assert connects(direct, other.getsockname()[1])
        assert answered(server) == b"early"
        assert direct.answer(call) == {}
        direct.call("disconnect", stream=stream)


def test_what_makes_sockets_is_killed(direct: Shim) -> None:
    """The next connection is by another one."""
    begin(direct, "httpd -f -p 80 -h /etc")
    before = children_of(direct)
    wait_until("a server", lambda: connects(direct, 80))
    [maker] = children_of(direct) - before
    os.kill(maker, signal.SIGKILL)
    wait_while("the one before", lambda: maker in children_of(direct))
    assert connects(direct, 80)


def test_a_container_that_has_ended(direct: Shim) -> None:
    """Its ports are not the node's, where another user may listen."""
    begin(direct, "true")
    direct.ended("a")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as at:
        assert not connects(direct, server.getsockname()[1])
        assert reach(direct, at) == {"error": "it has ended"}


def test_its_supervisor_is_on_this_machine(direct: Shim) -> None:
    """It gets what makes sockets in the container's network, and that ends with the container."""
    begin(direct, "httpd -f -p 127.0.0.1:80 -h /etc")
    before = children_of(direct)
    with reached(direct) as line:
        assert line.recv(1)
        [maker] = children_of(direct) - before

        def serves() -> bool:
            line.sendall(bytes([socket.AF_INET]))
            _, [fd], _, _ = socket.recv_fds(line, 1, 1)
            with socket.socket(fileno=fd) as client:
                return client.connect_ex(("127.0.0.1", 80)) == 0

        wait_until("a server", serves)
        assert direct.call("delete", id="a") == {}
        wait_while("what makes sockets", lambda: maker in children_of(direct))
        assert line.recv(1) == b""


def test_its_supervisor_goes(direct: Shim) -> None:
    """What makes sockets for it, too."""
    begin(direct, "sleep 1000")
    before = children_of(direct)
    with reached(direct) as line:
        assert line.recv(1)
    wait_while("what made sockets", lambda: children_of(direct) - before)


@pytest.mark.parametrize("other", [{"place": "elsewhere"}, {"pid": os.getppid()}, {"name": "no"}])
def test_who_is_not_its_supervisor(other: dict[str, Any], direct: Shim) -> None:
    """Another machine; who has taken the name of a supervisor that has died; nobody."""
    begin(direct, "sleep 1000")
    before = children_of(direct)
    with socket.socket(socket.AF_UNIX) as listener:
        reply = reach(direct, listener, **other)
        listener.settimeout(0.1)
        if "pid" in other:
            with listener.accept()[0] as sock:
                assert sock.recv(1) == b""
        else:
            with pytest.raises(TimeoutError):
                listener.accept()
    assert reply == ({"error": "Connection refused"} if "name" in other else {"way": ""})
    wait_while("what made sockets", lambda: children_of(direct) - before)


def reach(shim: Shim, listener: socket.socket, **other: object) -> dict[str, Any]:
    listener.bind("")
    listener.listen()
    name = listener.getsockname()[1:].decode()
    fields = {"place": host(SAME), "pid": os.getpid(), "name": name, **other}
    return shim.call("reach", container="a", **fields)


@contextlib.contextmanager
def reached(shim: Shim) -> Iterator[socket.socket]:
    """The line to what makes sockets in the container's network."""
    with socket.socket(socket.AF_UNIX) as listener:
        assert reach(shim, listener) == {"way": "line"}
        with listener.accept()[0] as sock:
            _, [fd], _, _ = socket.recv_fds(sock, 1, 1)
    with socket.socket(fileno=fd) as line:
        line.settimeout(10)
        yield line


def test_what_connects_it_is_killed(shim: Shim) -> None:
    """Another one takes its place, and the ways to its engine's networks are as before."""
    streams = shim.streams("stdout")
    begin(shim, f"while sleep 0.1; do ip addr show tap0 2>&1; {CONNECT}; done", streams=streams)
    [killed] = connectors(shim)
    refuse_one(shim)
    os.kill(killed, signal.SIGKILL)
    wait_until("another one", lambda: connectors(shim) - {killed})
    shim.output.clear()
    refuse_one(shim)
    refuse_one(shim)
    wait_until("its address", lambda: shim.pump(1) and b"inet " in shim.output[streams["stdout"]])
    assert shim.call("delete", id="a") == {}
    wait_while("what connected it", lambda: connectors(shim))


def children_of(shim: Shim) -> set[int]:
    pid = shim.process.pid
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def connectors(shim: Shim) -> set[int]:
    """The programs that connect networks of a shim's containers."""
    found = set()
    for pid in children_of(shim):
        with contextlib.suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/comm").read_text().startswith(("slirp4netns", "pasta", "passt")):
                found.add(pid)
    return found


def address_of_node() -> str:
    """An address of this machine that is not its loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))
        address: str = sock.getsockname()[0]
        return address


def test_another_supervisor_gets_connections(direct: Shim) -> None:
    """One that nobody carries yet, and one that arrives while there is no supervisor."""
    begin(direct, f"{CONNECT} & sleep 1; {CONNECT} & wait")
    first = accepted(direct)
    assert first["addresses"] == [[ADDRESS, 80]]
    direct.ask("accept", container="a")  # it waits for the next
    direct.die()
    time.sleep(2)
    resume(direct, ["a"], {})
    assert accepted(direct) == first
    second = accepted(direct)
    for arrived in (first, second):
        stream = attached(direct, arrived["number"])
        direct.write(stream, b"")
    assert direct.ended("a") == 0


@pytest.mark.parametrize(("descriptors", "count"), [(60, 100), (1024, 300)])
def test_more_connections_than_room(descriptors: int, count: int, make_shim: MakeShim) -> None:
    """They wait, and are not reset; the shim does not turn round and round meanwhile."""
    shim = make_shim()
    begin(shim, f"for i in $(seq {count}); do {CONNECT} & done; wait; echo all > /dev/null")
    resource.prlimit(shim.process.pid, resource.RLIMIT_NOFILE, (descriptors, 1024))
    time.sleep(2)
    before = processor_time(shim)
    time.sleep(2)
    assert processor_time(shim) - before < 0.5
    for _ in range(count):
        refuse_one(shim)
    assert shim.ended("a") == 0


def processor_time(shim: Shim) -> float:
    """Seconds that a shim has used."""
    *_, user, system = Path(f"/proc/{shim.process.pid}/stat").read_text().split()[:15]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("runtime", ["crun", "runc"])
@pytest.mark.parametrize("who", ["root", "user"])
def test_an_exec_has_its_network(
    who: str, runtime: str, make_shim: MakeShim, rootfs: Path
) -> None:
    """runc looks up in config.json what an exec enters, where it is not."""
    env = {"PATH": without_crun(rootfs)} if runtime == "runc" else {}
    user = users.root() if who == "root" else users.ordinary()
    shim = make_shim(env, user, place=PURE_V2)
    begin(shim, "sleep 1000")
    streams = shim.streams("stdout")
    assert "pid" in shim.exec("b", "a", "cat", "/proc/net/dev", streams=streams)
    assert shim.ended("b") == 0
    assert b"tap0" in shim.finish(streams["stdout"])


@pytest.fixture(params=["nft", "iptables"])
def filtering(request: pytest.FixtureRequest, make_shim: MakeShim) -> Shim:
    """One with this program for rules."""
    hide = ("unshare", "--mount", "sh", "-ec", 'mount --bind /dev/null "$(which nft)"; exec "$@"')
    place = (*PURE_V2, *((*hide, "sh") if request.param == "iptables" else ()))
    return make_shim(user=users.root(), place=place)


def test_what_is_not_carried_is_refused(filtering: Shim) -> None:
    """Else it left for the node's network, where nobody answers, or somebody else."""
    shim, streams = filtering, filtering.streams("stdout")
    by_udp = f"tftp -g -r x -l /dev/null {ADDRESS}"
    begin(shim, f"{by_udp} 2>&1; {CONNECT}", streams=streams)
    assert accepted(shim)["addresses"] == [[ADDRESS, 80]]  # what is carried still is
    assert shim.output[streams["stdout"]] == b"tftp: sendto: Operation not permitted\n"


def test_other_networks_than_before(filtering: Shim, rootfs: Path) -> None:
    """It reaches those alone that its engine has connected it to, and finds new names."""
    shim = filtering
    wait = "until grep -q db /etc/hosts; do sleep 0.1; done"
    again = f"nc -w 1 {ADDRESS} 80; nc 10.89.8.9 80"
    script = f"{CONNECT} & {wait}; cat /etc/hosts /etc/resolv.conf; {again}; sleep 1000"
    mounts = [*make_config(())["mounts"]]
    for name in ("hosts", "resolv.conf"):
        (rootfs / "etc" / name).touch()
        source = Path(rootfs.parent, name)
        source.write_text("nowhere\n")
        where = {"destination": f"/etc/{name}", "source": str(source), "type": "bind"}
        mounts.append({**where, "options": ["bind"]})
    files = {"/etc/hosts": "", "/etc/resolv.conf": "nameserver 169.254.1.1\n"}
    streams = shim.streams("stdout")
    begin(shim, script, files=files, mounts=mounts, streams=streams)
    assert accepted(shim)["addresses"] == [[ADDRESS, 80]]
    late = {"/etc/hosts": "10.89.8.9 db\n", "/etc/resolv.conf": "nameserver 169.254.1.1\n"}
    for networks, changed in (([], files), ([NETWORK], {}), (["10.89.8.0/24"], late)):
        reply = shim.call("network", id="a", networks=networks, files=changed)
        assert reply == {"network": "slirp4netns", "why": ""}
    assert accepted(shim)["addresses"] == [["10.89.8.9", 80]]
    said = b"10.89.8.9 db\nnameserver 10.0.2.3\n"
    shim.until("the files", lambda: said in shim.output[streams["stdout"]])


def create_late(shim: Shim, look: Sequence[str], streams: Mapping[str, int]) -> dict[str, Any]:
    linux = of_a_pod(shim, "pid", "ipc", "uts", "network")
    return shim.create(
        "a", *look, network="late", networks=[], linux=linux, hostname="", streams=streams
    )


def test_a_network_that_comes_late(shim: Shim) -> None:
    """The container is made in it, and has a loopback; it is connected before its start."""
    streams = shim.streams("stdout")
    look = ("cat", "/proc/net/dev")
    made = create_late(shim, look, streams)
    assert "pid" in made, made
    reply = shim.call("network", id="a", networks=[])
    assert (reply["network"], reply["why"]) == (shim.env["program"], "")
    assert shim.call("start", id="a") == {}
    assert shim.ended("a") == 0
    assert b"tap0" in shim.finish(streams["stdout"])


def test_a_network_that_never_comes(shim: Shim) -> None:
    streams = shim.streams("stdout")
    look = ("sh", "-c", "ip addr show lo; cat /proc/net/dev")
    create_late(shim, look, streams)
    assert shim.call("start", id="a") == {}
    assert shim.ended("a") == 0
    said = shim.finish(streams["stdout"])
    assert b"inet 127.0.0.1/8" in said
    assert b"tap0" not in said
    assert not connectors(shim)
