"""What a port costs that is forwarded, or that podman publishes, of a container in a job.

The server is one static program, so that its own time is the same directly and in the container.
A plain copy beside is a process that does nothing but recv and send between two sockets: no
forwarder of an interpreter can do more here. A port that podman publishes of a container of runc's
passes podman's own forwarder only, as it does before it comes to us. It needs root, and calls
podman as the user.
"""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.harness import cluster
from tests.harness.networks import free_port
from tests.harness.podman import podman_of
from tests.harness.users import User
from tests.harness.wait import wait_until
from tests.stress.bench.figures import Goal, Times

SIZE = 256 << 20
"""Bytes of a stream."""

FORWARDED, PUBLISHED = "a forwarded port", "a published port"
NODES = {"": "node1", " elsewhere": "node2"}
"""The second one passes for another machine than the submit host (`tools/slurm-cluster`)."""

OURS = [f"{way}{where}" for way in (FORWARDED, PUBLISHED) for where in NODES]
WAYS = DIRECT, COPY, RUNC, *_ = "direct", "a plain copy", "a published port of runc's", *OURS
REQUEST, TO, FROM = "a request, {}", "256 MiB to a server, {}", "256 MiB from a server, {}"
_REQUESTS = 50  # of a round
_MANY = 10_000
_PIECE = 1 << 20
_TUN = Path("/dev/net/tun")
_LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
_SOURCE = """\
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static char piece[1 << 20];

/* r: answer a kilobyte; s: swallow all, and answer a byte; g: give 256 MiB. */
static void serve(int client)
{
    ssize_t size = recv(client, piece, sizeof piece, 0);
    if (size > 0 && piece[0] == 'r')
        send(client, piece, 1000, 0);
    if (size > 0 && piece[0] == 's') {
        while (recv(client, piece, sizeof piece, 0) > 0)
            ;
        send(client, "k", 1, 0);
    }
    if (size > 0 && piece[0] == 'g')
        for (long left = 256L << 20; left > 0 && size > 0; left -= size)
            size = send(client, piece, sizeof piece, 0);
    close(client);
}

int main(int count, char **words)
{
    int server = socket(AF_INET, SOCK_STREAM, 0), client;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(count ? atoi(words[1]) : 0)};
    signal(SIGPIPE, SIG_IGN);
    if (bind(server, (void *)&at, sizeof at) || listen(server, 4096))
        return 1;
    for (;;)
        if ((client = accept(server, NULL, NULL)) >= 0)
            serve(client);
}
"""


class Networks:
    """Requests and streams, in turn in each way in each round."""

    def __init__(self, user: User) -> None:
        """Know whose container it is."""
        self.times = Times()
        self.failed = 0
        self._user = user

    def measure(self, rounds: int) -> None:
        before = _TUN.stat().st_mode & 0o777
        _TUN.chmod(0o666)  # as udev's rules have it
        try:
            with self._ports() as ports:
                for _ in range(rounds):
                    for way in WAYS:
                        self._take(way, ports[way])
                for _ in range(_MANY // len(OURS)):
                    for way in OURS:
                        self.failed += not _asked(ports[way])
        finally:
            _TUN.chmod(before)

    @contextlib.contextmanager
    def _ports(self) -> Iterator[dict[str, int]]:
        with cluster.without_oci_conf(), podman_of(self._user) as podman:
            program = podman.site.base / "b" / "server"
            command = ["cc", "-O2", "-static", "-x", "c", "-", "-o", str(program)]
            subprocess.run(command, input=_SOURCE, text=True, check=True)
            ports = {way: free_port() for way in WAYS}
            words = ("--volume", f"{program.parent}:/b:ro", *_LIMITS, "busybox", "/b/server", "80")
            server = subprocess.Popen([program, str(ports[DIRECT])])
            copier = os.fork()
            if not copier:
                _copy(ports[COPY], ports[DIRECT])
            try:
                run = ("run", "--detach", "--network", "slirp4netns", "--publish")
                runc = ("--runtime", "runc", *run, f"{ports[RUNC]}:80")
                podman.must(*runc, *words)
                for where, node in NODES.items():
                    options = ("--name", node, "--annotation", f"slurm.nodelist={node}")
                    published = f"{ports[PUBLISHED + where]}:80"
                    made = podman.must(*run, published, *options, *words).strip()
                    podman.scrun("forward", "--detach", made, f"{ports[FORWARDED + where]}:80")
                os.seteuid(self._user.uid)  # a forwarded port is its owner's alone
                for way, port in ports.items():
                    wait_until(f"an answer from {way}", partial(_asked, port))
                yield ports
            finally:
                os.seteuid(0)
                server.kill()
                server.wait()
                os.kill(copier, 9)
                os.waitpid(copier, 0)
                podman.must("rm", "--force", "--time", "0", "--all")

    def _take(self, way: str, port: int) -> None:
        for _ in range(_REQUESTS):
            with self._timed(REQUEST.format(way)):
                self.failed += not _asked(port)
        buffer = bytearray(_PIECE)
        with self._timed(TO.format(way)), _connected(port) as client:
            client.sendall(b"s")
            for _ in range(SIZE // _PIECE):
                client.sendall(buffer)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b"k", way
        with self._timed(FROM.format(way)), _connected(port) as client:
            client.sendall(b"g")
            size = 0
            while count := client.recv_into(buffer):
                size += count
            assert size == SIZE, f"{way}: {size} bytes"

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.times.add(what, time.perf_counter() - began)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        median = self.times.median
        goals = []
        for way in OURS:
            beside = DIRECT if way.startswith(FORWARDED) else RUNC
            more = median(REQUEST.format(way)) - median(REQUEST.format(beside))
            goals.append(Goal(f"{REQUEST.format(way)}, ms more", beside, more * 1000, 1))
            for what in (TO, FROM):
                seconds = (median(what.format(one)) for one in (way, COPY))
                ours, floor = (SIZE / (1 << 20) / taken for taken in seconds)
                wanted = min(500, floor)
                goals.append(Goal(f"{what.format(way)}, speed", COPY, ours / wanted, 1, True))
        goals.append(Goal(f"{_MANY} requests, errors", "none", self.failed, 0))
        return goals


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port))


def _asked(port: int) -> bool:
    """Make one request; tell whether all of its answer has come."""
    try:
        with _connected(port) as client:
            client.settimeout(20)
            client.sendall(b"r")
            return sum(map(len, iter(lambda: client.recv(4096), b""))) == 1000
    except OSError:
        return False


def _copy(port: int, server_port: int) -> None:
    """Copy between clients and the server, one after the other, for ever."""
    try:
        with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
            while True:
                client, _ = listener.accept()
                with client, socket.create_connection(("127.0.0.1", server_port)) as server:
                    _copy_both(client, server)
    finally:
        os._exit(1)


def _copy_both(client: socket.socket, server: socket.socket) -> None:
    reader = os.fork()
    source, sink = (server, client) if reader else (client, server)
    buffer = memoryview(bytearray(_PIECE))
    with contextlib.suppress(OSError):
        while count := source.recv_into(buffer):
            sink.sendall(buffer[:count])
        sink.shutdown(socket.SHUT_WR)
    if not reader:
        os._exit(0)
    os.waitpid(reader, 0)
