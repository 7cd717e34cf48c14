"""Clients that ask for what is not there, hang up, or send more than anybody expects."""

import contextlib
import hashlib
import http.client
import io
import json
import os
import re
import socket
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

import docker
import pytest
from docker.errors import APIError

from tests.harness.engine_api import Api
from tests.harness.nightly import nightly
from tests.harness.processes import descendants, peak, processes, shims_of
from tests.harness.wait import wait_until, wait_while

pytestmark = [
    pytest.mark.covers("promise clients"),
    # it leaves connections of streams to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

IMAGE = "busybox"
ENDLESS = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"
LARGE = 256 << 20
SLEEP = f"{1000 + os.getpid()}.5"
KEPT = 64 << 20
"""By how much a supervisor or a shim may grow while a large body passes."""


@pytest.fixture
def container(client: docker.DockerClient) -> Iterator[Any]:
    """One that runs."""
    container = client.containers.run(
        IMAGE, ["sh", "-c", ENDLESS], detach=True, network_mode="host"
    )
    wait_until("it is up", lambda: container.logs() == b"up\n")
    yield container
    container.remove(force=True)


def asked(api: Api, method: str, path: str, body: Any = None, **headers: str) -> socket.socket:
    """Send a request; return the connection when the answer has begun."""
    connection = http.client.HTTPConnection("engine", timeout=60)
    sock = connection.sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(api.socket))
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request(method, path, sent, {"Content-Type": "application/json", **headers})
    begun = sock.recv(4096, socket.MSG_PEEK)
    assert re.match(rb"HTTP/1\.1 (101|200) ", begun), begun
    return sock


def test_a_runtime_that_is_not_there(client: docker.DockerClient, api: Api) -> None:
    """dockerd says it. A request to podman's API of Docker's cannot name one: it is not read."""
    options = {"runtime": "nope", "network_mode": "host", "remove": True}
    script = ["sh", "-c", "echo job=$SLURM_JOB_ID"]
    if api.is_podman:
        said = client.containers.run(IMAGE, script, **options)
        assert (said != b"job=\n") is api.on_slurm
        return
    with pytest.raises(APIError, match="nope"):
        client.containers.run(IMAGE, script, **options)


def test_who_hangs_up_in_an_exec(api: Api, client: docker.DockerClient, container: Any) -> None:
    """The program reads the end of its input; the container runs on, and takes the next one."""
    made = client.api.exec_create(container.id, ["sh", "-c", "cat; echo over > /end"], stdin=True)
    with asked(
        api, "POST", f"/v1.40/exec/{made['Id']}/start", {"Detach": False, "Tty": False},
        Connection="Upgrade", Upgrade="tcp",
    ) as sock:  # fmt: skip
        sock.sendall(b"word\n")
    wait_until("its end", lambda: not client.api.exec_inspect(made["Id"])["Running"])
    assert container.exec_run(["cat", "/end"]) == (0, b"over\n")


def test_who_hangs_up_when_attached(api: Api, client: docker.DockerClient) -> None:
    """Output goes on into the log; nobody waits for who is gone."""
    container = client.containers.create(
        IMAGE, ["sh", "-c", "read word; echo $word; sleep 0.5; echo end; exit 4"],
        stdin_open=True, network_mode="host",
    )  # fmt: skip
    try:
        query = "stream=1&stdin=1&stdout=1&stderr=1"
        path = f"/v1.40/containers/{container.id}/attach?{query}"
        with asked(api, "POST", path, b"", Connection="Upgrade", Upgrade="tcp") as sock:
            container.start()
            sock.sendall(b"word\n")
        assert container.wait(timeout=60)["StatusCode"] == 4
        assert container.logs() == b"word\nend\n"
    finally:
        container.remove(force=True)


@pytest.mark.parametrize("_api", ["docker-slurm"], indirect=True)
def test_who_hangs_up_in_a_build(api: Api) -> None:
    """Its RUN ends, and with it the job. podman 4.3 and its crun go on to the RUN's end."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        text = f"FROM {IMAGE}\nRUN echo be''gun; sleep {SLEEP}\n".encode()
        member = tarfile.TarInfo("Dockerfile")
        member.size = len(text)
        tar.addfile(member, io.BytesIO(text))
    query = "t=never&networkmode=host&forcerm=1&rm=1"
    headers = {"Content-Type": "application/x-tar"}

    def sleeping() -> list[int]:
        return [one.pid for one in processes("sleep") if SLEEP in one.argv]

    with asked(api, "POST", f"/v1.40/build?{query}", packed.getvalue(), **headers) as sock:
        said = b""
        while b"begun" not in said:
            more = sock.recv(4096)
            assert more, said
            said += more
        wait_until("its program", sleeping)
    wait_while("its program", sleeping, 60)
    wait_while("its job", api.jobs, 60)
    wait_while("its container", lambda: api.engine.must("ps", "--all", "--quiet"), 30)


@pytest.mark.parametrize("size", [LARGE, nightly(1 << 30)])
def test_a_large_body(api: Api, container: Any, size: int) -> None:
    """It goes to the node in pieces: nobody keeps much of it; who asks meanwhile is answered."""
    ours = [*api.engine.site.supervisors(), *(pid for job in api.jobs() for pid in shims_of(job))]
    assert bool(ours) is (api.place != "podman-crun")
    before = _most(ours)
    # dockerd lets nobody else use the container meanwhile
    asks = ("exec", container.id) if api.is_podman else ("run", "--rm", "--network=host", IMAGE)
    head = tarfile.TarInfo("large")
    head.size = size
    piece, sent = os.urandom(1 << 20), hashlib.sha256()

    def body() -> Iterator[bytes]:
        yield head.tobuf()
        for number in range(size >> 20):
            yield (given := number.to_bytes(8, "big") + piece[8:])
            sent.update(given)
            if number == size >> 21:
                assert api.engine.must(*asks, "echo", "meanwhile") == "meanwhile\n"
                helpers = {child for pid in ours for child in descendants(pid)}
                assert _most(helpers) < before + KEPT
        yield bytes(1024)

    assert container.put_archive("/tmp", body())
    status, said = container.exec_run(["sha256sum", "/tmp/large"])
    assert (status, said.split()[0].decode()) == (0, sent.hexdigest())
    assert _most(ours) < before + KEPT


def _most(pids: Iterable[int]) -> int:
    """The most memory that one of these has had, in bytes."""
    most = 0
    for pid in pids:
        with contextlib.suppress(OSError, StopIteration):  # a helper that has ended
            most = max(most, peak(pid) << 10)
    return most
