"""What scrun says about a container, and where: `-v`, `--log`, SCRUN_*_DEBUG, syslog."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.podman import Podman
from tests.harness.site import Site
from tests.harness.wait import wait_until

one_each = pytest.mark.parametrize("site", ["local-root", "slurm-user"], indirect=True)

LEVELS = {"fatal", "error", "info", "debug"}


def entries(log: Path) -> list[dict[str, str]]:
    """The lines of a log in JSON, as runc writes them and podman reads them."""
    found = [json.loads(line) for line in log.read_text().splitlines()]
    for entry in found:
        assert list(entry) == ["level", "msg", "time"]
        assert entry["level"] in LEVELS
    return found


def place_for(site: Site, name: str) -> Path:
    """A path that the site's user may write to; removed after the test."""
    return site.base / "l" / name


def run_to_the_end(site: Site, *options: str, **environment: str) -> str:
    """A whole life; the container's standard error, which says `own`."""
    life = site.shell("echo own >&2", options=options, environment=environment).created().start()
    life.ends()
    return life.errors()


# Standard error


@pytest.mark.covers("slurm-scrun messages in the container's standard error")
def test_nothing_is_said_by_default(site: Site) -> None:
    assert run_to_the_end(site) == "own\n"


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --debug, --verbose, --log, --log-format")
@pytest.mark.parametrize(
    ("options", "environment"),
    [
        (("-v",), {}),
        nightly(("--debug",), {}),
        nightly((), {"SCRUN_STDERR_DEBUG": "Verbose"}),
        ((), {"SCRUN_DEBUG": "verbose"}),
    ],
)
def test_create_says_what_it_does_until_it_is_done(
    site: Site, options: tuple[str, ...], environment: dict[str, str]
) -> None:
    *said, last = run_to_the_end(site, *options, **environment).splitlines()
    assert last == "own"
    assert all(line.startswith("scrun: ") for line in said)
    assert said[-1] == "scrun: it is created"
    assert any(line.startswith("scrun: the job is ") for line in said)
    if site.engine == "slurm":
        assert any("salloc: Granted job allocation" in line for line in said)


@one_each
def test_typed_levels_leave_the_containers_error_alone_where_there_is_a_log(site: Site) -> None:
    log = place_for(site, "log")
    assert run_to_the_end(site, "-v", "--log", str(log)) == "own\n"
    assert 'level=info msg="it is created"' in log.read_text().splitlines()[-1]
    log.unlink()
    said = run_to_the_end(site, "--log", str(log), SCRUN_STDERR_DEBUG="5")
    assert said.endswith("scrun: it is created\nown\n")
    assert not log.exists()


@one_each
def test_the_error_is_said_once_and_last(site: Site) -> None:
    life = site.life("no-such-program", options=("--debug",))
    assert life.create_status() == 1
    *_, last = said = life.errors().splitlines()
    assert last.startswith("scrun: ")
    assert len([line for line in said if "no-such-program" in line]) == 1


