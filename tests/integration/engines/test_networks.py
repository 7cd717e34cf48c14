"""Networks of podman's, and the ports that it publishes, where the container is a job."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from tests.harness import cluster, users
from tests.harness.adoption import kill_all_supervisors
from tests.harness.client import Client
from tests.harness.networks import free_port, gets_to, reach_each_other
from tests.harness.networks import tun as tun
from tests.harness.nightly import nightly
from tests.harness.podman import Podman, compose, given, podman_of
from tests.harness.processes import descendants, shims_of
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise networks")

LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
HTTPD = ("busybox", "httpd", "-f", "-p", "80", "-h", "/etc")
AT_ITS_NAME = ("busybox", "sh", "-c", "exec httpd -f -p $(hostname -i):80 -h /etc")
GROUP = b"root:x:0:\n"


@pytest.fixture(
    scope="module", params=[nightly("user-vfs"), "user-overlay", nightly("root-overlay")]
)
def podman(request: pytest.FixtureRequest) -> Iterator[Podman]:
    user, _, storage = request.param.partition("-")
    owner = users.root() if user == "root" else users.ordinary()
    with cluster.without_oci_conf(), podman_of(owner, storage=storage) as podman:
        yield podman


def run(podman: Podman, *words: str, network: str = "slirp4netns") -> str:
    """Run a container in the background; return its id."""
    return podman.must("run", "--detach", "--network", network, *LIMITS, *words).strip()


def get(port: int, address: str = "127.0.0.1") -> bytes:
    """What a server says to a request for /group; b"" if it does not answer."""
    try:
        with socket.create_connection((address, port), timeout=20) as client:
            client.sendall(b"GET /group HTTP/1.0\r\n\r\n")
            return b"".join(iter(lambda: client.recv(4096), b""))
    except ConnectionError:
        return b""


def answers(port: int) -> None:
    wait_until("an answer", lambda: get(port).endswith(GROUP))


def connectors(engine: Client) -> set[int]:
    """The programs that connect networks of the user's containers, on their nodes."""
    jobs = [line.split()[0] for line in cluster.jobs(engine.site.user)]
    shims = [shim for job in jobs for shim in shims_of(job)]
    return {
        int(child)
        for shim in shims
        for child in Path(f"/proc/{shim}/task/{shim}/children").read_text().split()
        if Path(f"/proc/{child}/comm").read_text() == "slirp4netns\n"
    }


def log_of(podman: Podman, container: str) -> str:
    [log] = podman.site.base.glob(f"x/scrun/*{container}*/log")
    return log.read_text()


@pytest.mark.parametrize(
    "network", ["slirp4netns", nightly("slirp4netns:port_handler=slirp4netns"), "bridge"]
)
def test_a_published_port(network: str, podman: Podman) -> None:
    """A server of an ordinary user's may listen on port 80; who connects here reaches it."""
    port = free_port()
    container = run(podman, "-p", f"{port}:80", *HTTPD, network=network)
    if network == "bridge" and podman.site.user.uid == 0:
        form = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        address = podman.must("inspect", "--format", form, container).strip()
        wait_until("an answer", lambda: get(80, address).endswith(GROUP))
    else:
        answers(port)
    assert "its own, by slirp4netns" in log_of(podman, container)
    assert "tap0" in podman.must("exec", container, "cat", "/proc/net/dev")
    connecting = connectors(podman)
    assert len(connecting) == 1
    podman.must("rm", "--force", "--time", "0", container)
    wait_while("what connected it", lambda: connecting & connectors(podman))


@pytest.mark.nightly
def test_two_containers_have_the_same_port(podman: Podman) -> None:
    ports = [free_port() for _ in range(2)]
    for port in ports:
        run(podman, "--rm", "-p", f"{port}:80", *HTTPD)
    for port in ports:
        answers(port)
    podman.must("kill", "--all")


def test_a_port_that_nobody_listens_on(podman: Podman) -> None:
    port = free_port()
    container = run(podman, "-p", f"{port}:81", *HTTPD)
    assert get(port) == b""
    wait_until("a line", lambda: "port 81: Connection refused" in log_of(podman, container))
    podman.must("rm", "--force", "--time", "0", container)


def test_what_is_not_carried_is_said(podman: Podman) -> None:
    """UDP is refused, and the log says so; an option without effect is told at once."""
    port = free_port()
    sysctl = ("--sysctl", "net.core.somaxconn=9")
    ports = ("-p", f"{port}:81/udp")
    container = run(podman, *ports, *sysctl, "busybox", "sleep", "1000")
    told = "scrun: no effect in a job: --sysctl net.core.somaxconn\n"
    wait_until("a line", lambda: told in podman.run("logs", container).stderr)

    def asked() -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.sendto(b"?", ("127.0.0.1", port))
        return "UDP does not reach its ports, TCP does" in log_of(podman, container)

    wait_until("a line", asked)
    began = time.monotonic()
    by_ipv6 = podman.run("exec", container, "busybox", "nc", "-w", "60", "2001:db8::1", "80")
    assert (by_ipv6.returncode, time.monotonic() - began < 30) == (1, True)
    podman.must("rm", "--force", "--time", "0", container)


