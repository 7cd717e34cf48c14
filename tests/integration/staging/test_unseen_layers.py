"""Root file systems of layers that the nodes do not see: they get copies of these."""

import json
from pathlib import Path

from tests.harness.containerd import IMAGE, Containerd
from tests.harness.docker import Docker
from tests.harness.overlays import (
    COPIED,
    FILES,
    LOG,
    STAYS,
    STORED,
    as_with_runc,
    build,
    hidden_store,
    keys,
    said,
    way,
    with_store,
)
from tests.harness.podman import RUN
from tests.harness.program import run_program
from tests.harness.wait import wait_until


def test_layers_that_the_nodes_do_not_see() -> None:
    """The first container has them copied to the store, and the others mount the copies."""
    with hidden_store(FILES) as podman:
        build(podman)
        (podman.site.base / LOG).unlink()
        as_with_runc(podman)
        assert STORED in said(podman)
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


def test_vfs_that_the_nodes_do_not_see() -> None:
    """The image is copied to the store once; of a container, what differs from its image."""
    with hidden_store(FILES, storage="vfs") as podman:
        build(podman)
        (podman.site.base / LOG).unlink()
        as_with_runc(podman)
        podman.must("start", "--attach", "ours")
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "test -e /bin/tac; test ! -e /opt/a/new")
        assert STORED in said(podman)
        assert COPIED not in said(podman)
        assert said(podman).count(STORED) == 3
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


def test_docker_with_its_storage_on_a_local_disk() -> None:
    """Its second layer of a container, which no image has, is copied as the container's own."""
    with Docker(storage="overlay2", hidden=True) as docker:
        with_store(docker)
        for _ in range(2):
            container = docker.must("run", "--detach", "busybox", "sh", "-c", STAYS).strip()
            wait_until("it is up", lambda: docker.must("logs", container))  # noqa: B023
            log = (docker.records / container / "log").read_text()
            assert STORED in log, log
            assert way(docker.records / container) == "store"
            docker.must("exec", container, "sh", "-c", "echo x >/etc/x; rm /bin/tac")
            docker.must("stop", container)
            lines = set(docker.must("diff", container).splitlines())
            assert {"A /etc/x", "D /bin/tac"} <= lines
            docker.must("rm", container)
        assert len(list((docker.base / "images").glob("layer-*"))) == 1


def test_containerd_with_its_storage_on_a_local_disk() -> None:
    with Containerd(snapshotter="overlayfs", hidden=True) as containerd:
        with_store(containerd)
        options = (*containerd.run_options, "--detach", IMAGE, "c1")
        containerd.must(*options, "sh", "-c", f"echo x >/etc/x; {STAYS}")
        log = containerd.records / "c1" / "log"
        wait_until("it is staged", lambda: log.exists() and "root: " in log.read_text())
        assert STORED in log.read_text(), log.read_text()
        containerd.must("task", "kill", "--signal", "KILL", "c1")
        wait_until("it has ended", lambda: "STOPPED" in containerd.must("task", "ls"))
        containerd.must("task", "rm", "c1")
        containerd.must("container", "rm", "c1")
        assert len(list((containerd.base / "images").glob("layer-*"))) == 1
