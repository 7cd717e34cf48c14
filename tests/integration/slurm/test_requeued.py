"""A job's script runs again, with the same ids: Slurm has requeued it."""

from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.site import Site, scrun_binary
from tests.harness.wait import wait_until

pytestmark = pytest.mark.covers("promise a job that is requeued")

_SCRIPT = "echo up; sleep 6; echo end"


def submitted(site: Site, *words: str) -> tuple[str, Path]:
    """Submit a script that runs a container; return the job and the file of its output."""
    output, job = site.base / "output", site.base / "job"
    output.touch(0o666)
    output.chmod(0o666)
    command = " ".join([scrun_binary(), "--root", str(site.root), "run", *words])
    job.write_text(
        f"#!/bin/sh\nexport SCRUN_CONFIG={site.environment['SCRUN_CONFIG']}\n"
        f"exec 2>&1\n{command}\n"
    )
    number = cluster.slurm(
        *site.user.prefix, "sbatch", "--parsable", "--requeue", "--open-mode=append",
        "--chdir=/", f"--output={output}", str(job),
    ).strip()  # fmt: skip
    return number, output


def runs_again(number: str, output: Path) -> None:
    """Requeue the job while its container runs; it is to run once more, to its end."""

    def state() -> str:
        return cluster.job(number)["JobState"]

    try:
        wait_until("it runs", lambda: "up" in output.read_text(), 40)
        cluster.slurm("scontrol", "requeue", number)
        wait_until("it waits", lambda: state() == "PENDING", 30)
        cluster.slurm("scontrol", "update", f"JobId={number}", "StartTime=now")
        wait_until("it has ended", lambda: state() in ("COMPLETED", "FAILED"), 60)
        said = [line for line in output.read_text().split("\n") if "***" not in line]
        assert [line for line in said if line] == ["up", "up", "end"]
        assert state() == "COMPLETED"
    finally:
        cluster.slurm("scancel", number)


def test_a_container_of_a_bundle(make_site: MakeSite) -> None:
    """By a shim: slurmstepd of 24.11 calls no RunTimeDelete for what a requeue ends."""
    settings = 'idle_timeout = 5\n[slurm]\nlaunch = "shim"\n'
    site = make_site("slurm-user", settings=settings)
    bundle = site.bundle(site.config("sh", "-c", _SCRIPT))
    runs_again(*submitted(site, "--bundle", str(bundle), "fixed"))


@pytest.mark.nightly
def test_an_image_that_is_written_to(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings="idle_timeout = 5\n")
    words = ("--writable", "--name", "fixed", f"{site.rootfs}", "sh", "-c", f"'{_SCRIPT}'")
    runs_again(*submitted(site, *words))
