"""What containers of a pool see of its processors and GPUs, where Slurm binds and limits a job."""

from collections.abc import Iterator

import pytest

from tests.conftest import MakeSite
from tests.harness import bound
from tests.harness.adoption import UNTIL_TOLD, adopted, kill_supervisor
from tests.harness.life import Life
from tests.harness.site import Site
from tests.integration.slurm.test_pool import IN_POOL, ends, nodes, started, stopped, told

SAY = "grep Cpus_allowed_list /proc/self/status; echo gpus=$CUDA_VISIBLE_DEVICES; cat"
SEES = "echo $CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module", autouse=True)
def binding() -> Iterator[bound.Bound]:
    with bound.bound() as found:
        yield found


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')


def running(site: Site, script: str = SAY, **asked: str) -> Life:
    environment = {**IN_POOL, **asked}
    return site.shell(script, stdin="pipe", environment=environment).created().start()


def processors(site: Site, life: Life) -> tuple[str, str]:
    """Those of its program, and of one more."""
    life.says("gpus=")
    assert life.stdout is not None
    mine = life.stdout.so_far.decode().split("Cpus_allowed_list:")[1].split()[0]
    more = site.must("exec", life.id, "grep", "Cpus_allowed_list", "/proc/self/status").split()[1]
    return mine, more


def test_each_has_processors_of_its_own(site: Site) -> None:
    started(site, "--cpus-per-task", "2")
    lives = [running(site) for _ in range(2)]
    shares = running(site, SCRUN_OVERCOMMIT="yes")
    seen = [processors(site, life) for life in lives]
    assert [mine for mine, _ in seen] == [more for _, more in seen]
    assert len({mine for mine, _ in seen}) == 2
    assert all(mine.isdecimal() for mine, _ in seen)
    assert not processors(site, shares)[0].isdecimal()
    ends(lives[0])
    again = running(site)
    assert processors(site, again) == seen[0]
    for life in (lives[1], shares, again):
        ends(life)
    stopped(site)


def test_each_sees_its_own_gpus(site: Site) -> None:
    started(site, "--cpus-per-task", "2", "--gres", f"gpu:{bound.GPUS}")
    [node] = nodes(site)
    assert node["free"]["gpus"] == node["room"]["gpus"] == bound.GPUS
    lives = [running(site, SCRUN_GPUS="1", SCRUN_OVERCOMMIT="yes") for _ in range(2)]
    for index, life in enumerate(lives):
        life.says(f"gpus={index}\n")
        assert site.must("exec", life.id, "sh", "-c", SEES) == f"{index}\n"
    running_without = running(site).says("gpus=-1\n")
    waits = running(site, SCRUN_GRES="gpu", SCRUN_OVERCOMMIT="yes")
    assert nodes(site)[0]["waiting"] == 1
    ends(lives[0])
    waits.says("gpus=0\n")
    refused = site.shell("true", environment={**IN_POOL, "SCRUN_GPUS": "3"}).refused()
    assert "none of its nodes has 1 processors and 3 GPUs" in refused
    for life in (lives[1], running_without, waits):
        ends(life)
    stopped(site)


def test_a_successor_knows_whose_gpus_they_are(site: Site) -> None:
    started(site, "--cpus-per-task", "2", "--gres", f"gpu:{bound.GPUS}")
    first = running(site, f"{SEES}; {UNTIL_TOLD}", SCRUN_GPUS="1").says("up")
    kill_supervisor(site)
    adopted(first)
    second = running(site, SCRUN_GPUS="1").says("gpus=1\n")
    told(first)
    third = running(site, SCRUN_GPUS="1").says("gpus=0\n")
    for life in (second, third):
        ends(life)
    stopped(site)
