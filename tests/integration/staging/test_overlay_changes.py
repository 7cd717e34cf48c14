"""What a container writes on an overlay: it comes back, or is kept."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.adoption import kill_all_supervisors
from tests.harness.nightly import nightly
from tests.harness.overlays import (
    CHANGES,
    COPIED,
    EACH,
    LOG,
    MOUNTED,
    STAYS,
    TASKS,
    as_with_runc,
    begin,
    build,
    changes,
    network_scratch,
    own,
    said,
    way,
)
from tests.harness.places import mounted as small_disk
from tests.harness.podman import RUN, Podman, given, rootless_podman
from tests.harness.site import Site
from tests.harness.users import ordinary
from tests.harness.wait import wait_until, wait_while

LARGE = 40


@pytest.fixture(scope="module", params=["mount", nightly("copy")])
def overlay(request: pytest.FixtureRequest) -> Iterator[Podman]:
    with rootless_podman(storage="overlay", settings=own(request.param)) as podman:
        yield podman
        wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)


def test_it_is_there_when_it_starts_again(overlay: Podman) -> None:
    script = "echo x >>/count; echo x >>/etc/count; cat /count /etc/count | wc -l"
    overlay.must(*RUN, "--name", "one", "busybox", "sh", "-c", script)
    overlay.must("start", "--attach", "one")
    assert overlay.must("logs", "one").split() == ["2", "4"]
    overlay.must("rm", "one")


def test_a_container_that_is_killed_keeps_what_it_wrote(overlay: Podman) -> None:
    script = "echo kept >/etc/made; echo up; exec sleep 600"
    overlay.must(*RUN, "--detach", "--name", "one", "busybox", "sh", "-c", script)
    (record,) = (overlay.site.base / "x" / "scrun").glob("[0-9a-f]*")
    how = "layers" if 'overlay = "mount"' in overlay.settings else "copy"
    assert way(record) == how
    overlay.must("stop", "--time", "0", "one")
    overlay.must("start", "one")
    assert overlay.must("exec", "one", "cat", "/etc/made") == "kept\n"
    overlay.must("rm", "--force", "--time", "0", "one")


@contextlib.contextmanager
def small_store() -> Iterator[Podman]:
    """podman, whose storage has 40 MiB."""
    site = Site("slurm", ordinary())
    log = f'[log]\nfile = "{site.base / LOG}"\n'
    with small_disk(site.base / "s", "-o", "size=40m"):
        site.user.give(site.base / "s")
        with Podman(site, log, storage="overlay") as podman:
            yield podman
    site.close()


def kept(podman: Podman) -> Path:
    """Where what a container wrote is, by the log, which names one place."""
    text = (podman.site.base / LOG).read_text()
    [place] = {*re.findall(r"they are kept in (\S+): remove it when", text)}
    [upper] = Path(place).iterdir()
    assert (upper / "etc" / "big").stat().st_size == 60 << 20
    return upper


@pytest.mark.parametrize("also", ["true", "rm /bin/tac"])
def test_what_does_not_fit_is_kept(also: str) -> None:
    """Where something is removed as well, or all is a copy, it is tried: nobody knows before."""
    with small_store() as podman:
        script = f"{also}; echo small >/etc/small; dd if=/dev/zero of=/etc/big bs=1M count=60"
        done = podman.run(*RUN, "--name", "one", "busybox", "sh", "-c", script)
        assert done.returncode == 125
        text = (podman.site.base / LOG).read_text()
        is_tried = also != "true" or COPIED in text
        assert ("they need 6" in text) is not is_tried
        assert ("No space left" in text) is is_tried
        upper = kept(podman)
        assert (upper / "etc" / "small").read_text() == "small\n"
        if not is_tried:
            assert changes(podman, "one") <= {"C /etc"}  # podman's own
        podman.must("rm", "one")
        assert podman.must(*RUN, "--rm", "busybox", "echo", "on") == "on\n"
        shutil.rmtree(upper.parent)


@pytest.mark.by_shim
def test_what_does_not_fit_is_kept_by_a_successor() -> None:
    with small_store() as podman:
        big = "dd if=/dev/zero of=/etc/big bs=1M count=60 2>/dev/null"
        container = begin(podman, script=f"{big}; {STAYS}")
        kill_all_supervisors(podman.site)
        podman.must("kill", "--signal", "TERM", container)
        podman.must("wait", container)
        upper = kept(podman)
        podman.must("rm", container)
        shutil.rmtree(upper.parent)


def test_build(overlay: Podman) -> None:
    path = given(
        overlay,
        "b/Containerfile",
        "FROM busybox\nRUN echo first >/one\nRUN cat /one >/two; rm /one\n",
    )
    options = ("--isolation", "oci", "--network", "host", "--tag", "built")
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
    overlay.must("build", *options, *limits, "--file", str(path), str(path.parent))
    script = "cat /two; test -e /one || echo gone"
    assert overlay.must(*RUN, "--rm", "built", "sh", "-c", script) == "first\ngone\n"


def test_a_home_of_somebody_else(overlay: Podman) -> None:
    options = ("--rm", "--user", "1000:1000", "--userns", "keep-id")
    assert overlay.must(*RUN, *options, "busybox", "id", "-u") == "1000\n"


def test_what_several_tasks_write_is_on_their_nodes() -> None:
    """It is sent when a task ends; of one that is removed then, nothing is sent."""
    with network_scratch(ordinary()) as podman:
        (podman.site.base / LOG).unlink(missing_ok=True)
        script = f"mkdir -p /srv; {EACH}; exit ${{SLURM_PROCID:-1}}"
        options = ("--name", "one", *TASKS, "busybox", "sh", "-c")
        assert podman.run(*RUN, *options, script).returncode == 1
        by_shim = MOUNTED in said(podman)
        if by_shim:
            assert {"A /srv/0", "A /srv/1", "A /etc/made"} <= changes(podman, "one")
            assert COPIED not in said(podman)
        else:
            assert "two overlays cannot write to one directory" in said(podman)
        podman.must(*RUN, "--rm", *TASKS, "busybox", "sh", "-c", "echo >/etc/made")
        missing = podman.run(*RUN, "--rm", *TASKS, "busybox", "/bin/none")
        assert missing.returncode == 127
        wait_while("places", lambda: places(podman), 10)


def places(podman: Podman) -> list[Path]:
    """What is left on the nodes, which have this machine's /tmp; steps of srun have our TMPDIR."""
    found = [
        path
        for folder in ("/tmp", podman.environment["TMPDIR"])
        for path in Path(folder).glob("scrun-written-*")
    ]
    return [path for path in found if path.stat().st_uid == podman.site.user.uid]


