"""`scrun metrics`: what records say, as Prometheus reads it."""

import contextlib
import http.client
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as of_openmetrics
from prometheus_client.parser import text_string_to_metric_families as of_prometheus

from scrun.cli.parse import parse
from scrun.commands import metrics
from scrun.commands.metrics import address, families, run
from scrun.core.errors import StateError, UsageError
from scrun.model.record import Record
from tests import CHECKOUT
from tests.harness.site import scrun_binary
from tests.harness.wait import wait_until
from tests.unit.scrun.commands.test_listing import RUNNING, Root

pytestmark = pytest.mark.covers("scrun metrics")

Samples = dict[tuple[str, tuple[str, ...]], float]

WAITS = {"org.scrun.engine": "slurm", "org.scrun.pending": "Resources"}
RECORDS = [
    msgspec.structs.replace(RUNNING, id="a", annotations={"org.scrun.engine": "slurm"}),
    msgspec.structs.replace(
        RUNNING, id="b",
        annotations={"org.scrun.engine": "slurm", "org.scrun.started": "2026-11-21T13:00:02Z"},
    ),
    msgspec.structs.replace(RUNNING, id="c", annotations=WAITS),
    msgspec.structs.replace(RUNNING, id="d", annotations=WAITS, created="2026-11-21T12:00:00Z"),
    msgspec.structs.replace(
        RUNNING, id="e", annotations={**WAITS, "org.scrun.pending": 'no"\n reason'}
    ),
    Record(
        id="f", status="stopped", created="never",
        annotations={"org.scrun.engine": "local", "org.scrun.reason": "exited"},
    ),
]  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    root = Root(tmp_path / "r")
    for record in RECORDS:
        root.add(record)
    (root.path / "broken").mkdir()
    yield root
    root.server.close()


def samples(text: str, reader: object = of_openmetrics) -> Samples:
    assert callable(reader)
    return {
        (sample.name, tuple(text for _, text in sorted(sample.labels.items()))): sample.value
        for family in reader(text)
        for sample in family.samples
    }


def says_all(found: Samples) -> None:
    """Hold that these are the metrics of `RECORDS`."""
    counts = {key[1]: value for key, value in found.items() if key[0] == "scrun_containers"}
    assert counts == {
        ("slurm", "", "running"): 2, ("slurm", "Resources", "running"): 2,
        ("slurm", "other", "running"): 1, ("local", "exited", "stopped"): 1,
        ("", "", "unknown"): 1,
    }  # fmt: skip
    longest = {reason: found["scrun_pending_longest_seconds", (reason,)] for reason in
               ("Resources", "other")}  # fmt: skip
    assert longest["Resources"] - longest["other"] == pytest.approx(3600, abs=1)
    name = "scrun_start_latency_seconds"
    assert found[f"{name}_bucket", ("1.0",)] == 0
    assert found[f"{name}_bucket", ("3.0",)] == found[f"{name}_bucket", ("+Inf",)] == 1
    assert found[f"{name}_gsum", ()] == 2


def test_once(root: Root) -> None:
    command = [scrun_binary(), "--root", str(root.path), "metrics"]
    done = subprocess.run(command, capture_output=True, timeout=20, check=True, text=True)
    assert done.stderr == ""
    says_all(samples(done.stdout))


