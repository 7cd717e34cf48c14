"""A cluster with accounting beside that of the tests: slurmdbd, with a database of its own."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from unittest import mock

from tests import CHECKOUT
from tests.harness.cluster import run, slurm
from tests.harness.program import run_program
from tests.harness.wait import wait_until

_TOOL = CHECKOUT / "tools" / "slurm-cluster"

Row = Mapping[str, str]


@contextmanager
def accounting() -> Iterator[None]:
    """Be on such a cluster while the block runs; Slurm's commands of the tests ask it."""
    directory = tempfile.mkdtemp(prefix="scrun-test-accounting.", dir="/run")
    os.chmod(directory, 0o755)
    own = {
        "SLURM_CLUSTER_DIR": directory,
        "SLURM_CLUSTER_PORT": "any",
        "SLURM_CLUSTER_ACCOUNTING": "yes",
        "SLURM_CONF": f"{directory}/etc/slurm.conf",
    }
    with mock.patch.dict(os.environ, own):
        try:
            done = run_program([_TOOL, "up"], timeout=120)
            assert done.returncode == 0, done.stderr
            yield
        finally:
            run_program([_TOOL, "down"], timeout=120)
            shutil.rmtree(directory, ignore_errors=True)


def sacct(*fields: str, job: str = "", steps: bool = False) -> Sequence[Row]:
    """Return what accounting has of all jobs, or of one, by the names of fields."""
    which = ["--jobs", job] if job else ["--allusers", "--starttime", "now-1days"]
    told = ["--noheader", "--parsable2", "--format", ",".join(fields)]
    lines = slurm("sacct", *which, *([] if steps else ["--allocations"]), *told).splitlines()
    return [dict(zip(fields, line.split("|"), strict=True)) for line in lines]


def accounted(job: str, *fields: str, steps: bool = False) -> Sequence[Row]:
    """Wait until accounting knows that a job has ended; return what it has of it."""

    def known() -> bool:
        told = run("sacct", "-n", "-X", "-P", "-j", job, "-o", "End")
        return told.returncode == 0 and told.stdout.strip() not in ("", "Unknown")

    # slurmctld hands on what it has every few seconds
    wait_until("accounting knows the job", known, 30)
    return sacct(*fields, job=job, steps=steps)


def all_accounted(count: int, has: Callable[[Row], bool], *fields: str) -> Sequence[Row]:
    """Wait until accounting has so many jobs of a kind; return these."""
    found: list[Row] = []

    def known() -> bool:
        found[:] = [row for row in sacct(*fields) if has(row)]
        return len(found) >= count

    wait_until(f"{count} jobs in accounting", known, 40)
    return found
