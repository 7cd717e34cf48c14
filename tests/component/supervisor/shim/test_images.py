"""Images that the shim mounts: containers have them as layers, and nothing stays."""

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.component.supervisor.shim.conftest import MakeShim, without_crun
from tests.harness import users
from tests.harness.bundle import make_config, map_user
from tests.harness.nightly import nightly
from tests.harness.program import run_program
from tests.harness.shim import Shim
from tests.harness.squashfs import fuse_for_all, squashed
from tests.harness.users import User
from tests.harness.wait import wait_until

WAYS = pytest.mark.parametrize("who", ["root", "user"])


@pytest.fixture(scope="module")
def image() -> Iterator[Path]:
    fuse_for_all()
    with tempfile.TemporaryDirectory(prefix="shim-image-") as path:
        folder = Path(path)
        folder.chmod(0o755)
        (folder / "layer" / "d").mkdir(parents=True)
        (folder / "layer" / "d" / "f").write_text("from the image\n")
        squashed(folder / "layer", folder / "image.sqfs")
        yield folder / "image.sqfs"


def map_users(user: User) -> dict[str, list[dict[str, int]]]:
    """The id maps of a container with all users that subuid(5) lends to a user."""
    maps = {}
    for key, own, file in (("uid", user.uid, "subuid"), ("gid", user.gid, "subgid")):
        lines = [line.split(":") for line in Path("/etc", file).read_text().split()]
        [(first, size)] = [(int(line[1]), int(line[2])) for line in lines if line[0] == user.name]
        lent = {"containerID": 1, "hostID": first, "size": size}
        maps[f"{key}Mappings"] = [{"containerID": 0, "hostID": own, "size": 1}, lent]
    return maps


class Node:
    """A shim with an image mounted."""

    def __init__(self, shim: Shim, image: Path, place: Path, *, has_users: bool = False) -> None:
        self.shim, self.point = shim, place / "point"
        self.maps = map_users(shim.user) if has_users else {}
        for name in ("point", "upper", "work"):
            (place / name).mkdir()
            os.chown(place / name, shim.user.uid, shim.user.gid)
        self.place = place
        own = place / "own.sqfs"
        squashed(image.parent / "layer", own, 0 if has_users else shim.user.uid)
        self.files = [[str(own), str(self.point)]]
        more = {"maps": self.maps} if has_users else {}
        reply = shim.call("mount", id="images-1", files=self.files, **more)
        assert "error" not in reply, reply

    def run(self, target: str, *args: str, user: object = None) -> dict[str, int]:
        """Run a container that has the image as a layer of /data."""
        marks = ["userxattr"] if self.shim.user.uid else []
        options = [
            f"lowerdir={self.point}",
            f"upperdir={self.place}/upper",
            f"workdir={self.place}/work",
            *marks,
        ]
        mount = {"destination": "/data", "type": "overlay", "source": "overlay"}
        config = make_config(args)
        if self.shim.user.uid:
            map_user(config, self.shim.user)
        mounts = [*config["mounts"], {**mount, "options": options}]
        streams = self.shim.streams("stdout", "stderr")
        more: dict[str, Any] = {"linux": {**config["linux"], **self.maps}} if self.maps else {}
        if user is not None:
            more["process"] = {**config["process"], "user": user}
        self.shim.run(target, *args, streams=streams, images="images-1", mounts=mounts, **more)
        return streams

    def servers(self) -> list[int]:
        """The processes that serve the image."""
        mine = f"/proc/{self.shim.hello['pid']}/task/{self.shim.hello['pid']}/children"
        pids = [int(pid) for pid in Path(mine).read_text().split()]
        return [pid for pid in pids if "squashfuse" in _name_of(pid)]


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just gone
        return ""


@pytest.fixture
def node(
    make_shim: MakeShim, rootfs: Path, image: Path, request: pytest.FixtureRequest
) -> Iterator[Node]:
    who, runtime = request.param.split("-")
    (rootfs / "data").mkdir(exist_ok=True)
    env = {"PATH": without_crun(rootfs)} if runtime == "runc" else {}
    shim = make_shim(env, users.root() if who == "root" else users.ordinary())
    place = image.parent / request.node.name.replace("[", "-").rstrip("]")
    place.mkdir()
    os.chown(place, shim.user.uid, shim.user.gid)
    made = Node(shim, image, place, has_users=who == "users")
    yield made
    assert str(made.point) not in Path("/proc/self/mountinfo").read_text()


ALL = pytest.mark.parametrize(
    "node",
    [
        "root-crun",
        nightly("root-runc"),
        nightly("user-crun"),
        "user-runc",
        "users-crun",
        nightly("users-runc"),
    ],
    indirect=True,
)
USER = pytest.mark.parametrize(
    "node", ["user-crun", nightly("user-runc"), nightly("users-crun"), "users-runc"], indirect=True
)
USERS = pytest.mark.parametrize("node", ["users-crun", nightly("users-runc")], indirect=True)