class _ByPath(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_it_is_scraped(root: Root, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))  # by one that was killed
    where = f"unix:{path}" if kind == "unix" else "127.0.0.1:0"
    command = [scrun_binary(), "--root", str(root.path), "metrics", "--listen", where]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(server.kill)
        assert server.stdout is not None
        assert server.stderr is not None
        url = server.stdout.readline().decode().strip()
        host = str(path) if kind == "unix" else url.split("/")[2]
        assert kind == "tcp" or stat.S_IMODE(path.stat().st_mode) == 0o600
        made = _ByPath if kind == "unix" else http.client.HTTPConnection
        silent = made(host)
        silent.connect()  # and says nothing: nobody waits for it
        for accept, reader in (("application/openmetrics-text", of_openmetrics),
                               ("text/plain", of_prometheus)):  # fmt: skip
            connection = made(host, timeout=5)
            connection.request("GET", "/metrics", headers={"Accept": accept})
            answer = connection.getresponse()
            assert answer.status == 200
            assert accept in (answer.getheader("Content-Type") or "")
            found = samples(answer.read().decode(), reader)
            if reader is of_openmetrics:
                says_all(found)
            assert found["scrun_containers", ("slurm", "", "running")] == 2
            connection.close()
        second = subprocess.run(
            [*command[:-1], url if kind == "unix" else host],
            capture_output=True, timeout=20, text=True, check=False,
        )  # fmt: skip
        assert (second.returncode, second.stdout) == (1, "")
        assert second.stderr.count("\n") == 1
        assert "in use" in second.stderr
        server.send_signal(signal.SIGTERM)
        assert server.wait(10) == 0
        silent.close()
        assert server.stderr.read() == b""
    assert path.exists() == (kind == "tcp")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[metrics._Server]:
    """One for clients that keep within the limit of each read, with a byte now and then."""
    monkeypatch.setattr(metrics._Handler, "timeout", 60)
    with metrics._Server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(20)


def test_many_slow_clients_are_answered_a_few_at_once(server: metrics._Server) -> None:
    """Any local user can connect, and each connection had a thread."""

    def answering() -> int:
        return sum("process_request" in thread.name for thread in threading.enumerate())

    with contextlib.ExitStack() as stack:
        for _ in range(2 * metrics._MOST):
            stack.enter_context(socket.create_connection(server.socket.getsockname()))
            time.sleep(0.01)  # else the kernel refuses some
        wait_until("threads", lambda: answering() >= metrics._MOST)
        time.sleep(0.5)
        assert answering() == metrics._MOST
    wait_until("their end", lambda: not answering())


def test_it_goes_on_after_threads_were_refused(
    server: metrics._Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threading, "_start_new_thread", _refused)
        for _ in range(metrics._MOST):
            with socket.create_connection(server.socket.getsockname()) as client:
                client.settimeout(20)
                assert client.recv(1000) == b""
    with socket.create_connection(server.socket.getsockname()) as client:
        client.settimeout(20)
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert client.recv(1000)


def _refused(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_who_asks_too_slowly_is_hung_up_on(
    server: metrics._Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_LONGEST", 0.5)
    with socket.create_connection(server.socket.getsockname()) as slow:
        slow.settimeout(20)
        slow.sendall(b"GET /")
        assert slow.recv(1000) == b""


def test_without_the_package(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(StateError, match=r"pip install 'scrun\[metrics\]'"):
        run(parse(["--root", str(root.path), "metrics"]))


def test_what_is_not_a_socket_stays(root: Root, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    command = [scrun_binary(), "--root", str(root.path), "metrics", "--listen"]
    done = subprocess.run(
        [*command, f"unix:{tmp_path}/file"], capture_output=True, timeout=20, check=False
    )
    assert done.returncode == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(
    "text",
    ["", "unix:", "9090", ":9090", "0.0.0.0:9090", "example.org:1", "127.0.0.1:",
     "127.0.0.1:65536", "127.0.0.1:-1", "10.0.0.1:80", "[::]:80", "unix:a\0b"],
)  # fmt: skip
def test_no_address(text: str) -> None:
    with pytest.raises(UsageError, match=r"unix:PATH nor 127\.0\.0\.1:PORT"):
        address(text)


def test_addresses() -> None:
    assert address("unix:/a:b") == "/a:b"
    assert address("127.0.0.1:9090") == ("127.0.0.1", 9090)


def test_nothing() -> None:
    assert [family.samples[:1] for family in families([], 0.0)][:2] == [[], []]


def test_the_page_has_all(root: Root) -> None:
    page = (CHECKOUT / "docs" / "howto" / "metrics.md").read_text()
    listed = re.findall(r"(?m)^\| `(scrun_\w+)`", page)
    assert listed == [family.name for family in families([], 0.0)]