def test_the_supervisor_is_killed(podman: Podman) -> None:
    port = free_port()
    container = run(podman, "-p", f"{port}:80", *HTTPD)
    answers(port)
    kill_all_supervisors(podman.site)
    answers(port)
    podman.must("rm", "--force", "--time", "0", container)


def test_a_pod_has_one_network(podman: Podman) -> None:
    """Its members reach one another at their loopback, and its ports are all of theirs."""
    port = free_port()
    podman.must("pod", "create", "--name", "pod", "--network", "slirp4netns", "-p", f"{port}:80")
    podman.must("run", "--detach", "--pod", "pod", *LIMITS, *HTTPD)
    answers(port)
    ask = ("busybox", "wget", "-q", "-O", "-", "http://127.0.0.1/group")
    assert podman.must("run", "--rm", "--pod", "pod", *LIMITS, *ask).encode() == GROUP
    podman.must("pod", "rm", "--force", "--time", "0", "pod")


KUBE = """\
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  containers:
  - name: one
    image: localhost/busybox
    imagePullPolicy: Never
    command: ["/bin/httpd", "-f", "-p", "80", "-h", "/etc"]
    ports: [{{containerPort: 80, hostPort: {port}}}]
"""


@pytest.mark.covers("podman kube, play")
def test_a_published_port_of_kube_play(podman: Podman) -> None:
    port = free_port()
    path = str(given(podman, "kube.yaml", KUBE.format(port=port)))
    podman.must("kube", "play", path)
    answers(port)
    podman.must("kube", "down", path)
    wait_while("its job", lambda: cluster.jobs(podman.site.user))


COMPOSE = """\
services:
  db: &server
    image: {image}
    command: ["httpd", "-f", "-p", "80", "-h", "/etc"]
  api:
    <<: *server
    depends_on: [db]
  web:
    <<: *server
    depends_on: [api]
    ports: ["{port}:80"]
"""
ELSEWHERE = "    environment: {SCRUN_JOB_NODELIST: node2}\n"
"""After that: its last service is on another node."""

NAME_OF_NODE = ("sh", "-c", "echo $SLURMD_NODENAME")


@pytest.mark.nightly
@pytest.mark.parametrize("in_pod", [True, False])
def test_services_of_a_compose_file(podman: Podman, *, in_pod: bool) -> None:
    """Each finds the others by name, in one job or on two nodes, and one is published."""
    port = free_port()
    text = COMPOSE.format(image="localhost/busybox", port=port) + ELSEWHERE * (not in_pod)
    given(podman, "compose.yaml", text)
    options = ("--in-pod", str(in_pod).lower())
    compose(podman, *options, "up", "--detach")
    answers(port)
    services = ("web", "api", "db")
    nodes = {podman.must("exec", f"proj_{one}_1", *NAME_OF_NODE) for one in services}
    assert len(nodes) == (1 if in_pod else 2)
    for one, other in permutations(services, 2):
        gets_to(podman, f"proj_{one}_1", other)
    compose(podman, *options, "down", "--timeout", "0")
    wait_while("its jobs", lambda: cluster.jobs(podman.site.user))


def test_in_the_network_of_this_very_machine() -> None:
    """What connects to its port here is not to go round in circles."""
    user = users.ordinary()
    with cluster.without_oci_conf(), podman_of(user, settings='network = "node"\n') as podman:
        port = free_port()
        container = run(podman, "-p", f"{port}:{port}", "busybox", "sleep", "1000")
        assert get(port) == b""
        log = log_of(podman, container)
        assert "network on node1: the node's" in log
        assert "10.0.2.3" not in podman.must("exec", container, "cat", "/etc/resolv.conf")
        assert "its container is in this machine's network: use its own ports" in log


def test_containers_of_a_network_find_one_another(podman: Podman) -> None:
    """By name, on different nodes and on this machine; not those of another network."""
    podman.must("network", "create", "net")
    podman.must("network", "create", "other")
    run(podman, "--name", "web", "busybox", "sleep", "1000", network="net")
    there = ("--annotation", "slurm.nodelist=node2")
    run(podman, "--name", "db", *there, *AT_ITS_NAME, network="net")
    run(podman, "--name", "stranger", *HTTPD, network="other")
    on_runc = ("--runtime", "runc", "run", "--detach", "--network", "net", "--pids-limit", "0")
    podman.must(*on_runc, *LIMITS, "--name", "here", *HTTPD)
    for who, other in (("web", "db"), ("web", "here"), ("here", "db")):
        gets_to(podman, who, other)
    assert "can't find stranger" in podman.run("exec", "web", "nslookup", "stranger").stdout
    kill_all_supervisors(podman.site)
    gets_to(podman, "web", "db")
    podman.must("rm", "--force", "--time", "0", "web", "db", "here", "stranger")
    podman.must("network", "rm", "net", "other")


