"""What an engine's flags ask for, of a real cluster."""

from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until

as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)

# as Docker writes it for --cpus 1.5 --memory 100m --pids-limit 77
RESOURCES = {
    "memory": {"limit": 104857600, "swap": 209715200, "disableOOMKiller": False},
    "cpu": {"shares": 0, "quota": 150000, "period": 100000},
    "pids": {"limit": 77},
}


def job_of(life: Life) -> dict[str, str]:
    """What slurmctld knows about a container's job, as it names it."""
    number = life.state()["annotations"]["org.scrun.job_id"]
    shown = cluster.slurm("scontrol", "-o", "show", "job", number)
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def flagged(site: Site, resources: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    """A config.json as an engine would write it."""
    config: dict[str, Any] = site.config("true")
    config["linux"]["resources"] = resources
    config["annotations"] |= annotations
    return config


@as_user
def test_limits_and_annotations_become_the_job(site: Site) -> None:
    annotations = {"slurm.time": "7", "slurm.account": "x", "slurm.partitoin": "x"}
    life = site.life(config=flagged(site, RESOURCES, annotations)).created()
    job = job_of(life)
    asked = {"CPUs/Task": "2", "MinMemoryNode": "100M", "TimeLimit": "00:07:00"}
    assert {key: job[key] for key in asked} == asked
    assert job["Account"] != "x"
    log = (site.root / life.id / "log").read_text()
    for words in (
        "--pids-limit 77 is not enforced",
        "SCRUN_ACCOUNT of config.json is ignored",
        "annotation slurm.partitoin is ignored: is no request that scrun knows (is it "
        "slurm.partition?)",
    ):
        assert log.count(words) == 1
    assert life.start().wait() == 0


@as_user
def test_a_refusal_names_the_flag(site: Site) -> None:
    config = flagged(site, {"memory": {"limit": 1 << 50}}, {})
    said = site.life(config=config).refused()
    assert "SCRUN_MEM_PER_NODE=1073741824M from --memory, linux.resources.memory" in said


@as_user
def test_more_processors_than_a_node_has_name_the_flag(site: Site) -> None:
    life = site.life(config=flagged(site, {"cpu": {"quota": 100_000_000}}, {}))
    if not slurm_version().keeps_what_no_node_has:
        assert "SCRUN_CPUS_PER_TASK=1000 from --cpus, linux.resources.cpu" in life.refused()
        return
    log = site.root / life.id / "log"
    wait_until("it is told", lambda: log.exists() and " pending: " in log.read_text())
    assert "pending: PartitionConfig" in log.read_text()
    assert "SCRUN_CPUS_PER_TASK=1000 from --cpus, linux.resources.cpu" in log.read_text()


def test_they_can_be_switched_off(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings="idle_timeout = 20\n[slurm]\nengine_flags = false\n")
    config = flagged(site, RESOURCES, {"slurm.time": "7"})
    job = job_of(site.life(config=config).created())
    assert (job["CPUs/Task"], job["TimeLimit"]) == ("1", "00:07:00")
    assert job["MinMemoryNode"] != "100M"