@ALL
def test_a_container_has_it_as_a_layer(node: Node) -> None:
    shim = node.shim
    streams = node.run("c", "sh", "-c", "cat /data/d/f; echo x >/data/d/g; ls /data/d; sleep 600")
    shim.until("its output", lambda: b"g\n" in shim.output[streams["stdout"]])
    streams = shim.streams("stdout")
    shim.exec("e", "c", "cat", "/data/d/f", streams=streams)
    assert shim.finish(streams["stdout"]) == b"from the image\n"
    assert shim.ended("e") == 0
    assert not list(node.point.iterdir())  # nobody else sees it
    assert (node.place / "upper/d/g").read_text() == "x\n"
    assert shim.call("delete", id="c") == {}
    wait_until("nobody serves it", lambda: not node.servers())
    assert shim.call("script", script="echo here")["text"] == "here\n"


@ALL
def test_scripts_see_it(node: Node) -> None:
    script = f"cat {node.point}/d/f"
    reply = node.shim.call("script", script=script, images="images-1")
    assert reply == {"status": 0, "text": "from the image\n"}
    assert node.shim.call("script", script=script)["status"] == 1
    assert node.shim.call("unmount", id="images-1") == {}
    assert node.shim.call("unmount", id="images-1") == {}
    assert "error" in node.shim.call("script", script=script, images="images-1")
    wait_until("nobody serves it", lambda: not node.servers())


@USERS
def test_a_container_with_several_users(node: Node) -> None:
    """Its users are those of the maps; one of them is its first process."""
    shim = node.shim
    user = {"uid": 7, "gid": 8, "additionalGids": [9]}
    show = "id; stat -c %u /data/d/f; echo x >/data/d/g; kill -0 1 && sleep 600"
    streams = node.run("c", "sh", "-c", show, user=user)
    shim.until("its output", lambda: b"\n0\n" in shim.output[streams["stdout"]])
    first = shim.output[streams["stdout"]].split(b"\n")[0]
    assert all(word in first for word in (b"uid=7", b"gid=8", b"9")), first
    os.kill(node.servers()[0], signal.SIGKILL)
    assert shim.ended("c") == -signal.SIGKILL
    assert shim.without_files == {"c"}


def nested(uid: int) -> list[dict[str, int]]:
    """The map that podman's `keep-id` makes, behind the engine's own."""
    rows = ((0, 1, uid), (uid, 0, 1), (uid + 1, uid + 1, 65535 - uid))
    return [dict(zip(("containerID", "hostID", "size"), row, strict=True)) for row in rows]


@pytest.mark.parametrize("runtime", ["crun", nightly("runc")])
def test_another_root_than_the_user(
    make_shim: MakeShim, rootfs: Path, image: Path, runtime: str
) -> None:
    """Its user namespace is in another one, in which directories are looked at, too."""
    env = {"PATH": without_crun(rootfs)} if runtime == "runc" else {}
    shim = make_shim(env, users.ordinary())
    maps = map_users(shim.user)
    place = image.parent
    theirs = place / f"theirs-{runtime}"
    (theirs / "d").mkdir(parents=True)
    theirs.chmod(0o700)
    os.chown(theirs, *(maps[name][1]["hostID"] for name in ("uidMappings", "gidMappings")))
    looks = [[str(place), place.stat().st_ino, None],
             [str(theirs / "d"), (theirs / "d").stat().st_ino, None]]  # fmt: skip
    assert shim.call("mount", id="", files=[], looks=looks)["others"] == [1]
    around = {"files": [], "maps": maps, "users": True}
    reply = shim.call("mount", id="other", looks=[looks[1], ["/", 1, None]], **around)
    assert reply.get("others") == [1], reply
    assert "error" not in shim.call("mount", id="a", looks=looks, **around)
    script = "id; cat /proc/self/uid_map; exec sleep 600"
    words = ("sh", "-c", script)
    config = make_config(words)
    map_user(config, shim.user)
    linux = {**config["linux"], **dict.fromkeys(maps, nested(1000))}
    user = {"uid": 1000, "gid": 1000, "additionalGids": [9]}
    process = {**config["process"], "user": user}
    streams = shim.streams("stdout", "stderr")
    shim.run("c", *words, streams=streams, images="a", linux=linux, process=process)
    shim.until("its output", lambda: shim.output[streams["stdout"]].count(b"\n") == 4)
    said = shim.output[streams["stdout"]].decode()
    assert said.startswith("uid=1000 gid=1000 groups=9"), said
    assert said.split()[-9:] == ["0", "1", "1000", "1000", "0", "1", "1001", "1001", "64535"]
    shim.call("signal", id="c", number=signal.SIGKILL, all=True)
    assert shim.ended("c") == -signal.SIGKILL
    assert shim.call("delete", id="c") == {}


