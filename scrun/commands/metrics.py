"""scrun metrics: print what containers do in the format of Prometheus, or serve it.

It reads records, as `list` does, and asks no node and no supervisor for anything. Its readers
learn how many containers there are, and nothing of what they are.
"""

import contextlib
import ipaddress
import os
import re
import signal
import socket
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from scrun.cli.parse import Parsed, record_root
from scrun.client.find import containers
from scrun.commands.list import Known, rows
from scrun.core.errors import StateError, UsageError
from scrun.core.output import say, write
from scrun.core.times import of_stamp
from scrun.model.usage import STARTED
from scrun.model.waiting import PENDING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

LATENCIES = (0.1, 0.3, 1.0, 3.0, 10.0, 60.0, 600.0, 3600.0, 86400.0)
"""The bounds in seconds of how long containers took to start."""

_MOST = 16
"""How many are answered at once."""
_PATIENCE = 5.0
_LONGEST = 10.0
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,63}")


def run(parsed: Parsed) -> int:
    """Print them once; with `--listen`, serve them until somebody ends this."""
    words = parsed.text("listen")
    place = None if words is None else address(words)
    try:
        from prometheus_client import CollectorRegistry, make_wsgi_app
        from prometheus_client.openmetrics.exposition import generate_latest
    except ImportError:
        raise StateError(
            "the package prometheus-client is not installed: pip install 'scrun[metrics]'"
        ) from None
    registry = CollectorRegistry()
    _register(registry, record_root(parsed))
    if place is None:
        write(generate_latest(registry))  # type: ignore[no-untyped-call]
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with _Server(place) as server:
        server.set_app(make_wsgi_app(registry))
        say(f"{server.url}\n".encode())
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
        finally:
            server.remove()
    return 0


def _register(registry: "CollectorRegistry", root: str) -> None:
    from prometheus_client.registry import Collector

    known: Known = {}

    class Containers(Collector):
        def collect(self) -> "Iterator[Metric]":
            return families(rows(root, containers(root), known=known), time.time())

        def describe(self) -> "Iterable[Metric]":  # else it collects, to know their names
            return ()

    registry.register(Containers())


def families(found: Iterable[Mapping[str, Any]], now: float) -> "Iterator[Metric]":
    """Return the metrics of the rows of `list`."""
    from prometheus_client.metrics_core import GaugeHistogramMetricFamily, GaugeMetricFamily

    states: Counter[tuple[str, str, str]] = Counter()
    waits: dict[str, float] = {}
    latencies: list[float] = []
    for row in found:
        annotations, status = row["annotations"], row["status"]
        reason = ""
        if status == "stopped":
            reason = _word(annotations.get("org.scrun.reason", ""))
        elif PENDING in annotations:
            reason = _word(annotations[PENDING])
            waits[reason] = max(waits.get(reason, 0), now - (of_stamp(row["created"]) or now))
        states[status, reason, _word(annotations.get("org.scrun.engine", ""))] += 1
        if STARTED in annotations:
            started, created = of_stamp(annotations[STARTED]), of_stamp(row["created"])
            took = (started or now) - (created or now)
            latencies.append(max(0.0, took))
    labels = ("state", "reason", "engine")
    gauge = GaugeMetricFamily(
        "scrun_containers", "Containers, by why they wait or have ended", labels=labels
    )
    for key, count in sorted(states.items()):
        gauge.add_metric(key, count)
    yield gauge
    longest = GaugeMetricFamily(
        "scrun_pending_longest", "How long one waits for its job", labels=("reason",),
        unit="seconds",
    )  # fmt: skip
    for reason, seconds in sorted(waits.items()):
        longest.add_metric((reason,), seconds)
    yield longest
    bounds = [*LATENCIES, float("inf")]
    buckets = [(str(bound), sum(one <= bound for one in latencies)) for bound in bounds]
    yield GaugeHistogramMetricFamily(
        "scrun_start_latency", "From create to the program's start, of those that are listed",
        buckets=[("+Inf" if bound == "inf" else bound, count) for bound, count in buckets],
        gsum_value=sum(latencies), unit="seconds",
    )  # fmt: skip


def _word(text: str) -> str:
    """Return a reason; what an image may have made up is not one of its own."""
    return text if not text or _REASON.fullmatch(text) else "other"


# The server


def address(text: str) -> str | tuple[str, int]:
    """Return where to listen: a socket's path, or an address of this machine's, and a port."""
    kind, _, path = text.partition(":")
    if kind == "unix" and path and "\0" not in path:
        return path
    host, _, port = text.rpartition(":")
    try:
        is_right = ipaddress.IPv4Address(host).is_loopback and 0 <= int(port) < 1 << 16
    except ValueError:
        is_right = False
    if not is_right:
        raise UsageError(f"--listen {text}: is neither unix:PATH nor 127.0.0.1:PORT")
    return host, int(port)


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE  # type: ignore[mutable-override]

    def log_message(self, *_: object) -> None:
        """Log no request."""


class _Server(ThreadingMixIn, WSGIServer):
    """Answers those who ask, each in a thread, at a url."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, place: str | tuple[str, int]) -> None:
        self._path = place if isinstance(place, str) else ""
        self._places = threading.Semaphore(_MOST)
        self.url = f"unix:{self._path}"
        if self._path:
            self.address_family = socket.AF_UNIX
            _remove_stale(self._path)
        before = os.umask(0o177)
        try:
            super().__init__(place, _Handler)  # type: ignore[arg-type]  # a path as well
        except OSError as error:
            where = self._path or ":".join(map(str, place))
            raise OSError(error.errno, error.strerror or str(error), where) from None
        finally:
            os.umask(before)

    def server_bind(self) -> None:
        """Bind; the inherited one asks the name service for our name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        if not self._path:
            host, self.server_port = self.socket.getsockname()
            self.url = f"http://{host}:{self.server_port}/metrics"
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept; a client of a Unix socket has no address."""
        sock, peer = super().get_request()
        return sock, peer or ("", 0)

    def process_request(  # type: ignore[override]  # of sockets
        self, request: socket.socket, client_address: object
    ) -> None:
        """Answer in a thread, unless there are too many: the others wait until one has ended."""
        self._places.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread
            self._places.release()
            raise

    def process_request_thread(  # type: ignore[override]
        self, request: socket.socket, client_address: object
    ) -> None:
        """Answer, and hang up on who takes too long to ask: any local user can connect."""
        late = threading.Timer(_LONGEST, _hang_up, [request])
        late.daemon = True
        try:
            with contextlib.suppress(RuntimeError):  # there is no thread
                late.start()
            super().process_request_thread(request, client_address)
        finally:
            late.cancel()
            self._places.release()

    def handle_error(self, *_: object) -> None:
        """Say nothing of a client that has gone away."""

    def remove(self) -> None:
        if self._path:
            os.unlink(self._path)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it has just been answered
        connection.shutdown(socket.SHUT_RDWR)


def _remove_stale(path: str) -> None:
    """Remove a socket of ours that one has left that was killed."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    if stat.S_ISSOCK(found.st_mode) and found.st_uid == os.geteuid():
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