def test_a_network_that_a_running_container_gets(podman: Podman) -> None:
    """Both reach each other by name and address, until it is disconnected."""
    for network in ("net", "other"):
        podman.must("network", "create", network)
    run(podman, "--name", "web", *HTTPD, network="net")
    there = ("--annotation", "slurm.nodelist=node2")
    run(podman, "--name", "db", *there, *HTTPD, network="other")
    reach_each_other(podman, "web", "db", "other")
    podman.must("rm", "--force", "--time", "0", "web", "db")
    podman.must("network", "rm", "net", "other")


def test_a_file_that_is_written_late(podman: Podman) -> None:
    """From podman 5 on the engine writes it after it has created the container."""
    container = run(podman, *HTTPD)
    said = podman.must("exec", container, "cat", "/etc/resolv.conf", "/etc/hosts")
    assert "nameserver 10.0.2.3" in said
    assert container[:12] in said
    assert "169.254.1.1" not in said
    podman.must("rm", "--force", "--time", "0", container)


def keep_address_of_bridge(engine: Client) -> None:
    """Keep what podman 4 lets change as members of a network come and go.

    For half a minute the others then ask their name server in vain, whatever their runtime is.
    """
    name = engine.must("network", "inspect", "--format", "{{.NetworkInterface}}", "net").strip()
    command = ("ip", "link", "set", name, "address", "02:00:00:00:00:01")
    engine.must("unshare", "--rootless-netns", *command)


def comes_back_elsewhere(engine: Client) -> None:
    """Check that a container is found again that its engine restarts on another node.

    Nothing of earlier ones stays: one address by its name, one program on the nodes, no socket.
    """
    port = free_port()
    begin = ("run", "--detach", "--network", "net", *LIMITS)
    engine.must("network", "create", "net")
    engine.must(*begin, "--name", "db", "--restart", "always", "-p", f"{port}:80", *AT_ITS_NAME)
    first = engine.must("exec", "db", *NAME_OF_NODE).strip()
    [other] = {"node1", "node2"} - {first}
    engine.must(*begin, "--name", "web", "--env", f"SCRUN_JOB_NODELIST={other}", *HTTPD)

    if isinstance(engine, Podman):
        keep_address_of_bridge(engine)

    def all_reach_it() -> int:
        """Return how many descriptors supervisors with a container have then."""
        answers(port)
        gets_to(engine, "web", "db")
        gets_to(engine, "db", "web")
        assert engine.must("exec", "web", "nslookup", "db").count("Address:") == 2  # the server's
        assert len(connectors(engine)) == 2
        return opened()

    def opened() -> int:
        found = [pid for pid in engine.site.supervisors() if descendants(pid)]
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in found)

    all_reach_it()
    drained = (f"NodeName={first}", "State=DRAIN", "Reason=test")
    with cluster.changed(*drained, back="State=RESUME"):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as client:
            cluster.slurm("scancel", "--nodelist", first, "--user", engine.site.user.name)
            with suppress(ConnectionError):
                assert client.recv(1) == b""
        on_node = partial(engine.run, "exec", "db", *NAME_OF_NODE)
        wait_until("a restart", lambda: on_node().stdout.strip() == other, 30)
        before = all_reach_it()
        engine.must("restart", "--time", "0", "db")  # in the supervisor that it has now
        all_reach_it()
        wait_until("no more descriptors", lambda: opened() <= before)
    engine.must("rm", "--force", "web", "db")
    engine.must("network", "rm", "net")


@pytest.mark.nightly
def test_a_container_that_comes_back_on_another_node() -> None:
    """Podman restarts it without the flags that tell root's runtime its settings here."""
    user = users.ordinary()
    with cluster.without_oci_conf(), podman_of(user, storage="overlay") as podman:
        comes_back_elsewhere(podman)


@pytest.mark.nightly
def test_users_of_its_own(podman: Podman) -> None:
    """Podman makes such a container's network between its creation and its start."""
    port = free_port()
    users_of = ("--userns", "keep-id") if podman.site.user.uid else ()
    listens = ("busybox", "httpd", "-f", "-p", "8080", "-h", "/etc")
    container = run(podman, *users_of, "-p", f"{port}:8080", *listens)
    wait_until("an answer", lambda: GROUP in get(port))  # podman has added the user
    kill_all_supervisors(podman.site)
    wait_until("an answer", lambda: GROUP in get(port))
    podman.must("rm", "--force", "--time", "0", container)
