"""scrun forward: ports of a container, at ports of this machine."""

import contextlib
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrun.protocol import wire
from tests.conftest import MakeSite
from tests.harness.adoption import kill_supervisor
from tests.harness.life import Life
from tests.harness.networks import free_port
from tests.harness.nightly import nightly
from tests.harness.processes import descendants, shims_of
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.users import other
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.shares_sites

FAR = "far-user"
"""On a node that passes for another machine than this one (`tools/slurm-cluster`)."""

PLACES = pytest.mark.parametrize(
    "place", ["local-root", "local-user", "slurm-root", "slurm-user", FAR]
)
THREE = pytest.mark.parametrize("place", ["local-user", "slurm-user", FAR])
SHIM = '[slurm]\nlaunch = "shim"\n'

_HTTP = "echo up; httpd -f -p {port} -h /etc"
_ANSWERS = 'echo up; nc -ll -p {port} -e sh -c "cat; echo that is all"'
GET = b"GET /group HTTP/1.0\r\n\r\n"
GROUP = b"root:x:0:\n"


class Forward:
    """A `scrun forward` that runs."""

    def __init__(self, site: Site, life: Life, *words: str) -> None:
        self.process = site.popen("forward", life.id, *words)
        assert self.process.stdout
        self.line = self.process.stdout.readline().decode()
        if not self.line:
            raise AssertionError(self.process.communicate(timeout=20)[1].decode())
        self.port = _port(self.line)

    def connect(self) -> socket.socket:
        return _connected(self.port)

    def asks(self, text: bytes) -> bytes:
        """Send all, end, and return what is answered until the end."""
        with self.connect() as client:
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
            return read_all(client)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=20)


def _port(line: str) -> int:
    return int(line.partition(" ")[0].rpartition(":")[2])


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def _fill(client: socket.socket) -> None:
    """Send until nothing is taken any more."""
    with contextlib.suppress(TimeoutError):
        while True:
            client.send(bytes(1 << 20))


def told_to_end(life: Life) -> None:
    life.kill("KILL")
    life.wait(30)


