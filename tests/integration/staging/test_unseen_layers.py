"""Root file systems of layers that the nodes do not see: shims mount squashfs images of them."""

import json
import os
from pathlib import Path

import pytest

from tests.harness.containerd import IMAGE, Containerd
from tests.harness.overlays import (
    COPIED,
    LOG,
    PACKED,
    STAYS,
    as_with_runc,
    build,
    changes,
    hidden_store,
    keys,
    said,
    with_store,
)
from tests.harness.podman import RUN
from tests.harness.program import run_program
from tests.harness.squashfs import fuse_for_all
from tests.harness.wait import wait_until


@pytest.mark.every_launch
def test_who_mounts_images() -> None:
    """A shim; a container of Slurm's own, or of an oci.conf's, has a copy of its own."""
    fuse_for_all()
    with hidden_store() as podman:
        build(podman)
        script = "cat /data/mine; rm /bin/tac; echo x >/opt"
        assert podman.must(*RUN, "--name", "ours", "layers", "sh", "-c", script) == "mine\n"
        assert {"A /opt", "D /bin/tac"} <= changes(podman, "ours")
        conf = Path(os.environ["SLURM_CONF"]).with_name("oci.conf")
        if podman.site.by_shim and not conf.exists():
            assert PACKED in said(podman)
            assert len(keys(podman)) == 3
            return
        assert COPIED in said(podman)
        assert "cannot be squashfs images: " in said(podman)
        why = "made by an oci.conf, which" if podman.site.by_shim else "only a shim mounts images"
        assert why in said(podman)
        assert not keys(podman)


@pytest.mark.by_shim
def test_layers_that_the_nodes_do_not_see() -> None:
    """The first container has images made of them, and the others use these."""
    fuse_for_all()
    with hidden_store() as podman:
        build(podman)
        (podman.site.base / LOG).unlink()
        as_with_runc(podman)
        assert PACKED in said(podman)
        made = keys(podman)
        assert len(made) == 3
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "test -e /bin/tac; test ! -e /opt/a/new")
        read_only = ("--rm", "--read-only", "--volume", "/etc/hostname:/etc/new/file:ro")
        script = "touch /etc/x || { echo x >/tmp/x; cat /etc/new/file /tmp/x; }"
        said_there = podman.must(*RUN, *read_only, "layers", "sh", "-c", script)
        assert said_there == Path("/etc/hostname").read_text() + "x\n"
        podman.must("commit", "ours", "more")
        podman.must(*RUN, "--rm", "more", "sh", "-c", "test ! -e /bin/tac; test -e /opt/a/new")
        assert COPIED not in said(podman)
        assert len(keys(podman)) == 4
        assert keys(podman) > made


@pytest.mark.by_shim
def test_vfs_that_the_nodes_do_not_see() -> None:
    """One image is made of its directory; of a container's, what differs from that is copied."""
    fuse_for_all()
    with hidden_store(storage="vfs") as podman:
        build(podman)
        (podman.site.base / LOG).unlink()
        as_with_runc(podman)
        podman.must("start", "--attach", "ours")
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "test -e /bin/tac; test ! -e /opt/a/new")
        assert COPIED not in said(podman)
        assert said(podman).count(PACKED) == 3
        assert len(keys(podman)) == 1


def test_a_directory_that_the_nodes_do_not_see() -> None:
    """A bundle of this machine's: no record tells what it is, so it is copied."""
    with hidden_store() as podman:
        site = podman.site
        bundle = site.base / "hidden" / "bundle"
        bundle.mkdir()
        run_program(["cp", "-a", str(site.rootfs), str(bundle / "rootfs")])
        config = {**site.config("true"), "root": {"path": "rootfs"}}
        (bundle / "config.json").write_text(json.dumps(config))
        site.user.give(bundle)
        words = (*podman.prefix, site.command[0], "run", "--bundle", f"{site.base}/s/bundle", "x")
        done = run_program(words, env=podman.environment, cwd=site.base)
        assert done.returncode == 0, done.stderr
        assert "is not there on the node" in said(podman)
        assert COPIED in said(podman)


@pytest.mark.by_shim
def test_containerd_with_its_storage_on_a_local_disk() -> None:
    with Containerd(snapshotter="overlayfs", hidden=True) as containerd:
        with_store(containerd)
        options = (*containerd.run_options, "--detach", IMAGE, "c1")
        containerd.must(*options, "sh", "-c", f"echo x >/etc/x; {STAYS}")
        log = containerd.records / "c1" / "log"
        wait_until("it is staged", lambda: log.exists() and "root: " in log.read_text())
        assert PACKED in log.read_text(), log.read_text()
        containerd.must("task", "kill", "--signal", "KILL", "c1")
        wait_until("it has ended", lambda: "STOPPED" in containerd.must("task", "ls"))
        containerd.must("task", "rm", "c1")
        containerd.must("container", "rm", "c1")
        assert len(list((containerd.base / "images").glob("layer-*"))) == 1
