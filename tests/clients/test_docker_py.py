"""Docker's own client for Python, docker-py, by the API of podman and of docker."""

import contextlib
import io
import json
import re
import socket
import tarfile
import threading
import time
from collections.abc import Iterator
from typing import Any

import docker
import pytest
from docker.errors import APIError, ContainerError, NotFound
from docker.models.containers import Container
from docker.types import Mount

from tests.harness.engine_api import Api
from tests.harness.wait import wait_until

pytestmark = [
    pytest.mark.covers("promise clients"),
    # it leaves connections of streams to the collector
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

IMAGE = "busybox"


@pytest.fixture
def run(client: docker.DockerClient) -> Iterator[Any]:
    """Runs a container in the background; it is removed after the test."""
    made: list[Container] = []

    def run(*command: str, **options: Any) -> Container:
        options.setdefault("network_mode", "host")
        made.append(client.containers.run(IMAGE, list(command), detach=True, **options))
        return made[-1]

    yield run
    for container in made:
        container.remove(force=True)


def shell(script: str) -> tuple[str, str, str]:
    return "sh", "-c", script


def archive(name: str, content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def content(chunks: Iterator[bytes]) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
        [member] = tar.getmembers()
        file = tar.extractfile(member)
        assert file is not None
        return file.read()


# --- the engine


def test_what_the_engine_says_of_itself(client: docker.DockerClient) -> None:
    assert client.ping()
    assert client.version()["ApiVersion"]
    assert client.info()["Images"] >= 1
    assert any(f"{IMAGE}:latest" in tag for image in client.images.list() for tag in image.tags)


# --- containers: from their creation to their end


def test_what_it_prints(client: docker.DockerClient, api: Api) -> None:
    said = client.containers.run(
        IMAGE, ["sh", "-c", "echo out; echo job=$SLURM_JOB_ID"], remove=True, network_mode="host"
    )
    out, job = said.decode().splitlines()
    assert out == "out"
    assert bool(job.removeprefix("job=")) is api.on_slurm


def test_a_failure(client: docker.DockerClient) -> None:
    with pytest.raises(ContainerError) as failed:
        client.containers.run(IMAGE, ["sh", "-c", "exit 3"], remove=True, network_mode="host")
    assert failed.value.exit_status == 3


def test_a_program_that_is_not_there(client: docker.DockerClient) -> None:
    container = client.containers.create(IMAGE, ["/nope"], network_mode="host")
    try:
        with pytest.raises(APIError, match="/nope"):
            container.start()
    finally:
        container.remove(force=True)


def test_states(run: Any) -> None:
    container = run(*shell("read line; exit 7"), stdin_open=True, tty=False)
    container.reload()
    assert container.status == "running"
    assert container.attrs["State"]["Pid"] > 0
    container.kill("KILL")
    assert container.wait()["StatusCode"] == 137
    container.reload()
    assert container.status == "exited"


def test_stop_and_restart(run: Any) -> None:
    container = run(*shell("trap 'exit 5' TERM; echo up; while :; do sleep 0.1; done"))
    wait_until("it is up", lambda: container.logs() == b"up\n")
    container.stop(timeout=10)
    assert container.wait()["StatusCode"] == 5
    container.restart(timeout=0)
    wait_until("it is up again", lambda: container.logs() == b"up\nup\n")


def test_a_signal(run: Any) -> None:
    container = run(*shell("trap 'echo got; exit 0' USR1; echo up; while :; do sleep 0.1; done"))
    wait_until("it is up", lambda: container.logs() == b"up\n")
    container.kill("USR1")
    assert container.wait()["StatusCode"] == 0
    assert container.logs() == b"up\ngot\n"


@pytest.mark.nightly
def test_a_restart_policy(run: Any) -> None:
    policy = {"Name": "on-failure", "MaximumRetryCount": 2}
    container = run("false", restart_policy=policy)

    def restarts() -> bool:
        container.reload()
        count: int = container.attrs["RestartCount"]
        return count == 2 and container.status == "exited"

    wait_until("two restarts", restarts, 60)


@pytest.mark.nightly
def test_two_in_order(client: docker.DockerClient, run: Any) -> None:
    names = [run("sleep", "1000").id for _ in range(2)]
    there = [container.id for container in client.containers.list()]
    assert set(names) <= set(there)
    assert client.containers.list(filters={"id": names[0]})[0].id == names[0]


@pytest.mark.nightly
def test_rename_and_find(client: docker.DockerClient, run: Any) -> None:
    container = run("sleep", "1000", name="before", labels={"a": "b"})
    container.rename("after")
    assert client.containers.get("after").id == container.id
    assert [one.id for one in client.containers.list(filters={"label": "a=b"})] == [container.id]
    with pytest.raises(NotFound):
        client.containers.get("before")


@pytest.mark.nightly
def test_its_settings(run: Any) -> None:
    container = run(
        *shell('echo "$A" "$PWD" "$(hostname)"'), environment={"A": "b"}, working_dir="/etc",
        network_mode="none", hostname="named", tmpfs={"/x": "size=1m"},
    )  # fmt: skip
    assert container.wait()["StatusCode"] == 0
    assert container.logs() == b"b /etc named\n"


@pytest.mark.nightly
def test_read_only(run: Any) -> None:
    container = run(*shell("touch /file"), read_only=True)
    assert container.wait()["StatusCode"] == 1
    assert b"Read-only" in container.logs()


@pytest.mark.nightly
def test_an_init(run: Any) -> None:
    container = run(*shell("cat /proc/1/cmdline"), init=True)
    assert container.wait()["StatusCode"] == 0
    assert b"init" in container.logs()


# --- output and input


def test_logs(run: Any) -> None:
    container = run(*shell("echo out; echo err >&2; echo last"))
    container.wait()
    assert container.logs(stderr=False) == b"out\nlast\n"
    assert container.logs(stdout=False) == b"err\n"
    assert container.logs(tail=1) in (b"last\n", b"err\n")
    assert re.match(rb"\d{4}-\d\d-\d\dT", container.logs(timestamps=True))


def test_logs_that_are_followed(run: Any) -> None:
    container = run(*shell("for i in 1 2 3; do echo $i; sleep 0.3; done"))
    assert b"".join(container.logs(stream=True, follow=True)) == b"1\n2\n3\n"


def test_attach(client: docker.DockerClient) -> None:
    """Standard input over the upgraded connection, which is half-closed; then all output."""
    container = client.containers.create(
        IMAGE, ["sh", "-c", "sort; echo end"], stdin_open=True, network_mode="host"
    )
    try:
        upgraded = container.attach_socket(
            params={"stdin": 1, "stdout": 1, "stream": 1, "stderr": 1}
        )
        container.start()
        raw = getattr(upgraded, "_sock", upgraded)
        raw.sendall(b"b\na\n")
        raw.shutdown(socket.SHUT_WR)
        said = b"".join(iter(lambda: raw.recv(4096), b""))
        upgraded.close()
        assert _frames(said) == b"a\nb\nend\n"
        assert container.wait()["StatusCode"] == 0
    finally:
        container.remove(force=True)


def _frames(said: bytes) -> bytes:
    """The bytes of a multiplexed stream."""
    found = b""
    while said:
        length = int.from_bytes(said[4:8], "big")
        found, said = found + said[8 : 8 + length], said[8 + length :]
    return found


def test_a_terminal(run: Any) -> None:
    container = run(*shell("tty; stty size"), tty=True)
    assert container.wait()["StatusCode"] == 0
    assert b"/dev/pts/0" in container.logs()


# --- exec


def test_exec(run: Any) -> None:
    container = run("sleep", "1000")
    assert container.exec_run(["sh", "-c", "echo out; exit 4"]) == (4, b"out\n")
    ended = container.exec_run(["sh", "-c", "echo out; echo err >&2"], demux=True)
    assert ended.output == (b"out\n", b"err\n")
    options: dict[str, Any] = {"environment": {"A": "b"}, "workdir": "/etc"}
    assert container.exec_run(["sh", "-c", "echo $A $PWD"], **options) == (0, b"b /etc\n")


def test_the_input_of_an_exec(client: docker.DockerClient, run: Any) -> None:
    container = run("sleep", "1000")
    made = client.api.exec_create(container.id, ["sort"], stdin=True)
    upgraded = client.api.exec_start(made["Id"], socket=True)
    raw = getattr(upgraded, "_sock", upgraded)
    raw.sendall(b"b\na\n")
    raw.shutdown(socket.SHUT_WR)
    said = b"".join(iter(lambda: raw.recv(4096), b""))
    upgraded.close()
    assert _frames(said) == b"a\nb\n"
    wait_until("its end", lambda: not client.api.exec_inspect(made["Id"])["Running"])
    assert client.api.exec_inspect(made["Id"])["ExitCode"] == 0


def test_an_exec_in_a_terminal(run: Any) -> None:
    container = run("sleep", "1000")
    status, said = container.exec_run(["tty"], tty=True)
    assert status == 0
    assert said.startswith(b"/dev/")


# --- files


def test_files_before_and_after(client: docker.DockerClient) -> None:
    container = client.containers.create(
        IMAGE, ["sh", "-c", "cat /tmp/in > /tmp/out"], network_mode="host"
    )
    try:
        assert container.put_archive("/tmp", archive("in", b"content"))
        container.start()
        assert container.wait()["StatusCode"] == 0
        chunks, status = container.get_archive("/tmp/out")
        assert (content(chunks), status["size"]) == (b"content", 7)
        with pytest.raises(NotFound):
            container.get_archive("/tmp/nope")
    finally:
        container.remove(force=True)


def test_files_of_a_running_one(run: Any) -> None:
    container = run("sleep", "1000")
    assert container.put_archive("/etc", archive("in", b"content"))
    assert container.exec_run(["cat", "/etc/in"]) == (0, b"content")
    chunks, _ = container.get_archive("/etc/group")
    assert content(chunks) == b"root:x:0:\n"


def test_a_commit(client: docker.DockerClient, run: Any) -> None:
    container = run(*shell("echo kept > /file"))
    container.wait()
    image = container.commit("committed", pause=False)
    try:
        said = client.containers.run(image.id, ["cat", "/file"], remove=True, network_mode="host")
        assert said == b"kept\n"
    finally:
        client.images.remove(image.id, force=True)


def test_an_export_and_an_import(client: docker.DockerClient, run: Any) -> None:
    container = run(*shell("echo kept > /file"))
    container.wait()
    packed = b"".join(container.export())
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert "file" in tar.getnames()


@pytest.mark.nightly
def test_what_has_changed(run: Any) -> None:
    container = run(*shell("echo kept > /file"))
    container.wait()
    assert "/file" in [change["Path"] for change in container.diff()]


# --- volumes


def test_a_named_volume(client: docker.DockerClient) -> None:
    volume = client.volumes.create("kept")
    try:
        for script in ("echo kept > /v/file", "cat /v/file"):
            said = client.containers.run(
                IMAGE, ["sh", "-c", script], remove=True, network_mode="host",
                mounts=[Mount("/v", "kept")],
            )  # fmt: skip
        assert said == b"kept\n"
        assert volume.id in [one.id for one in client.volumes.list()]
    finally:
        volume.remove(force=True)


@pytest.mark.nightly
def test_a_directory(api: Api, client: docker.DockerClient) -> None:
    directory = api.engine.site.base / "l"
    (directory / "in").write_text("content\n")
    said = client.containers.run(
        IMAGE, ["cat", "/v/in"], remove=True, network_mode="host",
        volumes={str(directory): {"bind": "/v", "mode": "ro"}},
    )  # fmt: skip
    assert said == b"content\n"


# --- images


def test_a_build(client: docker.DockerClient, api: Api) -> None:
    """Each RUN is a job."""
    file = f"FROM {IMAGE}\nRUN echo job=$SLURM_JOB_ID > /job\nENV A=b\nCMD cat /job\n"
    image, log = client.images.build(
        fileobj=io.BytesIO(file.encode()), tag="built", network_mode="host", rm=True
    )
    try:
        assert any("built" in json.dumps(line) for line in log)
        said = client.containers.run("built", remove=True, network_mode="host")
        assert (said.strip() != b"job=") is api.on_slurm
    finally:
        client.images.remove(image.id, force=True)


@pytest.mark.nightly
def test_a_load_and_a_save(client: docker.DockerClient) -> None:
    saved = b"".join(client.images.get(IMAGE).save(named=True))
    assert client.images.load(saved)


# --- what it tells


def test_events(client: docker.DockerClient) -> None:
    since = int(time.time())
    client.containers.run(IMAGE, ["true"], remove=True, network_mode="host", name="told")
    # podman reads its file until then, however slow it is: by now it may not have begun
    events = client.events(since=since, until=int(time.time()) + 5, decode=True)
    found = [one["Action"] for one in events if one["Type"] == "container"]
    assert [one for one in found if one in ("create", "start", "die")] == [
        "create", "start", "die",
    ]  # fmt: skip


def test_top(run: Any) -> None:
    assert run("sleep", "1000").top()["Processes"]


@pytest.mark.nightly
@pytest.mark.parametrize("_api", ["docker-slurm"], indirect=True)
def test_a_health_check(run: Any) -> None:
    """podman runs it by timers of systemd's."""
    check = {"test": ["CMD", "true"], "interval": 10**9, "retries": 1}
    container = run("sleep", "1000", healthcheck=check)

    def health() -> bool:
        container.reload()
        return bool(container.attrs["State"]["Health"]["Status"] == "healthy")

    wait_until("it is healthy", health, 30)


def test_many_at_a_time(api: Api) -> None:
    """Six threads with a container each."""
    said: list[bytes] = []

    def one(number: int) -> None:
        with contextlib.closing(docker.DockerClient(base_url=api.url, timeout=60)) as own:
            command = ["echo", str(number)]
            said.append(own.containers.run(IMAGE, command, remove=True, network_mode="host"))

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(said) == [f"{number}\n".encode() for number in range(6)]
