"""Storage that few engines have by default: docker's vfs, containerd's native, buildah's mounts.

The nodes see it, or it is on this machine alone.
"""

import pytest

from tests.harness.buildah import OCI, Buildah
from tests.harness.containerd import IMAGE, Containerd
from tests.harness.docker import Docker
from tests.harness.nightly import nightly
from tests.harness.overlays import (
    COPIED,
    PACKED,
    STAYS,
    hidden_store,
    said,
    with_store,
)
from tests.harness.podman import RUN, Podman, given, rootless_podman
from tests.harness.squashfs import fuse_for_all
from tests.harness.wait import wait_until

CHANGE = "echo x >/etc/x; rm /bin/tac; mkdir -p /opt/a; echo y >/opt/a/y; chmod 600 /etc/passwd"
CHANGED = {"A /etc/x", "D /bin/tac", "A /opt/a/y", "C /etc/passwd"}


@pytest.mark.parametrize(
    "hidden",
    [
        pytest.param(False, id="seen"),
        pytest.param(True, id="unseen", marks=pytest.mark.by_shim),
    ],
)
def test_docker_vfs(hidden: bool) -> None:
    with Docker(storage="vfs", hidden=hidden) as docker:
        if hidden:
            with_store(docker)
        for _ in range(2):
            container = docker.must("run", "--detach", "busybox", "sh", "-c", STAYS).strip()
            wait_until("it is up", lambda: docker.must("logs", container))  # noqa: B023
            log = (docker.records / container / "log").read_text()
            assert COPIED not in log
            assert (PACKED in log) == hidden, log
            docker.must("exec", container, "sh", "-c", CHANGE)
            docker.must("stop", container)
            assert set(docker.must("diff", container).splitlines()) >= CHANGED
            docker.must("start", container)
            found = docker.must("exec", container, "sh", "-c", "cat /opt/a/y; ls /bin/tac || :")
            assert found == "y\n"
            docker.must("rm", "--force", container)
        if hidden:
            assert len(list((docker.base / "images").glob("layer-*"))) == 1


def test_containerd_native() -> None:
    with Containerd(snapshotter="native") as containerd:
        words = (*containerd.run_options, "--detach", IMAGE, "c1", "sh", "-c")
        containerd.must(*words, f"{CHANGE}; {STAYS}")
        log = containerd.records / "c1" / "log"
        look = ("task", "exec", "--exec-id", "e1", "c1", "test", "-e", "/opt/a/y")
        wait_until("it runs", lambda: containerd.run(*look).returncode == 0, 30)
        assert COPIED not in log.read_text()
        snapshots = "d/io.containerd.snapshotter.v1.native/snapshots/*/opt/a/y"
        containerd.must("task", "kill", "c1")
        wait_until("it has ended", lambda: "STOPPED" in containerd.must("task", "ls"))
        [file] = containerd.base.glob(snapshots)
        assert file.read_text() == "y\n"
        containerd.must("task", "rm", "c1")
        containerd.must("container", "rm", "c1")


def steps_of_buildah(podman: Podman) -> None:
    """Steps of `buildah run` and `buildah bud`, each in a mount of buildah's own."""
    buildah = Buildah(podman)
    container = buildah.must("from", "--pull-never", "busybox").strip()
    for script in (CHANGE, "test ! -e /bin/tac; cat /opt/a/y >/opt/two; rm -r /opt/a"):
        done = buildah.step(container, f"set -e; {script}")
        assert done.returncode == 0, done.stderr
    buildah.must("commit", container, "made")
    found = podman.must(
        *RUN, "--rm", "made", "sh", "-c", "cat /opt/two; ls /opt; ls /bin/tac || :"
    )
    assert found == "y\ntwo\n"
    steps = ("test ! -e /bin/tac && echo z >/opt/three && rm /opt/two", "ls /opt >/list")
    text = "\n".join(["FROM made", *(f"RUN {step}" for step in steps)])
    path = given(podman, "b/Containerfile", text).parent
    runtime = ("--runtime", podman.site.command[0])
    buildah.must("bud", "--layers", *OCI, *runtime, "--tag", "built", str(path))
    assert podman.must(*RUN, "--rm", "built", "cat", "/list") == "three\n"
    buildah.must("rm", "--all")


@pytest.mark.parametrize("storage", [nightly("vfs"), "overlay"])
def test_buildah(storage: str) -> None:
    with rootless_podman(storage=storage) as podman:
        steps_of_buildah(podman)


@pytest.mark.by_shim
@pytest.mark.parametrize("storage", [nightly("vfs"), "overlay"])
def test_buildah_whose_storage_the_nodes_do_not_see(storage: str) -> None:
    fuse_for_all()
    with hidden_store(storage=storage) as podman:
        steps_of_buildah(podman)
        assert COPIED not in said(podman)
        assert PACKED in said(podman)
