"""Containers as services: forked, then watched and stopped by the process in the pid file."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.podman import RUN, Podman, rootless_podman
from tests.harness.program import output_of
from tests.harness.service import Service
from tests.harness.site import Site, unit
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise engines and services")

on_slurm = pytest.mark.parametrize("site", ["slurm-root", "slurm-user"], indirect=True)


# as buildah 1.42: a subreaper that ends when all is gone that has been started below it
BUILDAH = """
import ctypes, os, subprocess, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
bundle, pid_file, *scrun = sys.argv[1:]
subprocess.run([*scrun, "create", "--bundle", bundle, "--pid-file", pid_file, "one"], check=True)
subprocess.run([*scrun, "start", "one"], check=True)
os.waitpid(int(open(pid_file).read()), 0)
subprocess.run([*scrun, "delete", "one"], check=True)
try:
    while True:
        os.wait()
except ChildProcessError:
    pass
"""


@pytest.mark.parametrize(
    ("kind", "linger"), [nightly("slurm-user", 0), ("slurm-user", 600), nightly("local-user", 600)]
)
@pytest.mark.parametrize("around", ["", "sh -c '\"$@\"; exit' sh "], ids=["", "by-a-script"])
def test_buildah_waits_for_no_supervisor(
    make_site: MakeSite, kind: str, linger: int, around: str
) -> None:
    """Nor for a job that waits for the next step, or for one that `delete` would have to start."""
    site = make_site(kind, settings=f"idle_timeout = 600\n[slurm]\nlinger = {linger}\n")
    bundle = site.bundle_of("true")
    scrun = [*shlex.split(around), *site.command]
    python = [sys.executable, "-I", "-S", "-c", BUILDAH, bundle, str(site.base / "b" / "pid")]
    named = ["bash", "-c", 'exec -a buildah-oci-runtime "$@"', "bash"]
    began = time.monotonic()
    output_of([*site.user.prefix, *named, *python, *scrun], env=site.environment)
    assert time.monotonic() - began < 7
    assert site.supervisors() == []


STEP = """
import os, select, subprocess, sys
bundle, pid_file, *scrun = sys.argv[1:]
subprocess.run([*scrun, "create", "--bundle", bundle, "--pid-file", pid_file, "one"], check=True)
link = os.readlink(scrun[2] + "/one/supervisor")
print(os.path.basename(link)[:5], flush=True)
anchor = os.pidfd_open(int(open(pid_file).read()))
subprocess.run([*scrun, "start", "one"], check=True)
select.select([anchor], [], [])
subprocess.run([*scrun, "delete", "one"], check=True)
"""


@pytest.mark.parametrize(
    ("kind", "served_by"),
    [("slurm-root", "@user"), ("local-root", "@user"), ("slurm-user", "@pod-")],
)
def test_a_supervisor_enters_the_mounts_of_a_build(
    make_site: MakeSite, kind: str, served_by: str
) -> None:
    """Where it is permitted, which it is not for a user without a namespace of their own."""
    site = make_site(kind, settings="idle_timeout = 600\n")
    site.must("run", "--bundle", site.bundle_of("true"), "before")
    [common] = site.supervisors()
    config = site.config("sh", "-c", "echo done > /done")
    config["root"]["readonly"] = False
    bundle = str(site.bundle(config))
    there = site.base / "there"
    there.mkdir()
    python = [sys.executable, "-I", "-S", "-c", STEP, str(there), str(site.base / "b" / "pid")]
    named = ["bash", "-c", 'exec -a buildah-oci-runtime "$@"', "bash"]
    mount = f'mount --bind {shlex.quote(bundle)} {shlex.quote(str(there))} && exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mount, "sh", *site.user.prefix]
    said = output_of([*words, *named, *python, *site.command], env=site.environment)
    assert said == f"{served_by}\n"
    wait_while("its own", lambda: site.supervisors() != [common])
    assert (Path(site.rootfs) / "done").read_text() == "done\n"
    assert [*there.iterdir()] == []
    held = [os.readlink(fd) for fd in Path(f"/proc/{common}/fd").iterdir()]
    assert [name for name in held if name.startswith("mnt:")] == []


@pytest.mark.covers("service it ends, with its status, and is started again")
@on_slurm
def test_a_service_that_ends_is_started_again(site: Site) -> None:
    with unit(site, "exit 3", starts=2) as service:
        for _ in range(2):
            service.tells("main")
            assert service.tells("ended") == 3
        service.wait()


@pytest.mark.covers("service it is stopped by TERM to the main process, then KILL")
@on_slurm
def test_a_service_is_stopped_by_its_main_process(site: Site) -> None:
    with unit(site, "exec sleep 600") as service:
        main = service.tells("main")
        assert site.must("list", "--quiet") == "unit\n"
        assert Path(f"/proc/{main}/cmdline").read_bytes().startswith(b"scrun-anchor unit\0")
        assert service.stop(20) == 128 + signal.SIGTERM
    assert site.must("list", "--quiet") == ""


@pytest.mark.covers("service it is stopped by TERM to the main process, then KILL")
@on_slurm
def test_a_main_process_that_is_killed_takes_its_job_along(site: Site) -> None:
    with unit(site, "trap '' TERM; echo up; exec sleep 600") as service:
        service.tells("main")
        wait_until("it is up", lambda: "up\n" in service.errors())
        assert service.stop(0) in (-signal.SIGKILL, 128 + signal.SIGTERM)
    site.settle(10)


@pytest.mark.covers("service a start that fails is told at once, and leaves no pid file")
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
    with rootless_podman(create_timeout=1) as podman:
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


@pytest.mark.nightly
@pytest.mark.covers("podman generate", "service it ends, with its status, and is started again")
def test_a_podman_service_that_ends_is_started_again(podman: Podman) -> None:
    with podman_unit(podman, "exit 3", 2)[0] as service:
        for _ in range(2):
            service.tells("main")
            assert service.tells("ended") == 3
        service.wait()
    assert podman.must("ps", "--all", "--quiet") == ""


@pytest.mark.covers(
    "podman generate", "podman auto-update", "service it is stopped by podman stop --cidfile"
)
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


@pytest.mark.covers("service its job waits: the start returns")
def test_a_podman_service_is_up_while_its_job_waits(podman: Podman) -> None:
    service, _ = podman_unit(podman, "exit 3", 1)
    with service:
        with cluster.full(podman.site.user):
            service.tells("main")
            wait_until("it is up", lambda: "Up " in podman.must("ps"))
        assert service.tells("ended") == 3
        service.wait()
    assert podman.must("ps", "--all", "--quiet") == ""


@pytest.mark.nightly
@pytest.mark.covers("service its job waits: the start returns")
def test_a_podman_service_is_stopped_while_its_job_waits(podman: Podman) -> None:
    service, id_file = podman_unit(podman, "true", 1)
    with service, cluster.full(podman.site.user):
        service.tells("main")
        podman.must("stop", "--time", "60", "--cidfile", id_file)
        assert service.tells("ended") == 143
        service.wait()
        wait_while(
            "the job", lambda: [job for job in cluster.jobs(podman.site.user) if "full" not in job]
        )
