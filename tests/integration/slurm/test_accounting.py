"""What a site's accounting (slurmdbd) has of containers: `sacct`."""

import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.accounting import accounted, accounting, all_accounted
from tests.harness.daemons import program
from tests.harness.debian import seff
from tests.harness.docker import Docker
from tests.harness.load import MIB, TELL, hold, spin
from tests.harness.nightly import NIGHTLY, nightly, often
from tests.harness.podman import RUN, compose, given, rootless_podman
from tests.harness.program import output_of, run_program
from tests.harness.registry import Registry, box, run
from tests.harness.site import Site
from tests.harness.users import PATH

pytestmark = [
    pytest.mark.covers("promise the queue says which container a job is for"),
    pytest.mark.timeout(400),
]

_COMPOSE = """\
x-podman: {{in_pod: false}}
services:
{services}"""
_SERVICE = """\
  {name}:
    image: localhost/busybox
    network_mode: host
    command: ["true"]
"""


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    with accounting():
        yield


@pytest.fixture
def registry(make_site: MakeSite) -> Iterator[Registry]:
    site = make_site("slurm-user")
    del site.environment["SCRUN_JOB_NAME"]
    registry = Registry(site)
    registry.start()
    registry.push("box:1", Cmd=["true"])
    yield registry
    registry.close()


@pytest.mark.nightly
def test_mixed_containers(registry: Registry) -> None:
    """Of whoever made them: name, image and digest of each."""
    each, said = 13, dict[str, str]()
    digest = registry.digest("box:1")
    for number in range(each):
        run(registry, "--name", f"run{number}", box(registry), "true", says="")
        said[f"run{number}"] = f"{box(registry)}@{digest}"
    with rootless_podman() as podman:
        [image] = json.loads(podman.must("image", "inspect", "busybox", "--format", "json"))
        for number in range(each):
            podman.must(*RUN, "--rm", "--name", f"podman{number}", "busybox", "true")
            said[f"podman{number}"] = f"localhost/busybox:latest@{image['Digest']}"
        services = [f"service{number}" for number in range(each)]
        text = _COMPOSE.format(services="".join(_SERVICE.format(name=name) for name in services))
        given(podman, "compose.yaml", text)
        compose(podman, "up")
        compose(podman, "down")
        for name in services:
            said[f"proj_{name}_1"] = f"localhost/busybox:latest@{image['Digest']}"
    with Docker(named=False) as docker:
        docker.must("pull", f"{registry.name}/box:1")
        identity = docker.must("image", "inspect", "--format", "{{.Id}}", "busybox").strip()
        for number in range(each):
            name = "busybox" if number % 2 else f"{registry.name}/box:1"
            words = ("--rm", "--network", "host", "--name", f"docker{number}", name, "true")
            docker.must("run", *words)
            said[f"docker{number}"] = f"{name}@{identity if number % 2 else digest}"
    assert len(said) == 4 * each
    rows = all_accounted(len(said), lambda row: row["JobName"] in said, "JobName", "Comment")
    told = {row["JobName"]: row["Comment"].split(" ")[1:] for row in rows}
    assert len(rows) == len(said)
    for name, image in said.items():
        assert told[name] == [f"image={image}", f"name={name}"]
        assert re.search("@sha256:[0-9a-f]{64}$", image)
    table = cluster.slurm("sacct", "-a", "-X", "-o", "jobname%30,comment%300")
    missing = [name for name in said if not re.search(f" {name} .*{said[name]} ", table)]
    assert missing == [], table


_READS = f'while [ "$({TELL})" -lt 300 ]; do cat /big /big >/dev/null; done'
# seff has whole seconds: of 24 that is two of a hundred
_LOADS = {"spin": spin(often(4, 24)), "fill": hold(600, 4), "read": _READS}


