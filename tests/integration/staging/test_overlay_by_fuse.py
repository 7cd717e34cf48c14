"""Root file systems on an overlay where the node's kernel refuses one: fuse-overlayfs mounts it.

Here because it is to write to an overlay; kernels before 5.11 refuse users everything.
"""

import os
import re
import signal
from collections.abc import Iterator

import pytest

from tests.harness.overlays import begin, changes, on_overlay, said, way
from tests.harness.podman import RUN, Podman, given
from tests.harness.processes import processes
from tests.harness.wait import wait_while

pytestmark = pytest.mark.by_shim

BY_FUSE = re.compile(r"root: the node mounts .* by fuse-overlayfs; changes come back at the end")


@pytest.fixture
def podman() -> Iterator[Podman]:
    with on_overlay() as one:
        yield one


def servers(podman: Podman) -> list[int]:
    """The processes that serve root file systems of its user."""
    return [
        process.pid
        for process in processes()
        if os.path.basename(process.argv[0]) == "fuse-overlayfs"
        and podman.site.base.name in process.argv[-1]
    ]


def test_what_a_container_writes(podman: Podman) -> None:
    script = (
        "echo new >/etc/new; rm /bin/tac; rm -r /root; chmod 600 /etc/passwd; mkdir -p /a/b; "
        "mv /etc/group /etc/moved; rm -r /usr/sbin; mkdir /usr/sbin; ln -s x /a/b/link"
    )
    podman.must(*RUN, "--name", "one", "busybox", "sh", "-c", script)
    assert BY_FUSE.search(said(podman)), said(podman)
    expected = {"A /etc/new", "D /bin/tac", "D /root", "A /a", "A /a/b", "A /a/b/link"}
    assert expected | {"D /etc/group", "A /etc/moved"} <= changes(podman, "one")
    assert "wh." not in podman.must("diff", "one")
    podman.must("commit", "one", "image")
    again = "cat /etc/new; test ! -e /bin/tac; test -e /etc/moved; test ! -e /root; ls /usr/sbin"
    assert podman.must(*RUN, "--rm", "image", "sh", "-ec", again) == "new\n"
    wait_while("servers", lambda: servers(podman))


def test_what_state_says_while_it_runs(podman: Podman) -> None:
    container = begin(podman, "--name", "one")
    [record] = (podman.site.base / "x" / "scrun").glob("[0-9a-f]*")
    assert way(record) == "layers"
    [server] = servers(podman)
    assert os.stat(f"/proc/{server}").st_uid == podman.site.user.uid
    podman.must("rm", "--force", "--time", "0", container)
    wait_while("servers", lambda: servers(podman))


def test_its_server_is_killed(podman: Podman) -> None:
    container = begin(podman)
    [server] = servers(podman)
    os.kill(server, signal.SIGKILL)
    assert podman.must("wait", container).strip() == "125"
    assert "its root file system went away" in podman.run("logs", container).stderr


def test_a_read_only_one(podman: Podman) -> None:
    script = "touch /etc/x 2>/dev/null || cat /etc/passwd | wc -l"
    assert int(podman.must(*RUN, "--rm", "--read-only", "busybox", "sh", "-c", script))


def test_a_build(podman: Podman) -> None:
    text = "FROM busybox\nRUN echo first >/one\nRUN cat /one >/two; rm /one; rm -r /root\n"
    path = given(podman, "b/Containerfile", text)
    options = ("--isolation", "oci", "--network", "host", *RUN[3:], "--tag", "built")
    podman.must("build", *options, str(path.parent))
    script = "cat /two; test -e /one || test -e /root || echo gone"
    assert podman.must(*RUN, "--rm", "built", "sh", "-c", script) == "first\ngone\n"
