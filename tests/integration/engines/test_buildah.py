"""podman build and buildah, with scrun as the runtime of their steps, on Slurm."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster, users
from tests.harness.buildah import OCI, Buildah
from tests.harness.nightly import often
from tests.harness.podman import RUN, Podman, rootless_podman
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise engines and services")


@pytest.fixture(scope="module")
def _buildah() -> Iterator[Buildah]:
    with rootless_podman() as podman:
        yield Buildah(podman)


@pytest.fixture
def buildah(_buildah: Buildah) -> Iterator[Buildah]:
    """buildah with an image called busybox; no bundle, job or record of a step is left."""
    yield _buildah
    base = _buildah.site.base
    wait_while("jobs", lambda: cluster.jobs(_buildah.site.user), 15)
    assert list(base.glob("buildah*")) == []
    records = base / "x" / "scrun"
    wait_while("records", lambda: [r for r in os.listdir(records) if r[0] != "@"], 5)
    _buildah.must("rm", "--all")


def context(buildah: Buildah, name: str, *steps: str) -> Path:
    """Make a directory with a Containerfile and a file to copy."""
    path = buildah.site.base / name
    path.mkdir()
    (path / "file").write_text("copied\n")
    (path / "Containerfile").write_text("\n".join(["FROM busybox", *steps]))
    buildah.site.user.give(path)
    return path


@pytest.mark.covers(
    "podman build", "buildah run, bud", "limitation build is not supported", "guide Types: Podman"
)
def test_podman_build(buildah: Buildah) -> None:
    podman = buildah.podman
    volume = buildah.site.base / "volume"
    volume.mkdir()
    (volume / "in").write_text("of the volume\n")
    buildah.site.user.give(volume)
    path = context(
        buildah, "good",
        "ENV COLOUR=blue",
        "COPY file /file",
        "RUN cat /file /v/in > /result && echo $COLOUR >> /result && touch /v/out",
        "RUN mkdir /mine && chmod 700 /mine && test $SLURM_JOB_ID && echo of a job >> /result",
        'CMD ["cat", "/result"]',
    )  # fmt: skip
    podman.must("build", *OCI, "--volume", f"{volume}:/v", "--tag", "built", str(path))
    assert (volume / "out").exists()
    said = podman.must(*RUN, "--rm", "built")
    assert said == "copied\nof the volume\nblue\nof a job\n"
    listed = podman.must(*RUN, "--rm", "built", "stat", "-c", "%a", "/mine")
    assert listed == "700\n"
    podman.must("rmi", "--force", "built")


@pytest.mark.timeout(300)
@pytest.mark.covers("podman build")
@pytest.mark.parametrize("common", [False, True], ids=["build alone", "beside containers"])
def test_the_steps_of_a_build_share_a_job(common: bool) -> None:
    """A supervisor keeps the job and its shim for all of them: the first step's, or a common one.

    buildah 1.42 and later waits for the first step's, so that keeps nothing, and each has a job.
    """
    site = Site("slurm", users.ordinary())
    try:
        with Podman(site, settings="linger = 10\n") as podman:
            shared = common or not _waits_for_supervisors(podman)
            numbers = range(often(5, 20) if shared else 3)
            steps = [
                f"RUN echo {number} $SLURM_JOB_ID $SLURM_STEP_ID >> /jobs" for number in numbers
            ]
            path = context(Buildah(podman), "many", *steps)
            if common:  # `podman start` begins the supervisor
                podman.must(*RUN, "--rm", "busybox", "true")
                assert len(site.supervisors()) == 1
            podman.must("build", *OCI, "--tag", "many", str(path), timeout=200)
            there = [job.split()[0] for job in cluster.jobs(site.user)]
            assert len(there) == shared
            assert len(site.supervisors()) == shared
            said = podman.must(*RUN, "--rm", "many", "cat", "/jobs").splitlines()
            words = [line.split() for line in said]
            assert [number for number, _, _ in words] == [str(number) for number in numbers]
            jobs = {job for _, job, _ in words}
            if shared:
                assert jobs == {*there}
                assert len({step for _, _, step in words}) == (1 if site.by_shim else len(words))
            else:
                assert len(jobs) == len(words)
            wait_while("jobs", lambda: cluster.jobs(site.user), 30)
    finally:
        site.close()


def _waits_for_supervisors(podman: Podman) -> bool:
    """Whether the buildah in podman waits for all that a step's runtime has begun."""
    version = podman.must("info", "--format", "{{.Host.BuildahVersion}}")
    major, minor, *_ = version.split(".")
    return (int(major), int(minor)) >= (1, 42)


