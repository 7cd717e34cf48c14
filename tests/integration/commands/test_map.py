"""`scrun map`: containers here, in jobs of their own and in a pool."""

import json
import signal

import pytest

from tests.conftest import MakeSite
from tests.harness.nightly import nightly
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = [pytest.mark.covers("scrun map"), pytest.mark.shares_sites]

_PLACES = pytest.mark.parametrize("place", ["local-root", "slurm-user"])
_OBJECT = {
    "args": ["sh", "-c", "echo $X $(id -u)"],
    "env": {"X": "a  b"},
    "requests": {"cpus": 1, "time": "5"},
}


def write(site: Site, *lines: str) -> str:
    file = site.base / "work.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def output(site: Site, name: str) -> str:
    return (site.base / "map-work.out" / name).read_text()


def running(site: Site) -> int:
    return site.must("list").count(" running ")


@pytest.mark.every_launch
@_PLACES
def test_each_line(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    data = site.base / "data"
    data.mkdir()
    site.user.give(data)
    once = "echo x >> /data/n; echo no >&2; test $(wc -l < /data/n) -gt 1"
    file = write(
        site,
        f"{site.rootfs}/ echo one",
        f"--mount {data}:/data {site.rootfs}/ sh -c '{once}'",
        json.dumps({"image": f"{site.rootfs}/", **_OBJECT}),
        f"{site.rootfs}/ sh -c 'exit 7'",
        f"--bundle {site.bundle_of('sh', '-c', 'cat; echo bundle')} one",
    )
    done = site.run("map", "--retry", "1", "--jobs", "2", file, timeout=120)
    assert done.returncode == 1, done
    assert table(done.stdout) == [["0", "4", "1-3,5"], ["7", "1", "4"]]
    assert output(site, "001.out") == "one\n"
    assert output(site, "002.err").count("no\n") == 1
    assert output(site, "003.out").startswith("a b ")
    assert output(site, "005.out") == "bundle\n"
    assert site.must("list", "--quiet") == ""


@_PLACES
@pytest.mark.parametrize("number", [signal.SIGINT, nightly(signal.SIGHUP), signal.SIGKILL])
def test_interrupted(make_site: MakeSite, place: str, number: int) -> None:
    site = make_site(place)
    file = write(site, *["sleep 1000"] * 10000)
    with site.popen("map", "--image", f"{site.rootfs}/", "--jobs", "3", file) as process:
        wait_until("they run", lambda: running(site) == 3, 60)
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert table(out.decode()) == [["143", "3", "1-3"], ["-", "9997", "4-10000"]]
    wait_while("containers", lambda: site.must("list", "--quiet"), 30)
    if site.engine == "slurm":
        wait_while("jobs", site.jobs, 30)


def test_in_a_pool(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')
    file = write(site, *["sh -c 'echo $SLURM_JOB_ID'"] * 12)
    words = ("map", "--image", f"{site.rootfs}/", "--pool", "mine", file)
    assert "there is no pool mine" in site.fails(*words)
    job = site.must("pool", "start", "mine", "--cpus-per-task", "2").split()[-1]
    done = site.run(*words, timeout=120)
    assert table(done.stdout) == [["0", "12", "1-12"]], done
    assert {output(site, f"{number:03}.out") for number in range(1, 13)} == {f"{job}\n"}
    site.must("pool", "stop", "mine")


def test_in_a_job(make_site: MakeSite) -> None:
    """It uses that job, as `run` does, also if a pool is named."""
    site = make_site("slurm-user", settings="idle_timeout = 2\n")
    file = write(site, *["sh -c 'echo $SLURM_JOB_ID; cat'"] * 6, "sh -c 'exit 3'")
    srun = ["srun", "--quiet", f"--job-name={site.base.name}", "-N1", "-n1", "-O"]
    words = ["map", "--image", f"{site.rootfs}/", "--jobs", "3", "--pool", "mine", file]
    done = run_program(
        [*site.user.prefix, *srun, *site.command, *words],
        env=site.environment, cwd=site.base, timeout=120,
    )  # fmt: skip
    assert table(done.stdout) == [["0", "6", "1-6"], ["3", "1", "7"]], done
    assert done.returncode == 1
    [job] = {output(site, f"{number:03}.out") for number in range(1, 7)}
    assert job.strip().isdecimal()
    wait_while("containers", lambda: site.must("list", "--quiet"), 30)
