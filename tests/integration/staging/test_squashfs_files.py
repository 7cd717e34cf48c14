"""`scrun run ./x.sqsh`: the node mounts the file itself; nobody unpacks it where that can be."""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.overlays import own
from tests.harness.site import Site
from tests.harness.squashfs import fuse_for_all, served
from tests.harness.wait import wait_until, wait_while

pytestmark = [pytest.mark.by_shim, pytest.mark.covers("scrun run: of an image")]

BY_FUSE = "by /usr/bin/squashfuse; changes are not kept"


class Squash:
    """A user with a squashfs file, whose files belong to several users.

    Attributes:
        site: The user's.
        file: The file.
        store: The user's store of images.
    """

    def __init__(self, site: Site) -> None:
        fuse_for_all()
        self.site = site
        self.store = site.base / "s"
        with (site.base / "scrun.toml").open("a") as settings:
            settings.write(f'[images]\nstore = "{self.store}"\n')
        folder = site.base / "b"
        self.file = folder / "x.sqsh"
        self.tree = site.base / "tree"
        subprocess.run(["cp", "-a", site.rootfs, self.tree], check=True)
        (self.tree / "etc/environment").write_text("# its own\nA=of the file\n")
        (self.tree / "etc/secret").write_text("secret\n")
        (self.tree / "etc/secret").chmod(0o600)
        os.chown(self.tree / "etc/secret", 33, 44)
        (self.tree / "etc/link").symlink_to("../bin")
        (self.tree / "top").write_text("top\n")
        self.pack()

    def pack(self, *options: str) -> None:
        """Make the file, with another inode."""
        new = self.file.with_name("new")
        words: list[str | Path] = [
            "mksquashfs",
            self.tree,
            new,
            "-quiet",
            "-no-progress",
            *options,
        ]
        subprocess.run(words, check=True)
        self.site.user.give(new)
        new.rename(self.file)

    def run(self, *words: str, image: str = "") -> str:
        """Run a container of it; return what it says."""
        return self.site.must("run", *words[:-1], image or str(self.file), "sh", "-c", words[-1])

    def begin(self, name: str, image: str = "") -> None:
        """Have one go on."""
        self.run("--detach", "--name", name, "echo up; exec sleep 600", image=image)
        wait_until("it is up", lambda: "up" in self.site.must("logs", name))

    def log(self, name: str) -> str:
        return next(self.site.base.glob(f"**/{name}/log")).read_text()

    def image(self, name: str) -> str:
        """What `state` says of its root file system."""
        return str(json.loads(self.site.must("state", name))["annotations"]["org.scrun.image"])

    def keys(self) -> list[str]:
        return sorted(name.name for name in self.store.glob("file-*"))


@pytest.fixture
def squash(make_site: MakeSite) -> Iterator[Squash]:
    before = set(served())
    one = Squash(make_site("slurm-user"))
    yield one
    wait_while("jobs", lambda: cluster.jobs(one.site.user), 15)
    wait_until("nobody serves an image any more", lambda: set(served()) <= before)
    assert not (one.store / "tmp").exists() or os.listdir(one.store / "tmp") == []


def test_it_is_not_unpacked(squash: Squash) -> None:
    script = (
        "echo $A; cat /etc/secret /top; stat -c %u /etc/secret; echo more >>/etc/secret; "
        "rm /bin/tac; test ! -e /bin/tac && cat /etc/secret"
    )
    assert squash.run(script) == "of the file\nsecret\ntop\n0\nsecret\nmore\n"
    assert squash.run("ls /bin/tac; cat /etc/secret") == "/bin/tac\nsecret\n"
    [key] = squash.keys()
    assert os.readlink(squash.store / key / "rootfs.sqfs") == str(squash.file)
    assert os.listdir(squash.store / key / "rootfs" / "bin") == []
    squash.begin("one")
    assert squash.image("one") == "squashfs"
    assert f"root: the node mounts {squash.file} {BY_FUSE}" in squash.log("one")
    assert squash.site.must("exec", "one", "cat", "/etc/secret") == "secret\n"
    squash.site.must("delete", "--force", "one")