@one_each
def test_a_standard_error_that_nobody_reads_holds_nothing_up(site: Site) -> None:
    """conmon reads its pipe only after `create` has ended."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    try:
        while True:
            os.write(writable, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(writable, True)
    life = site.life("true", options=("--debug",), stderr=writable)
    os.close(writable)
    life.created().start()
    life.ends()
    os.close(readable)


# --log


@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: SCRUN_DEBUG and its three siblings")
@one_each
def test_more_goes_to_the_log_only_when_this_call_asks(site: Site) -> None:
    log = place_for(site, "log")
    words = ("--log", str(log), "--log-format", "json")
    assert site.life("no-such-program", options=words).create_status() == 1
    [only] = entries(log)
    assert only["level"] == "error"
    log.unlink()
    asked: list[tuple[tuple[str, ...], dict[str, str]]] = [
        (("--debug",), {}),
        (("-v",), {}),
        (("--log-level", "debug"), {}),
        ((), {"SCRUN_DEBUG": "VERBOSE"}),
        ((), {"SCRUN_FILE_DEBUG": "4"}),
    ]
    for options, environment in asked:
        run_to_the_end(site, *words, *options, **environment)
        assert entries(log)[-1]["msg"] == "it is created", (options, environment)
        log.unlink()
    config = site.config("true")
    config["root"]["path"] = "/no/such/rootfs"
    life = site.life(config=config, options=(*words, "--debug"))
    assert "/no/such/rootfs" in life.refused()
    found = [entry for entry in entries(log) if entry["level"] == "error"]
    assert len(found) == 1
    assert found[0] == entries(log)[-1]


# The file, and the container's own log


@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: SCRUN_DEBUG and its three siblings")
@one_each
def test_the_file_of_the_environment(site: Site) -> None:
    file = place_for(site, "file")
    environment = {"SCRUN_LOG_FILE": str(file), "SCRUN_FILE_DEBUG": "Verbose"}
    life = site.shell("exit 3", environment=environment).created()
    own = site.root / life.id / "log"
    assert "it is created" not in own.read_text()  # that is `info`
    life.start()
    life.wait()
    assert f'level=info msg="container {life.id}: it is created"' in file.read_text()
    # its engine may know of the end first; a thread writes the file
    running = f'level=info msg="container {life.id}: it is running"'
    wait_until("it is running", lambda: running in file.read_text())
    assert life.status == "stopped"
    again = site.run("start", life.id, environment=environment)
    assert again.returncode == 1
    assert f'level=error msg="container {life.id}: ' in file.read_text().splitlines()[-1]

    bad = site.life("no-such-program", environment=environment)
    assert bad.create_status() == 1
    [told] = [line for line in file.read_text().splitlines() if "no-such-program" in line]
    assert f'level=error msg="container {bad.id}: ' in told


@one_each
def test_a_container_that_is_already_there_is_told_to_the_file(site: Site) -> None:
    file = place_for(site, "file")
    life = site.life("true").created()
    environment = {"SCRUN_LOG_FILE": str(file)}
    done = site.run("create", "--bundle", str(life.bundle), life.id, environment=environment)
    assert done.returncode == 1
    assert file.read_text().count("already exists") == 1


@pytest.mark.parametrize(
    "name", ["DEBUG", nightly("STDERR_DEBUG"), nightly("SYSLOG_DEBUG"), nightly("FILE_DEBUG")]
)
@pytest.mark.parametrize("site", ["local-root"], indirect=True)
def test_a_level_that_is_none(site: Site, name: str) -> None:
    said = site.life("true", environment={f"SCRUN_{name}": "loud"}).refused()
    assert said.startswith(f"scrun: SCRUN_{name}: loud: ")
    site.settle()


# syslog


@contextmanager
def syslogd(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(path))
        daemon.settimeout(5)
        path.chmod(0o777)
        yield daemon


def until(daemon: socket.socket, text: str) -> list[str]:
    got = [daemon.recv(9000).decode()]
    while text not in got[-1]:
        got.append(daemon.recv(9000).decode())
    return got


@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: SCRUN_DEBUG and its three siblings")
@pytest.mark.parametrize("place", ["local-root", "slurm-user"])
def test_syslog(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    path = site.base / "syslog"
    settings = site.base / "scrun.toml"
    settings.write_text(f'{settings.read_text()}[log]\nsyslog = "{path}"\n')
    environment = {"SCRUN_SYSLOG_DEBUG": "verbose"}
    with syslogd(path) as daemon:
        assert run_to_the_end(site) == "own\n"  # off by default
        life = site.shell("exit 3", environment=environment).created()
        [pid] = site.supervisors()
        got = until(daemon, "it is created")
        assert all(f" scrun[{pid}]: container {life.id}: " in line for line in got)
        assert all(line.startswith("<30>") for line in got)
        life.start()
        assert life.wait() == 3
        until(daemon, "it is running")
        bad = site.life("no-such-program", environment=environment)
        bad.create_status()
        *_, last = until(daemon, "no-such-program")
        assert last.startswith("<27>")
    path.unlink()
    quiet = site.shell("exit 4", environment=environment).created().start()  # nobody listens
    assert quiet.wait() == 4
    with syslogd(path) as daemon:
        full = site.shell("exit 5", environment=environment).created().start()  # nobody reads
        assert full.wait() == 5


# While a job waits


@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_what_it_waits_for_is_said_at_once(site: Site) -> None:
    with cluster.full(site.user):
        life = site.life("true", options=("-v",))
        life.complains("Pending job allocation")
    life.created().complains("scrun: it is created\n")
    assert life.stderr is not None
    assert life.stderr.so_far.endswith(b"scrun: it is created\n")


def creating(site: Site) -> list[int]:
    """The processes that are `create`; at first the one that makes the anchor looks the same."""
    return [
        process.pid
        for process in site.processes()
        if "create" in process.argv
        and process.is_scrun
        and not any("subreaper" in argument for argument in process.argv)
    ]


@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
@pytest.mark.parametrize("stopped", [True, False])
def test_a_create_that_is_killed_while_it_listens(site: Site, stopped: bool) -> None:
    with cluster.full(site.user):
        life = site.life("true", options=("--debug",)).wait_for("creating")
        wait_until("its anchor is another program", lambda: len(creating(site)) == 1)
        [create] = creating(site)
        if stopped:
            os.kill(create, signal.SIGSTOP)
            wait_until("the job waits", lambda: "PENDING" in str(cluster.jobs(site.user)))
            assert life.status == "creating"
        os.kill(create, signal.SIGKILL)
        assert life.create_status() == -9
        wait_until("it is gone", lambda: life.status == "gone")


# podman


RUN = ("run", "--rm", "--network", "host")


def test_podman_debug(podman: Podman) -> None:
    own = (*RUN, "busybox", "sh", "-c", "echo own >&2")
    done = podman.run("--runtime-flag", "debug", *own)
    *said, last = done.stderr.splitlines()
    assert (done.returncode, last) == (0, "own")
    assert all(line.startswith("scrun: ") for line in said)  # as many as conmon has not lost
    log = podman.site.base / "l" / "podman"
    flags = ("--runtime-flag", "debug", "--runtime-flag", f"log={log}")
    done = podman.run(*flags, "--runtime-flag", "log-format=json", *own)
    assert (done.returncode, done.stderr) == (0, "own\n")
    assert "it is created" in [entry["msg"] for entry in entries(log)]
    done = podman.run(*RUN, "busybox", "no-such-program")
    assert done.returncode == 127
    done = podman.run("--runtime-flag", "debug", *RUN, "busybox", "no-such-program")
    assert done.returncode == 127
    assert "not found in $PATH" in done.stderr


@one_each
def test_a_containers_status_is_no_error_of_ours(site: Site) -> None:
    life = site.shell("exit 3").created().start()
    assert life.wait() == 3
    assert "level=error" not in (site.root / life.id / "log").read_text()
    life.delete()