@pytest.mark.covers("podman build")
def test_a_step_that_fails(buildah: Buildah) -> None:
    path = context(buildah, "bad", "RUN echo oops >&2; exit 9")
    done = buildah.podman.run("build", *OCI, str(path))
    assert done.returncode != 0
    assert "oops" in done.stderr
    assert "exit status 9" in done.stderr
    buildah.podman.must("image", "prune", "--force")


@pytest.mark.covers("buildah run, bud", "buildah from, commit")
def test_buildah_run_and_commit(buildah: Buildah) -> None:
    container = buildah.must("from", "--pull-never", "busybox").strip()
    done = buildah.step(container, "cat > /made; echo out; echo err >&2", data=b"typed\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")
    assert buildah.step(container, "exit 7").returncode == 7
    buildah.must("commit", container, "made")
    assert buildah.podman.must(*RUN, "--rm", "made", "cat", "/made") == "typed\n"
    buildah.podman.must("rmi", "--force", "made")


@pytest.mark.nightly
@pytest.mark.covers("podman build")
def test_a_step_has_all_users(buildah: Buildah) -> None:
    """All that the caller may map, so files can be given to other users of the image."""
    container = buildah.must("from", "--pull-never", "busybox").strip()
    done = buildah.step(container, "id -u; touch /file; chown 5 /file; stat -c %u /file")
    assert (done.returncode, done.stdout) == (0, "0\n5\n")


@pytest.mark.covers("podman stats", "podman commit, export")
def test_podman_commit_export_and_stats(buildah: Buildah) -> None:
    podman = buildah.podman
    script = "echo kept > /file; echo up; exec sleep 600"
    podman.must(*RUN, "--detach", "--name", "one", "busybox", "sh", "-c", script)
    wait_until("it is up", lambda: podman.must("logs", "one") == "up\n")
    done = podman.run("stats", "--no-stream", "one")
    without_cgroups = "not supported in rootless mode without cgroups v2" in done.stderr
    assert done.returncode == 0 or without_cgroups, done.stderr
    podman.must("stop", "--time", "0", "one")
    podman.must("commit", "one", "committed")
    podman.must("export", "--output", str(buildah.site.base / "exported.tar"), "one")
    podman.must("rm", "one")
    assert podman.must(*RUN, "--rm", "committed", "cat", "/file") == "kept\n"
    podman.must("rmi", "--force", "committed")


@pytest.mark.covers("podman build")
def test_a_step_outlives_the_supervisor_of_all(buildah: Buildah) -> None:
    """It sees the step's mounts, and so does its successor, which brings the changes back."""
    podman, site = buildah.podman, buildah.site
    podman.must(*RUN, "--rm", "busybox", "true")
    volume = site.base / "shared"
    volume.mkdir()
    (volume / "in").write_text("of the volume\n")
    site.user.give(volume)
    script = "touch /v/up; until [ -e /v/go ]; do sleep 0.1; done; cat /v/in > /kept"
    path = context(buildah, "long", f"RUN {script}", "RUN echo next >> /kept")
    words = ("build", *OCI, "--volume", f"{volume}:/v", "--tag", "long", str(path))
    null, pipe = subprocess.DEVNULL, subprocess.PIPE
    with podman.popen(*words, stdin=null, stdout=null, stderr=pipe) as process:
        wait_until("the step runs", lambda: (volume / "up").exists(), 30)
        [supervisor] = site.supervisors()
        os.kill(supervisor, signal.SIGKILL)
        wait_while("it", lambda: supervisor in site.supervisors())
        (volume / "go").touch()
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    said = podman.must(*RUN, "--rm", "long", "cat", "/kept")
    assert said == "of the volume\nnext\n"
    podman.must("rmi", "--force", "long")