def test_read_only(squash: Squash) -> None:
    """Mount points are there, and a link on the way to one stays a link."""
    (place := squash.site.base / "b" / "data").mkdir()
    (place / "file").write_text("there\n")
    squash.site.user.give(place)
    mounts = (f"--mount={place}:/etc/deep/er", f"--mount={place}/file:/etc/hosts2")
    script = "cat /etc/deep/er/file /etc/hosts2 /etc/secret; readlink /etc/link; "
    script += "touch /etc/x 2>/dev/null || :"
    said = squash.run("--read-only", *mounts, script)
    assert said == "there\nthere\nsecret\n../bin\n"


def test_a_changed_file_is_another_image(squash: Squash) -> None:
    squash.begin("one")
    (squash.tree / "top").write_text("new\n")
    squash.pack()
    assert squash.run("cat /top") == "new\n"
    assert len(squash.keys()) == 2
    squash.file.unlink()
    assert squash.site.must("exec", "one", "cat", "/top") == "top\n"
    squash.site.must("delete", "--force", "one")
    assert "there is no such image" in squash.site.fails("run", str(squash.file))


def test_several_at_once(squash: Squash) -> None:
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        said = list(pool.map(lambda _: squash.run("cat /etc/secret"), range(6)))
    assert said == ["secret\n"] * 6
    assert len(squash.keys()) == 1


def test_copies_are_unpacked(squash: Squash) -> None:
    saved = squash.site.base / "b" / "saved.sqsh"
    squash.run(f"--save={saved}", "echo more >>/etc/secret")
    assert squash.run("cat /etc/secret", image=str(saved)) == "secret\nmore\n"
    squash.run("--writable", "--name", "work", "echo kept >>/etc/secret")
    assert squash.run("cat /etc/secret", image="name:work") == "secret\nkept\n"


def test_what_serves_it_is_killed(squash: Squash) -> None:
    before = set(served())
    squash.begin("one")
    for pid in set(served()) - before:
        os.kill(pid, signal.SIGKILL)
    wait_until("its end", lambda: '"stopped"' in squash.site.must("state", "one"))
    assert "its root file system went away" in squash.site.must("logs", "one")
    squash.site.must("delete", "--force", "one")


def test_it_is_to_be_unpacked(squash: Squash) -> None:
    """Once, in the store."""
    with (squash.site.base / "scrun.toml").open("a") as settings:
        settings.write(own("copy"))
    for _ in range(2):
        assert squash.run("cat /etc/secret") == "secret\n"
    [unpacked] = squash.store.glob("file-*-files")
    assert (unpacked / "rootfs/etc/secret").read_text() == "secret\n"
    squash.begin("one")
    assert squash.image("one") == "copy"
    squash.site.must("delete", "--force", "one")


def test_a_file_that_nodes_do_not_see(squash: Squash) -> None:
    """It is sent; what has its name there is another one."""
    folder = squash.site.base / "b" / "hidden"
    folder.mkdir()
    there = folder / "x.sqsh"
    (squash.tree / "top").write_text("of the node\n")
    squash.pack()
    squash.file.rename(there)
    # not for the nodes: an engine may have made what is around shared
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "--make-private", folder], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
    kept = Path(f"/tmp/scrun-images-{squash.site.user.uid}")
    try:
        folder.chmod(0o755)
        (squash.tree / "top").write_text("of here\n")
        squash.pack()
        squash.file.rename(squash.file.with_name("moved"))
        there.write_bytes(squash.file.with_name("moved").read_bytes())
        there.chmod(0o644)
        for _ in range(2):
            assert squash.run("cat /top", image=str(there)) == "of here\n"
        squash.begin("one", image=str(there))
        assert "after they were sent to the node" in squash.log("one")
        squash.site.must("delete", "--force", "one")
        assert len(list(kept.iterdir())) == 1
    finally:
        for _ in range(2):
            subprocess.run(["umount", "--lazy", folder], check=True)
        shutil.rmtree(kept, ignore_errors=True)


def test_hostile_files(squash: Squash) -> None:
    """Names, links and types in the root directory; a file that is none."""
    for name in ("with space", "new\nline"):
        (squash.tree / name).mkdir()
    squash.pack()
    assert squash.run("ls -d '/with space'; cat /etc/secret") == "/with space\nsecret\n"
    etc = squash.tree / "etc"
    etc.rename(squash.tree / "real")
    etc.symlink_to("/real")
    squash.pack()
    assert squash.run("cat /etc/secret") == "secret\n"
    squash.file.write_bytes(squash.file.read_bytes()[:8192])
    told = squash.site.fails("run", str(squash.file))
    assert f"{squash.file}: unsquashfs cannot unpack it: " in told
