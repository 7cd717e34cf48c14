"""What an engine's flags ask for, of a real cluster."""

from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.site import Site
from tests.harness.versions import slurm_version

pytestmark = pytest.mark.covers("promise jobs that wait, and what shapes a job")

as_user = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)

# as Docker writes it for --cpus 1.5 --memory 100m --pids-limit 77
RESOURCES = {
    "memory": {"limit": 104857600, "swap": 209715200, "disableOOMKiller": False},
    "cpu": {"shares": 0, "quota": 150000, "period": 100000},
    "pids": {"limit": 77},
}


def flagged(site: Site, resources: dict[str, Any], annotations: dict[str, str]) -> dict[str, Any]:
    """A config.json as an engine would write it."""
    config: dict[str, Any] = site.config("true")
    config["linux"]["resources"] = resources
    config["annotations"] |= annotations
    return config


@pytest.mark.covers("scrun requests: annotations slurm.*, the engine's flags")
@as_user
def test_limits_and_annotations_become_the_job(site: Site) -> None:
    life = site.life(config=flagged(site, RESOURCES, {"slurm.time": "7"})).created()
    job = cluster.job(life.job_id)
    asked = {"CPUs/Task": "2", "MinMemoryNode": "100M", "TimeLimit": "00:07:00"}
    assert {key: job[key] for key in asked} == asked
    log = (site.root / life.id / "log").read_text()
    assert log.count("--pids-limit 77 is not enforced") == 1
    assert life.start().wait() == 0


@as_user
@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ("slurm.account", "config.json: SCRUN_ACCOUNT: an image could have set it: "),
        nightly("slurm.qos", "config.json: SCRUN_QOS: an image could have set it: "),
        nightly("slurm.mpi_type", "config.json: SCRUN_MPI_TYPE: an image could have set it: "),
        nightly("slurm.partitoin", "slurm.partitoin: unknown request (is it slurm.part"),
        ("SCRUN_PARTITON", "SCRUN_PARTITON: unknown request (is it SCRUN_PART"),
    ],
)
def test_what_an_annotation_may_not_ask_for_is_refused(
    site: Site, annotation: str, reason: str
) -> None:
    assert reason in site.life(config=flagged(site, {}, {annotation: "x"})).refused()
    life = site.life(config=flagged(site, {}, {annotation: ""})).created().start()
    assert life.wait() == 0


def test_the_user_may_allow_more(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\nallow = ["wckey"]\n')
    life = site.life(config=flagged(site, {}, {"slurm.wckey": "tulips"})).created()
    cluster.job(life.job_id)  # the job is there; without accounting Slurm keeps no wckey
    assert life.start().wait() == 0


@pytest.mark.covers("scrun requests: annotations slurm.*, the engine's flags")
@as_user
def test_a_refusal_names_the_flag(site: Site) -> None:
    config = flagged(site, {"memory": {"limit": 1 << 50}}, {})
    said = site.life(config=config).refused()
    assert "SCRUN_MEM_PER_NODE=1073741824M from --memory, linux.resources.memory" in said


@pytest.mark.covers("scrun a job that waits: state, list, log")
@as_user
def test_more_processors_than_a_node_has_name_the_flag(site: Site) -> None:
    life = site.life(config=flagged(site, {"cpu": {"quota": 100_000_000}}, {}))
    refused = life.refused()
    assert "SCRUN_CPUS_PER_TASK=1000 from --cpus, linux.resources.cpu" in refused
    if slurm_version().keeps_what_no_node_has:
        assert "can never start: PartitionConfig" in refused


@pytest.mark.covers("scrun requests: annotations slurm.*, the engine's flags")
def test_they_can_be_switched_off(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings="idle_timeout = 20\n[slurm]\nengine_flags = false\n")
    config = flagged(site, RESOURCES, {"slurm.time": "7"})
    job = cluster.job(site.life(config=config).created().job_id)
    assert (job["CPUs/Task"], job["TimeLimit"]) == ("1", "00:07:00")
    assert job["MinMemoryNode"] != "100M"


@as_user
def test_an_option_without_effect_is_told(site: Site) -> None:
    config = site.config("true")
    spaces = config["linux"]["namespaces"]
    config["linux"]["namespaces"] = [space for space in spaces if space["type"] != "network"]
    config["linux"]["sysctl"] = {"net.core.somaxconn": "9", "net.ipv4.ping_group_range": "0 0"}
    config["linux"]["resources"] = {"pids": {"limit": 10}}
    life = site.life(config=config).created().start()
    assert life.wait() == 0
    said = "scrun: no effect in a job: --pids-limit, --sysctl net.core.somaxconn\n"
    assert life.errors() == said
    life.delete()