@USERS
def test_users_that_nobody_lends(node: Node) -> None:
    maps = {name: [{"containerID": 0, "hostID": 1, "size": 9}] for name in node.maps}
    reply = node.shim.call("mount", id="a", files=node.files, maps=maps)
    assert "newuidmap" in reply["error"] or "not allowed" in reply["error"], reply


@USER
def test_its_server_is_killed(node: Node) -> None:
    shim = node.shim
    node.run("c", "sh", "-c", "trap '' TERM; while :; do sleep 0.1; done")
    [server] = node.servers()
    os.kill(server, signal.SIGKILL)
    assert shim.ended("c") == -signal.SIGKILL
    assert shim.without_files == {"c"}
    assert shim.call("delete", id="c") == {}


@USER
def test_its_server_is_killed_before_there_is_a_container(node: Node) -> None:
    [server] = node.servers()
    os.kill(server, signal.SIGKILL)
    wait_until("it has gone", lambda: not node.servers())
    reply = node.shim.create("c", "true", images="images-1")
    assert reply["error"] == "its root file system went away"


@ALL
def test_the_shim_is_killed(node: Node, make_shim: MakeShim) -> None:
    node.run("c", "sleep", "600")
    servers = node.servers()
    os.kill(node.shim.hello["pid"], signal.SIGKILL)
    for pid in servers:  # as Slurm does
        os.kill(pid, signal.SIGKILL)
    directory = node.shim.hello["directory"]
    make_shim(node.shim.env, node.shim.user)  # the next one removes what it has left
    wait_until("nothing is left", lambda: not os.path.exists(directory))


@WAYS
def test_what_cannot_be_mounted(
    make_shim: MakeShim, image: Path, tmp_path: Path, who: str
) -> None:
    shim = make_shim({}, users.root() if who == "root" else users.ordinary())
    assert os.path.basename(shim.call("mount", id="", files=[])["way"]).startswith("squashf")
    reply = shim.call("mount", id="a", files=[[f"{tmp_path}/none", str(image.parent)]])
    assert reply["unseen"]
    broken = image.parent / f"broken-{who}"
    broken.write_bytes(b"hsqs" + bytes(4096))
    other = image.parent / f"other-{who}"
    other.mkdir()
    os.chown(other, shim.user.uid, shim.user.gid)
    files = [[str(image), str(image.parent)], [str(broken), str(other)]]
    assert shim.call("mount", id="b", files=files)["error"]
    assert "error" in shim.call("script", script="true", images="b")


@WAYS
def test_an_overlay_by_fuse(make_shim: MakeShim, image: Path, who: str) -> None:
    """For a user, whose kernel may refuse it; root's does not."""
    shim = make_shim({}, users.root() if who == "root" else users.ordinary())
    place = image.parent / f"by-fuse-{who}"
    for folder in (place, *(place / name for name in ("lower", "upper", "work", "point"))):
        folder.mkdir()
        os.chown(folder, shim.user.uid, shim.user.gid)
    (place / "lower" / "f").write_text("below\n")
    os.chown(place / "lower" / "f", shim.user.uid, shim.user.gid)
    root = [str(place / "point"), str(place), "lowerdir=lower,upperdir=upper,workdir=work"]
    reply = shim.call("mount", id="a", files=[], root=root, by_fuse=True)
    if who == "root":
        assert reply["root"]
        assert reply["error"].startswith("the node has no fuse-overlayfs")
        return
    assert reply == {"way": "overlay", "root": True}
    script = f"cat {place}/point/f && echo above >{place}/point/g && rm {place}/point/f"
    assert shim.call("script", script=script, images="a") == {"status": 0, "text": "below\n"}
    assert not list((place / "point").iterdir())  # nobody else sees it
    assert (place / "upper" / "g").read_text() == "above\n"
    assert shim.call("unmount", id="a") == {}
    wrong = [*root[:2], "lowerdir=none,upperdir=upper,workdir=work"]
    reply = shim.call("mount", id="b", files=[], root=wrong, by_fuse=True)
    assert reply["root"], reply
    assert "No such file" in reply["error"], reply


def test_root_s_images_are_mounted_where_nobody_has_loaded_the_module_yet(tmp_path: Path) -> None:
    """/proc/filesystems has the modules that are loaded; the first mount loads one."""
    (tmp_path / "filesystems").write_text("nodev\ttmpfs\n")
    code = "from scrun.supervisor.shim.images import _way; print(_way(False))"
    words = 'mount --bind "$1" /proc/filesystems && exec "$2" -c "$3"'
    files = [str(tmp_path / "filesystems"), sys.executable, code]
    done = run_program(["unshare", "--mount", "sh", "-c", words, "sh", *files])
    assert (done.stdout, done.stderr) == ("squashfs\n", "")
