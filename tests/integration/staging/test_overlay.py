"""Root file systems on an overlay, which podman's store has by default, and nodes do not see."""

from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.harness.podman import RUN, Podman, rootless_podman
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_while


@pytest.fixture(scope="module")
def overlay() -> Iterator[Podman]:
    with rootless_podman(storage="overlay") as podman:
        yield podman
        wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)


def test_what_a_container_writes_is_there_afterwards(overlay: Podman) -> None:
    script = "echo changed >/made; rm /bin/tac; chmod 600 /etc/passwd; mkdir /d; ln -s /x /d/l"
    overlay.must(*RUN, "--name", "one", "busybox", "sh", "-c", script)
    own = {"A /made", "D /bin/tac", "C /bin", "C /etc/passwd", "C /etc", "A /d", "A /d/l"}
    changes = overlay.must("diff", "one").splitlines()
    assert sorted(changes) == sorted({*own, *slurm_version().made_in_root})
    overlay.must("rm", "one")


def test_it_is_there_when_it_starts_again(overlay: Podman) -> None:
    script = "echo x >>/count; wc -l </count"
    overlay.must(*RUN, "--name", "one", "busybox", "sh", "-c", script)
    overlay.must("start", "--attach", "one")
    assert overlay.must("logs", "one").split() == ["1", "2"]
    overlay.must("rm", "one")


def test_a_container_that_is_killed_keeps_what_it_wrote(overlay: Podman) -> None:
    script = "echo kept >/made; echo up; exec sleep 600"
    overlay.must(*RUN, "--detach", "--name", "one", "busybox", "sh", "-c", script)
    overlay.must("stop", "--time", "0", "one")
    overlay.must("start", "one")
    assert overlay.must("exec", "one", "cat", "/made") == "kept\n"
    overlay.must("rm", "--force", "--time", "0", "one")


def test_build(overlay: Podman) -> None:
    path = overlay.site.base / "b" / "Containerfile"
    path.write_text("FROM busybox\nRUN echo first >/one\nRUN cat /one >/two; rm /one\n")
    overlay.site.user.give(path)
    options = ("--isolation", "oci", "--network", "host", "--tag", "built")
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
    overlay.must("build", *options, *limits, "--file", str(path), str(path.parent))
    said = overlay.must(*RUN, "--rm", "built", "sh", "-c", "cat /two; test -e /one || echo gone")
    assert said == "first\ngone\n"
