"""Members of a pod whose root file systems a shim mounts, and which share namespaces."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from tests.harness import cluster
from tests.harness.overlays import (
    COPIED,
    MOUNTED,
    PACKED,
    STAYS,
    hidden_store,
    said,
    shared_store,
)
from tests.harness.podman import RUN, Podman
from tests.harness.pods import LIMITS, in_member, member
from tests.harness.site import CGROUP2
from tests.harness.squashfs import fuse_for_all
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.by_shim

KINDS = ("ipc", "uts", "net", "pid")


@contextlib.contextmanager
def pod(podman: Podman) -> Iterator[None]:
    """A pod that shares all it can."""
    share = ",".join(KINDS)
    podman.must("pod", "create", "--name", "pod", "--network", "none", "--share", share)
    try:
        yield
    finally:
        podman.must("pod", "rm", "--force", "--time", "0", "pod")
        wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)


def check(podman: Podman, found: str) -> None:
    """See that both members have one mount for all, own files, and common namespaces."""
    with pod(podman):
        names = [member(podman, "one"), member(podman, "two", STAYS, "--user", "33:44")]
        for name in names:
            mounted = in_member(podman, name, "grep -c ' overlay \\|fuse-overlayfs' /proc/mounts")
            assert mounted == "1", in_member(podman, name, "cat /proc/mounts")
        script = "; ".join(f"readlink /proc/self/ns/{kind}" for kind in KINDS)
        assert in_member(podman, "one", script) == in_member(podman, "two", script)
        assert in_member(podman, "one", "mv /var /moved; ls -d /var /moved || :") == "/moved"
        assert in_member(podman, "two", "ls -d /var; id -u") == "/var\n33"
        podman.must("restart", "--time", "0", "two")
        wait_until("it is up again", lambda: podman.must("logs", "two").count("up") == 2)
        assert in_member(podman, "two", "grep -c ' / ' /proc/mounts") == "1"
        assert said(podman).count(found) >= 3
        assert COPIED not in said(podman)
        podman.must("stop", "--time", "0", "one")
        changes = podman.must("diff", "one").splitlines()
        assert {"D /var", "A /moved"} <= set(changes)


def test_layers_that_the_nodes_see() -> None:
    with shared_store("", CGROUP2) as podman:
        check(podman, MOUNTED)


def test_squashfs_images() -> None:
    fuse_for_all()
    with hidden_store() as podman:
        check(podman, PACKED)


def test_the_other_container_has_no_overlay() -> None:
    """Then the user namespace that is entered is one that the runtime has made."""
    with shared_store("", CGROUP2) as podman:
        root = podman.site.base / "root"
        shutil.copytree(podman.site.rootfs, root, symlinks=True)
        podman.site.user.give(root)
        podman.must(*RUN, "--rm", "busybox", "true")  # one supervisor serves those that follow
        first = ("--network", "none", "--detach", "--name", "first", "--ipc", "shareable")
        podman.must("run", *LIMITS, *first, "--rootfs", str(root), "sh", "-c", STAYS)
        joins = ("--network", "container:first", "--ipc", "container:first")
        second = ("--detach", "--name", "second", "busybox", "sh", "-c", STAYS)
        podman.must("run", *LIMITS, *joins, *second)
        wait_until("it says something", lambda: podman.must("logs", "second"))
        script = "readlink /proc/self/ns/net; readlink /proc/self/ns/ipc; id -u"
        assert in_member(podman, "first", script) == in_member(podman, "second", script)
        assert MOUNTED in said(podman)
        assert in_member(podman, "second", "grep -c ' overlay ' /proc/mounts") == "1"
        for name in ("second", "first"):
            podman.must("rm", "--force", "--time", "0", name)
        wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)


def test_a_single_user_has_mounts_of_the_runtime() -> None:
    """The only user of the namespace that it enters has another number there."""
    with shared_store('[staging]\nid_map = "single"\n', CGROUP2) as podman, pod(podman):
        member(podman, "one")
        member(podman, "two")
        assert in_member(podman, "two", "grep -c ' overlay ' /proc/mounts") > "1"
        assert COPIED not in said(podman)
