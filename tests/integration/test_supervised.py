"""Containers as services: forked, then watched and stopped by the process in the pid file."""

import shlex
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.podman import RUN, Podman, rootless_podman
from tests.harness.service import Service
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

on_slurm = pytest.mark.parametrize("site", ["slurm-root", "slurm-user"], indirect=True)


def unit(site: Site, script: str, starts: int = 1) -> Service:
    """A service whose ExecStart= is `scrun run --detach --pid-file`."""
    bundle = site.bundle(site.config("sh", "-c", script))
    pid_file = site.base / "b" / "unit.pid"
    scrun = shlex.join(site.command)
    return Service(
        site.user.prefix,
        site.environment,
        site.base / "b",
        pid_file=pid_file,
        start=f"{scrun} run --detach --pid-file {pid_file} --bundle {bundle} unit",
        stop_post=f"{scrun} delete --force unit",
        starts=starts,
    )


@on_slurm
def test_a_service_that_ends_is_started_again(site: Site) -> None:
    with unit(site, "exit 3", starts=2) as service:
        for _ in range(2):
            service.tells("main")
            assert service.tells("ended") == 3
        service.wait()


@on_slurm
def test_a_service_is_stopped_by_its_main_process(site: Site) -> None:
    with unit(site, "exec sleep 600") as service:
        main = service.tells("main")
        assert site.must("list", "--quiet") == "unit\n"
        assert Path(f"/proc/{main}/cmdline").read_bytes().startswith(b"scrun-anchor\0")
        assert service.stop(20) == 128 + signal.SIGTERM
    assert site.must("list", "--quiet") == ""


@on_slurm
def test_a_main_process_that_is_killed_takes_its_job_along(site: Site) -> None:
    with unit(site, "trap '' TERM; echo up; exec sleep 600") as service:
        service.tells("main")
        wait_until("it is up", lambda: "up\n" in service.errors())
        assert service.stop(0) in (-signal.SIGKILL, 128 + signal.SIGTERM)
    site.settle(10)


@on_slurm
def test_a_start_that_fails_is_told(site: Site) -> None:
    config = site.config("no-such-program")
    bundle = site.bundle(config)
    pid_file = site.base / "b" / "unit.pid"
    done = site.run("run", "--detach", "--pid-file", str(pid_file), "-b", str(bundle), "unit")
    assert done.returncode == 1
    assert "not found in $PATH" in done.stderr
    assert not pid_file.exists()


@pytest.fixture
def podman() -> Iterator[Podman]:
    """Podman whose first container is the service: its conmon has the supervisor for a child."""
    with rootless_podman() as podman:
        yield podman
        wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)


def podman_unit(podman: Podman, script: str, starts: int) -> tuple[Service, str]:
    """A service as `podman generate systemd` writes it; and its file with the container's id."""
    site, place = podman.site, podman.site.base / "x"
    pid_file, id_file = place / "conmon.pid", place / "ctr-id"
    words = ["podman", "--root", f"{site.base}/s", "--runroot", f"{place}/s"]
    words += ["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]
    words += ["--events-backend", "file", "--runtime", site.command[0]]
    command = shlex.join(words)
    options = f"--detach --name unit --replace --conmon-pidfile {pid_file} --cidfile {id_file}"
    service = Service(
        site.user.prefix,
        {**site.user.environment, "XDG_RUNTIME_DIR": str(place), "TMPDIR": str(site.base)},
        place,
        pid_file=pid_file,
        start=f"{command} {shlex.join(RUN)} {options} busybox sh -c {shlex.quote(script)}",
        stop_post=f"{command} stop --ignore --time 5 --cidfile {id_file};"
        f"{command} rm --force --ignore --cidfile {id_file}; rm -f {id_file}",
        starts=starts,
    )
    return service, str(id_file)


def test_a_podman_service_that_ends_is_started_again(podman: Podman) -> None:
    with podman_unit(podman, "exit 3", 2)[0] as service:
        for _ in range(2):
            service.tells("main")
            assert service.tells("ended") == 3
        service.wait()
    assert podman.must("ps", "--all", "--quiet") == ""


def test_a_podman_service_is_stopped_by_podman(podman: Podman) -> None:
    service, id_file = podman_unit(podman, "trap 'exit 4' TERM; while :; do sleep 0.1; done", 2)
    with service:
        service.tells("main")
        wait_until("it runs", lambda: podman.must("ps", "--quiet") != "")
        podman.must("stop", "--time", "10", "--cidfile", id_file)
        assert service.tells("ended") == 4
        service.tells("main")
        service.stop(10)
    assert podman.must("ps", "--all", "--quiet") == ""