@pytest.mark.covers("promise what a container has used")
@pytest.mark.parametrize("load", ["spin", *(nightly(load) for load in _LOADS if load != "spin")])
def test_what_accounting_has_counted(make_site: MakeSite, load: str) -> None:
    """/proc in the container, `state`, `report`, sacct, reportseff and seff: one run.

    Slurm counts the step, with the shim in it: 0.05 s and 16 MiB. A job takes whole seconds, and
    has some in which its container does not run: times and percentages are not compared.
    """
    site = make_site("slurm-user")
    site.environment |= {"SCRUN_MEM_PER_NODE": "1G", "SCRUN_CPUS_PER_TASK": "2"}
    (site.rootfs / "big").write_bytes(bytes(64 * MIB))
    bundle = site.bundle_of("sh", "-c", f"{_LOADS[load]}; {TELL}")
    of_proc = int(site.must("run", "--keep", "--bundle", bundle, "one", timeout=150)) / 100
    usage = json.loads(site.must("state", "one"))["annotations"]["org.scrun.usage"]
    state = json.loads(usage)
    [row] = json.loads(site.must("report", "--format", "json"))["rows"]
    site.must("delete", "one")
    fields = ("TotalCPU", "MaxRSS", "AllocCPUS", "ElapsedRaw")
    whole, *steps = accounted(row["job"], *fields, steps=True)
    other = _reportseff(row["job"])
    third = _seff(row["job"]) if NIGHTLY else {}
    print(of_proc, state, row, whole, steps, other, third)
    assert int(whole["AllocCPUS"]) == row["cpus"] == state["cpus"] == 2
    if load == "fill":
        in_memory = max(int(step["MaxRSS"].removesuffix("K")) << 10 for step in steps)
        of_reportseff = float(other["MemEff"]) / 100 * row["memory_limit"]
        counted = [state["memory"], row["memory"], in_memory, of_reportseff]
        if third:
            number, unit = third["Memory Utilized"].split()
            assert unit == "MB"
            counted.append(float(number) * MIB)
        assert counted == pytest.approx([600 * MIB] * len(counted), rel=0.05)
        return
    assert of_proc > 2
    of_sacct, had = _seconds(whole["TotalCPU"]), int(whole["ElapsedRaw"]) * 2
    counted = [state["user"] + state["system"], row["cpu_seconds"], of_sacct]
    if third and load == "spin":
        counted.append(_seconds(third["CPU Utilized"]))
    assert counted == pytest.approx([of_proc] * len(counted), rel=0.05)
    # it leaves parts of a second out
    of_reportseff = float(other["CPUEff"]) / 100 * had
    assert of_reportseff == pytest.approx(int(of_sacct), abs=0.002 * had)
    assert row["cpu_percent"] == pytest.approx(50 * of_proc / state["wall"], rel=0.05)


@pytest.fixture
def without_sacct(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with Slurm's commands, of which sacct is not installed."""
    place = tmp_path_factory.mktemp("bin")
    os.chmod(place, 0o755)
    for path in place.parents[:2]:
        path.chmod(0o755)
    for name in ("salloc", "srun", "squeue", "scancel", "scontrol", "sinfo"):
        (place / name).symlink_to(program(name))
    return str(place)


@pytest.mark.covers("scrun exit statuses: out of memory, preempted, cancelled and by whom")
@pytest.mark.parametrize("has", ["accounting", nightly("no slurmdbd"), nightly("no sacct")])
def test_who_has_cancelled_it(make_site: MakeSite, has: str, without_sacct: str) -> None:
    """Only accounting knows; nothing waits for it, and `state` and `report` need none."""
    more = f"[slurm]\nbin = '{without_sacct}'\n" if has == "no sacct" else ""
    site = make_site("slurm-user", settings=f"idle_timeout = 20\n{more}")
    life = site.shell("echo up; sleep 600").created().start().says("up")
    job = life.job_id
    with cluster.without("accounting") if has == "no slurmdbd" else nullcontext():
        began = time.monotonic()
        cluster.slurm("scancel", job)
        assert life.wait(20) == 122
        assert time.monotonic() - began < 10
        [said] = [line for line in life.errors().splitlines() if "*** STEP" not in line]
        by = " by root" if has == "accounting" else ""
        assert said.endswith(f"job {job} was cancelled{by}")
        assert life.state()["annotations"]["org.scrun.reason"] == "cancelled"
        [found] = [line for line in _doctor(site) if line["name"] == "accounting"]
        assert (found["status"], has) in (("ok", "accounting"), ("warn", has))
        says = {
            "accounting": "names and images",
            "no slurmdbd": "error: ",
            "no sacct": "installed",
        }
        assert says[has] in found["finding"]
        [row] = json.loads(site.must("report", "--format", "json"))["rows"]
        assert (row["job"], row["reason"], row["exit_status"]) == (job, "cancelled", 122)
        life.delete()


def _doctor(site: Site) -> list[dict[str, str]]:
    found = json.loads(site.run("doctor", "--format", "json", "--no-job").stdout)
    assert isinstance(found, list)
    return found


def _seconds(text: str) -> float:
    """Take a time of sacct's apart: `[HH:]MM:SS.mmm`."""
    parts = [float(part) for part in reversed(text.split(":"))]
    return math.fsum(part * 60.0**power for power, part in enumerate(parts))


def _reportseff(job: str) -> dict[str, str]:
    """Return what reportseff says of a job, by the names of its columns."""
    told = ["--parsable", "--format", "jobid,state,elapsed,timeeff,cpueff,memeff"]
    environment = {"PATH": PATH, "SLURM_CONF": cluster.slurm_conf()}
    said = output_of([Path(sys.executable).with_name("reportseff"), *told, job], env=environment)
    head, line = said.splitlines()
    return dict(zip(head.split("|"), line.split("|"), strict=True))


def _seff(job: str) -> dict[str, str]:
    """Return what seff says of a job, by its words."""
    environment = {"PATH": PATH, "SLURM_CONF": cluster.slurm_conf()}
    done = run_program(["perl", seff(), job], env=environment)  # it warns of its own variables
    assert done.returncode == 0, done
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())