def comes_back(podman: Podman, container: str) -> None:
    """Hold that what was written on the node is there at the next start, and not on the node."""
    podman.must("kill", "--signal", "KILL", container)
    podman.must("wait", container)
    podman.must("start", container)
    assert podman.must("exec", container, "cat", "/etc/kept") == "kept\n"
    podman.must("rm", "--force", "--time", "0", container)
    wait_while("places", lambda: places(podman), 10)


def test_what_is_written_is_on_the_node() -> None:
    """Of a container with one user: the others' files could not be staged there anyway."""
    with network_scratch(ordinary()) as podman:
        build(podman)
        (podman.site.base / LOG).unlink()
        as_with_runc(podman, CHANGES.replace("chown 33:44", "touch"))
        assert MOUNTED in said(podman)
        assert COPIED not in said(podman)
        podman.must("start", "--attach", "ours")
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "echo x >/etc/x")
        container = begin(podman, script=f"echo kept >/etc/kept; {STAYS}")
        comes_back(podman, container)


def test_its_job_ends_while_that_is_sent() -> None:
    """Then it stays on the node, and nothing of it is in podman's storage."""
    with network_scratch(ordinary(), "", "--write-rate=4M") as podman:
        before, log = {*places(podman)}, podman.site.base / LOG
        script = f"dd if=/dev/urandom of=/etc/big bs=1M count={LARGE}"
        podman.must(*RUN, "--detach", "--name", "one", "busybox", "sh", "-c", script)
        disk = Path(os.environ["SLURM_CONF"]).parents[1] / "disks" / podman.site.base.name
        wait_until("it is sent", lambda: [*disk.glob("*/overlay/*.tar.part")], 60)
        cluster.slurm("scancel", "--user", podman.site.user.name, "--name", "one")
        [place] = {*places(podman)} - before
        said = f"they are in {place} on its node"
        wait_until("it is said", lambda: said in log.read_text(), 30)
        assert (place / "upper" / "etc" / "big").stat().st_size == LARGE << 20
        assert not [line for line in changes(podman, "one") if "big" in line]
        shutil.rmtree(place)


@pytest.mark.by_shim
def test_what_is_written_on_the_node_outlives_the_supervisor() -> None:
    with network_scratch(ordinary()) as podman:
        container = begin(podman)
        podman.must("exec", container, "sh", "-c", "echo kept >/etc/kept")
        kill_all_supervisors(podman.site)
        comes_back(podman, container)
