"""What jobs are called, and what their comments say of the containers in them."""

import json
import re

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.podman import RUN, Podman
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise the queue says which container a job is for")

MARK = re.compile("scrun:[^ ]+")
DIGEST = "sha256:[0-9a-f]{64}"


def told(job: str) -> tuple[str, list[str]]:
    """A job's name, and the words of its comment after our mark."""
    name, comment = cluster.slurm("squeue", "-h", "-j", job, "-o", "%j|%k").strip().split("|")
    mark, *words = comment.split(" ")
    assert MARK.fullmatch(mark)
    return name, words


def job_of(life: Life) -> str:
    return str(life.state()["annotations"]["org.scrun.job_id"])


def nameless(site: Site) -> Site:
    """A place whose jobs nobody names; the tests find them by this name else."""
    del site.environment["SCRUN_JOB_NAME"]
    return site


def test_podman_and_its_pod(podman: Podman) -> None:
    podman.must("pod", "create", "--name", "shop", "--network", "host")
    podman.must(*RUN, "--detach", "--name", "web", "busybox", "sleep", "600")
    members = ("run", *RUN[3:], "--pod", "shop", "--detach", "--name", "front", "busybox")
    try:
        podman.must(*members, "sleep", "600")
        jobs = {line.split()[2]: line.split()[0] for line in cluster.jobs(podman.site.user)}
        assert sorted(jobs) == ["shop", "web"]
        [digest] = json.loads(podman.must("image", "inspect", "busybox", "--format", "json"))
        image = f"image=localhost/busybox:latest@{digest['Digest']}"
        assert told(jobs["web"]) == ("web", [image, "name=web"])
        name, [*images, last, of_pod] = told(jobs["shop"])
        assert (name, last, of_pod) == ("shop", "name=shop", "pod=shop")
        for image in images:  # podman 5.5 and later make a pod's first container of none
            assert re.fullmatch(f"image=localhost/podman-pause:[^@]+@{DIGEST}", image)
    finally:
        podman.run("pod", "rm", "--all", "--force", "--time", "0")
        podman.run("rm", "--all", "--force", "--time", "0")


@pytest.mark.covers("security annotations that name the container, its image or its pod")
def test_an_id_and_what_an_image_says(make_site: MakeSite) -> None:
    """No line is forged in what Slurm prints, and no option in what it is asked."""
    site = nameless(make_site("slurm-user"))
    config = site.config("sleep", "600")
    config["annotations"] = {
        "io.kubernetes.container.name": "--uid=0\n1 scrun:x:y:1:2:3",
        "org.opencontainers.image.ref.name": "x" * 200_000,
        "org.scrun.image.digest": "sha256:no",
    }
    hostile = site.life(config=config).created().start()
    name, words = told(job_of(hostile))
    assert (name, words[1:]) == ("uid_0_1_scrun_x_y_1_2_3", [f"name={name}"])
    assert re.fullmatch("image=x{512}", words[0])
    plain = site.life("sleep", "600", container="mine").created().start()
    # docker tells its runtime no more than that
    engines = site.life("sleep", "600", container="5" * 64).created().start()
    assert told(job_of(plain)) == ("mine", ["name=mine"])
    assert told(job_of(engines)) == ("scrun", [])
    for life in (hostile, plain, engines):
        life.delete()


def test_a_pattern_and_a_job_that_waits(make_site: MakeSite) -> None:
    """A job that serves several containers has the name of the first."""
    text = 'idle_timeout = 20\n[slurm]\nlinger = 60\njob_name = "%p-%c.of_%i"\n'
    site = nameless(make_site("slurm-user", settings=text))
    jobs = []
    for name in ("one", "two"):
        life = site.life("true", container=name).created()
        jobs.append(job_of(life))
        assert told(jobs[-1]) == ("one.of", ["name=one"])
        life.start().ends()
    assert jobs[0] == jobs[1]
    site.must("release")
    wait_while("the job", lambda: cluster.jobs(site.user, "one.of"))
    site.environment["SCRUN_JOB_NAME"] = "of the user"
    life = site.life("sleep", "60", container="three").created()
    assert told(job_of(life)) == ("of the user", ["name=three"])
    life.delete()
    wait_until("it is released", lambda: not cluster.jobs(site.user, "of the user"))


def test_a_wrong_pattern_is_refused(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\njob_name = "%x"\n')
    done = site.run("run", "x")
    assert done.returncode == 1
    assert "slurm.job_name: expected text with %c, %i, %p or %%" in done.stderr