def read_all(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(1 << 20):
        parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def forwarded(site: Site, life: Life, *words: str) -> Iterator[Forward]:
    forward = Forward(site, life, *words)
    try:
        yield forward
    finally:
        forward.end()


def serving(
    site: Site, script: str, *, own_network: bool = True, **values: Any
) -> tuple[Life, int]:
    """Run a server; return it and its port."""
    port = free_port()
    config = site.config("sh", "-c", script.format(port=port, **values))
    if not own_network:
        namespaces = config["linux"]["namespaces"]
        config["linux"]["namespaces"] = [one for one in namespaces if one["type"] != "network"]
    life = site.life(config=config).created(60).start(60).says("up", 60)
    return life, port


@pytest.fixture
def site(make_site: MakeSite, place: str) -> Site:
    if place != FAR:
        return make_site(place, settings=SHIM)
    return make_site("slurm-user", settings=f'{SHIM}[slurm.defaults]\njob_nodelist = "node2"\n')


@pytest.mark.both_engines
@pytest.mark.covers("scrun forward")
@PLACES
@pytest.mark.parametrize("own_network", [True, False])
def test_a_page(site: Site, *, own_network: bool) -> None:
    life, port = serving(site, _HTTP, own_network=own_network)
    with forwarded(site, life, f"0:{port}") as forward:
        assert forward.line == f"127.0.0.1:{forward.port} -> {port}\n"
        for _ in range(3):
            answer = forward.asks(GET)
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert answer.endswith(GROUP)
        life.kill("KILL")
        assert forward.process.wait(20) == 0
        assert forward.process.communicate()[1] == b""
    life.wait()
    life.delete()


@PLACES
def test_both_directions_end_by_themselves(site: Site) -> None:
    """A client that has said all still gets the answer, also a large one."""
    life, port = serving(site, _ANSWERS)
    with forwarded(site, life, f"0:{port}") as forward:
        assert forward.asks(b"hello\n") == b"hello\nthat is all\n"
        with forward.connect() as client:
            client.sendall(b"first\n")
            assert client.recv(100) == b"first\n"  # it flows before the end
            client.shutdown(socket.SHUT_WR)
            assert read_all(client) == b"that is all\n"
        text = os.urandom(1 << 16) * 256
        with forward.connect() as client:
            sending = threading.Thread(target=_send_all, args=(client, text))
            sending.start()
            assert read_all(client) == text + b"that is all\n"
            sending.join()
    told_to_end(life)


def _send_all(client: socket.socket, text: bytes) -> None:
    client.sendall(text)
    client.shutdown(socket.SHUT_WR)


@THREE
def test_a_port_that_nobody_listens_on(site: Site) -> None:
    """A reset, as from the server's machine, and one line for as long as that stays so."""
    life, port = serving(site, _HTTP)
    closed = 9
    with forwarded(site, life, f"0:{port}", f"0:{closed}") as forward:
        assert forward.process.stdout
        second = forward.process.stdout.readline().decode()
        assert second.endswith(f" -> {closed}\n")
        for _ in range(3):
            with pytest.raises(ConnectionResetError), _connected(_port(second)) as client:
                client.recv(1)
        assert forward.asks(GET).endswith(GROUP)
        forward.process.send_signal(signal.SIGTERM)
        said = forward.process.communicate(timeout=20)[1].decode()
        assert said == f"scrun: container {life.id}: port {closed}: Connection refused\n"
    told_to_end(life)


@pytest.mark.parametrize("place", [FAR])
def test_a_node_that_is_cut_off(site: Site) -> None:
    """A reset within some seconds, and no other harm: when it is there again, so is the server."""
    life, port = serving(site, _HTTP)
    with forwarded(site, life, f"0:{port}") as forward:
        assert forward.asks(GET).endswith(GROUP)
        stopped = shims_of(life.job_id)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(ConnectionResetError), forward.connect() as client:
                client.recv(1)
            assert 4 < time.monotonic() - began < 8
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert forward.asks(GET).endswith(GROUP)
        forward.process.send_signal(signal.SIGTERM)
        said = forward.process.communicate(timeout=20)[1].decode()
        assert said.endswith(f"port {port}: its node has not answered for 5 s\n")
    told_to_end(life)


def test_a_job_on_this_machine(make_site: MakeSite) -> None:
    """Its connections do without its shim."""
    site = make_site("slurm-user", settings=SHIM)
    life, port = serving(site, _HTTP)
    with forwarded(site, life, f"0:{port}") as forward:
        assert forward.asks(GET).endswith(GROUP)
        shims = shims_of(life.job_id)
        [shim] = set(shims) - {child for one in shims for child in descendants(one)}
        os.kill(shim, signal.SIGSTOP)
        try:
            for _ in range(3):
                assert forward.asks(GET).endswith(GROUP)
        finally:
            os.kill(shim, signal.SIGCONT)
    told_to_end(life)


@THREE
def test_a_server_on_the_other_loopback(site: Site) -> None:
    life, port = serving(site, "echo up; httpd -f -p [::1]:{port} -h /etc")
    with forwarded(site, life, f"0:{port}") as forward:
        assert forward.asks(GET).endswith(GROUP)
    told_to_end(life)


@THREE
def test_a_server_that_takes_nothing(site: Site) -> None:
    """It holds up its own client, and nobody else."""
    life, port = serving(site, "echo up; nc -ll -p {port} -e sleep 1000 & httpd -f -p 8 -h /etc")
    with forwarded(site, life, f"0:{port}", "0:8") as forward:
        assert forward.process.stdout
        pages = _port(forward.process.stdout.readline().decode())
        with forward.connect() as client:
            client.settimeout(1)
            _fill(client)
            with _connected(pages) as other:
                other.sendall(GET)
                assert read_all(other).endswith(GROUP)
    told_to_end(life)


@THREE
def test_a_client_that_goes(site: Site) -> None:
    """The server hears of it, and the next one is served."""
    life, port = serving(site, "echo up; nc -ll -p {port} -e cat /dev/zero")

    def servers() -> int:
        return site.must("exec", life.id, "ps").count("cat /dev/zero")

    before = servers()
    with forwarded(site, life, f"0:{port}") as forward:
        for _ in range(2):
            with forward.connect() as client:
                assert client.recv(1 << 20)
                assert servers() > before
            wait_while("the server", lambda: servers() > before, 20)
    told_to_end(life)


@THREE
def test_a_burst(site: Site) -> None:
    """More connections than are served at a time: the others wait, and none fails."""
    life, port = serving(site, _HTTP)
    with forwarded(site, life, f"0:{port}") as forward:
        clients = [forward.connect() for _ in range(400)]
        for client in clients:
            client.sendall(GET)
        for client in clients:
            with client:
                assert read_all(client).endswith(GROUP)
    told_to_end(life)


@pytest.mark.nightly
@THREE
def test_many_that_say_nothing(site: Site) -> None:
    """They hold up those of the same forward alone, and cost the supervisor no more than that."""
    life, port = serving(site, _HTTP)
    [supervisor] = site.supervisors()
    with forwarded(site, life, f"0:{port}") as first, forwarded(site, life, f"0:{port}") as other:
        clients = [socket.socket() for _ in range(10_000)]
        for client in clients:
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", first.port))
        for _ in range(3):
            assert other.asks(GET).endswith(GROUP)
        assert life.status == "running"
        assert len(os.listdir(f"/proc/{supervisor}/fd")) < 1000
        for client in clients:
            client.close()
        assert first.asks(GET).endswith(GROUP)
    told_to_end(life)


@THREE
def test_another_user_is_refused(site: Site) -> None:
    life, port = serving(site, _ANSWERS)
    with forwarded(site, life, f"0:{port}") as forward:
        source = (
            "import socket, sys\n"
            "try:\n"
            "    with socket.create_connection(('127.0.0.1', int(sys.argv[1])), 20) as client:\n"
            "        print(client.recv(1))\n"
            "except ConnectionResetError:\n"
            "    print('reset')\n"
        )
        words = [*other().prefix, "/usr/bin/python3", "-c", source, str(forward.port)]
        assert run_program(words, timeout=30, check=True).stdout == "reset\n"
        assert forward.asks(b"mine\n") == b"mine\nthat is all\n"
        forward.process.terminate()
        said = forward.process.communicate(timeout=20)[1].decode()
        assert said.endswith(": a connection of another user was refused\n")
    told_to_end(life)


@pytest.mark.both_engines
@THREE
def test_the_supervisor_is_killed(site: Site) -> None:
    """A connection may break; the next one works, at the same port."""
    life, port = serving(site, _ANSWERS)
    with forwarded(site, life, f"0:{port}") as forward:
        with forward.connect() as client:
            client.sendall(b"a")
            assert client.recv(1) == b"a"
            kill_supervisor(site)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
        assert forward.asks(b"again\n") == b"again\nthat is all\n"
        told_to_end(life)
        assert forward.process.wait(20) == 0


@THREE
def test_in_the_background(site: Site) -> None:
    """It ends with the container."""
    life, port = serving(site, _HTTP)
    url = site.must("forward", "--detach", "--print-url", life.id, f"0:{port}").strip()
    with urllib.request.urlopen(f"{url}group", timeout=20) as answer:
        assert answer.read() == GROUP
    told_to_end(life)
    local = int(url.rpartition(":")[2].strip("/"))
    wait_until("its port is free", lambda: not _listens(local), 20)


def test_ctrl_c(make_site: MakeSite) -> None:
    """It ends without a word, and the container goes on."""
    site = make_site("local-user")
    life, port = serving(site, _HTTP)
    with forwarded(site, life, f"0:{port}") as forward:
        forward.process.send_signal(signal.SIGINT)
        assert forward.process.communicate(timeout=20) == (b"", b"")
        assert forward.process.returncode in (130, -signal.SIGINT)
    assert life.status == "running"
    told_to_end(life)


def _listens(port: int) -> bool:
    try:
        _connected(port).close()
    except OSError:
        return False
    return True


_KILL = """RunTimeKill="runc --root={state} kill %j.%t %s"
RunTimeDelete="runc --root={state} delete --force %j.%t"
RunTimeQuery="runc --root={state} state %j.%t"
"""
_COMMANDS = {
    "RunTimeRun": 'RunTimeRun="runc --root={state} run --bundle=%b %j.%t"\n',
    "RunTimeCreate": """RunTimeCreate="runc --root={state} create --bundle=%b %j.%t"
RunTimeStart="runc --root={state} start %j.%t"
""",
}


@pytest.mark.parametrize("how", [*map(nightly, _COMMANDS)])
def test_what_an_oci_conf_runs_here(make_site: MakeSite, tmp_path: Path, how: str) -> None:
    """Its network is that of a descendant of the command, or of the first process."""
    conf = tmp_path / "oci.conf"
    conf.write_text((_KILL + _COMMANDS[how]).format(state=tmp_path / "state"))
    site = make_site("local-root", settings=f'[local]\noci_conf = "{conf}"\n')
    life, port = serving(site, _HTTP)
    with forwarded(site, life, f"0:{port}") as forward:
        assert forward.asks(GET).endswith(GROUP)
        kill_supervisor(site)
        assert forward.asks(GET).endswith(GROUP)
    told_to_end(life)
    life.delete()


@pytest.mark.oci_conf
@pytest.mark.parametrize("place", ["slurm-root", "slurm-user"])
def test_what_an_oci_conf_runs_in_a_job(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings=SHIM, site_commands=True)
    life, port = serving(site, _HTTP)
    with forwarded(site, life, f"0:{port}") as forward:
        assert forward.asks(GET).endswith(GROUP)
    told_to_end(life)
    life.delete()


def test_what_is_refused(make_site: MakeSite) -> None:
    site = make_site("local-user")
    life, port = serving(site, _HTTP)
    assert "needs a port" in site.fails("forward", life.id)
    assert "not a port" in site.fails("forward", life.id, "http")
    many = [f"0:{number}" for number in range(1, 300)]
    assert "ports at most" in site.fails("forward", life.id, *many)
    assert "does not exist" in site.fails("forward", "nobody", "0:80")
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        said = site.fails("forward", life.id, f"{taken}:{port}")
        assert f"127.0.0.1:{taken}: Address already in use; 0:PORT takes any" in said
    told_to_end(life)
    assert "is stopped" in site.fails("forward", life.id, "0:80")
    life.delete()


def test_a_request_that_is_wrong(make_site: MakeSite) -> None:
    """It ends, and holds nothing up: what comes with it do not listen, or are not ports."""
    site = make_site("local-user")
    life, _ = serving(site, _HTTP)
    record = str(site.root / life.id)
    for ports, begins in ((b"80", True), (b"80,81", False), (b"x", False)):
        asking = wire.connect_supervisor(record, "supervisor", 20)
        with socket.socket() as sock, socket.socket(fileno=asking.detach()) as connection:
            connection.settimeout(20)
            wire.send(connection, [b"forward", life.id.encode(), ports], [sock.fileno()])
            answer = read_all(connection)
        assert answer.startswith(b"\0" if begins else b"\1")
        assert b"Invalid argument" in answer if begins else b"lacks" in answer
    told_to_end(life)
    life.delete()


def test_a_container_that_was_not_started(make_site: MakeSite) -> None:
    site = make_site("local-user")
    life = site.shell("true").created()
    assert "not running" in site.fails("forward", life.id, "0:80")
    life.delete()


@pytest.mark.oci_conf
def test_a_container_without_a_shim(make_site: MakeSite) -> None:
    """Its network is the node's, which the user reaches already."""
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "container"\n')
    life = site.shell("echo up; sleep 1000").created(60).start(60).says("up", 60)
    said = site.fails("forward", life.id, "0:80")
    assert "forward needs a shim" in said
    assert "connect to node1" in said
    told_to_end(life)
    life.delete()


@pytest.mark.both_engines
@THREE
def test_nothing_is_left(site: Site) -> None:
    """Nor a descriptor, nor a process, of what was forwarded."""
    life, port = serving(site, _ANSWERS)
    [supervisor] = site.supervisors()

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{supervisor}/fd"))

    with forwarded(site, life, f"0:{port}") as forward:
        forward.asks(b"x")
    wait_until("it is idle", lambda: not _listens(forward.port), 20)
    before = descriptors()
    with forwarded(site, life, f"0:{port}") as forward:
        open_ones = [forward.connect() for _ in range(5)]
        for client in open_ones:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
        forward.process.terminate()
        for client in open_ones:
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b""
            client.close()
    wait_until("no descriptor is left", lambda: descriptors() <= before, 20)
    told_to_end(life)
    life.delete()
    site.settle(20)
