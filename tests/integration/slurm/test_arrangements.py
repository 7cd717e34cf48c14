"""What settings and surroundings change: groups, oci.conf, a job that is there already, logs."""

import json
import signal
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.site import Site, several_lives, whole_life
from tests.harness.wait import wait_while

RUN = """
RunTimeRun="exec runc --root={state} run --bundle=%b %j.%t"
RunTimeKill="runc --root={state} kill %j.%t TERM"
RunTimeDelete="runc --root={state} delete --force %j.%t"
"""
CREATE = """
RunTimeCreate="runc --root={state} create --bundle=%b %j.%t"
RunTimeStart="runc --root={state} start %j.%t"
RunTimeQuery="runc --root={state} state %j.%t"
RunTimeKill="runc --root={state} kill %j.%t TERM"
RunTimeDelete="runc --root={state} delete --force %j.%t"
"""


@pytest.mark.parametrize("commands", [RUN, CREATE], ids=["run", "create-start-query"])
def test_commands_of_an_oci_conf(make_site: MakeSite, tmp_path: Path, commands: str) -> None:
    conf = tmp_path / "oci.conf"
    conf.write_text(commands.format(state=tmp_path / "state"))
    site = make_site("local-root", settings=f'[local]\noci_conf = "{conf}"\n')
    several_lives(site)


def test_a_group_for_each_container(make_site: MakeSite) -> None:
    site = make_site("local-root", settings='group = "container"\nidle_timeout = 1\n')
    lives = [site.life("sleep", "600").created().start() for _ in range(2)]
    assert len(site.supervisors()) == 2
    lives[0].delete()
    assert lives[1].status == "running"
    lives[1].delete()
    wait_while("supervisors", site.supervisors)


def test_a_group_for_each_pod(make_site: MakeSite) -> None:
    site = make_site("local-root", settings='group = "pod"\n')
    for pod in ("a", "b", "a"):
        config = site.config("sleep", "600")
        config["annotations"] = {"io.kubernetes.cri.sandbox-id": pod}
        site.life(config=config).created()
    assert len(site.supervisors()) == 2


@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_inside_a_job(site: Site) -> None:
    """SLURM_JOB_ID in the environment of create: the container is a step of that job."""
    name = f"--job-name={site.base.name}"
    outer = cluster.slurm(
        "sbatch", "--parsable", "-N1", name, "-o", "/dev/null", "--chdir=/",
        f"--uid={site.user.uid}", f"--gid={site.user.uid}", "--wrap", "exec sleep 600",
    ).strip()  # fmt: skip
    try:
        wait_while("the job waits", lambda: not cluster.node_of(outer))
        site.environment["SLURM_JOB_ID"] = outer
        life = site.shell("echo inside; exit 5").created()
        assert life.job_id == outer
        life.start().ends(5, says="inside\n")
        assert any(job.startswith(f"{outer} RUNNING") for job in cluster.jobs(site.user))
    finally:
        del site.environment["SLURM_JOB_ID"]
        cluster.slurm("scancel", outer)
    site.settle(15)


@pytest.mark.parametrize("place", ["slurm-user", "local-root"])
def test_log_file_of_the_settings(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings="")
    log = site.base / "all.log"
    content = (
        f'engine = "{site.engine}"\n[log]\nfile = "{log}"\nformat = "json"\nlevel = "debug"\n'
    )
    (site.base / "scrun.toml").write_text(content)
    assert whole_life(site) == 0
    killed = site.life("sleep", "600").created()
    killed.kill("TERM")
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert any(f"container {killed.id}: " in entry["msg"] for entry in entries)
    assert all({"level", "msg", "time"} == set(entry) for entry in entries)


def test_no_runtime_is_said_with_the_remedy(make_site: MakeSite) -> None:
    site = make_site("local-root", settings='[local]\nruntime = "no-such-runtime"\n')
    said = site.life("true").refused()
    assert "no-such-runtime" in said
    assert "install" in said
    site.settle()


def test_what_the_first_caller_ignores_is_its_own_matter(make_site: MakeSite) -> None:
    site = make_site("local-user")
    ignoring = "trap '' HUP INT QUIT USR1 TERM; exec \"$@\""
    site.command = ["/bin/sh", "-c", ignoring, "sh", *site.command]
    life = (
        site.shell("trap 'exit 9' INT; echo up; while :; do sleep 0.1; done")
        .created()
        .start()
        .says("up")
    )
    [supervisor] = site.supervisors()
    status = Path(f"/proc/{supervisor}/status").read_text()
    [ignored] = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")]
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGTERM):
        assert not int(ignored, 16) & 1 << number - 1, number
    life.kill("INT")
    life.ends(9)
