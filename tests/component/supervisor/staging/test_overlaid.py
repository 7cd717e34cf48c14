"""Root file systems that the node mounts from an engine's layers, and what comes back of them."""

import json
import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scrun.core.errors import EngineError
from scrun.supervisor.contracts.target import RootRefused
from scrun.supervisor.staging.overlaid import NO_ROOT
from scrun.supervisor.staging.stage_out import clean, stage_out
from scrun.supervisor.staging.ways import RootFilesystem
from tests.harness.bundle import snapshot
from tests.harness.layers import AS_ROOT, Image, ask, in_shell, listing


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    one = Image(tmp_path, monkeypatch)
    before = len(os.listdir("/proc/self/fd"))
    yield one
    stage_out(str(one.staged))
    assert not one.staged.exists()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture(params=["one overlay", "by fuse", "one for each directory"])
def either(image: Image, request: pytest.FixtureRequest) -> Image:
    """Mounted by a shim, by the kernel or by fuse-overlayfs, or by the runtime."""
    if request.param != "one for each directory":
        image.by_shim(refused=request.param == "by fuse")
    return image


def test_the_node_mounts_the_engine_s_own_directories(either: Image) -> None:
    image = either
    image.mounted()
    before = [snapshot(layer) for layer in (*image.layers, image.rootfs)]
    staged = image.stage()
    assert staged.overlaid, staged.notes
    assert staged.view is None
    by = " by fuse-overlayfs" * image.node_by_fuse
    assert staged.notes == (
        f"root: the node mounts the layers of {image.rootfs}{by}; changes come back at the end",
    )
    image.run("ls -R . >../seen; cat motd lib/doc/one bin/ash >>../seen")
    seen = (image.staged / "seen").read_text()
    (image.staged / "seen").unlink()
    assert seen.endswith("motdusr/share/doc/onebin/sh")
    assert [snapshot(layer) for layer in (*image.layers, image.rootfs)] == before
    image.end(staged)
    assert snapshot(image.rootfs) == before[3]


def test_a_node_that_has_mounted_one_only_looks_at_the_next(image: Image) -> None:
    """It still has to see all layers, and tries what differs in kind."""
    image.known = set()
    image.mounted()
    for number in range(3):
        assert image.stage().overlaid
        assert ("mount -t overlay" in image.asked[-1]) is (number == 0)
        assert "stat -L" in image.asked[-1]
        image.run("echo new >etc/new")
        stage_out(str(image.staged))
    image.hidden(image.layers[2])
    assert not image.stage().overlaid
    assert len(image.asked) == 4
    assert "mount -t overlay" not in image.asked[3]
    stage_out(str(image.staged))
    image.node = ask
    image.config["root"]["readonly"] = True
    assert image.stage().overlaid
    assert "mount -t overlay" in image.asked[-1]


def test_directories_in_the_root_directory(image: Image, tmp_path: Path) -> None:
    """They are no mount points if a shim mounts the root directory itself."""
    change = "rm -r empty; mv usr/share bin/moved; ln etc/passwd bin/passwd; rm -r usr; mkdir usr"
    image.by_shim()
    image.mounted()
    subprocess.run(["cp", "-a", image.rootfs, tmp_path / "expected"], check=True)
    in_shell(change, tmp_path / "expected")
    staged = image.stage()
    image.run(change)
    image.end(staged)
    assert listing(image.rootfs) == listing(tmp_path / "expected")
    assert (image.rootfs / "etc/passwd").samefile(image.rootfs / "bin/passwd")


def test_a_kernel_that_refuses_one_overlay(image: Image) -> None:
    """Then the runtime is to mount one for each directory."""
    image.by_shim()
    image.mounted()
    mounter = image.mounter

    def refused(_: object) -> str:
        raise RootRefused("overlay: Invalid argument")

    assert mounter is not None
    image.mounter = msgspec.structs.replace(mounter, mount=refused)
    staged = image.staged_as("layers")
    image.run("echo new >etc/new")
    image.end(staged)
    assert (image.rootfs / "etc/new").read_text() == "new\n"


@pytest.mark.parametrize("beside", [False, True])
def test_only_a_shim_that_mounts_nothing_is_not_asked_again(
    image: Image, monkeypatch: pytest.MonkeyPatch, *, beside: bool
) -> None:
    """One that was to do so beside another container may have come too late for that."""
    image.rootless = False
    image.by_shim()
    image.mounted()
    image.known = set()
    mounter = image.mounter

    def cannot(_: object) -> str:
        raise EngineError("it is gone")

    assert mounter is not None
    image.mounter = msgspec.structs.replace(mounter, mount=cannot)
    if beside:
        monkeypatch.setattr(RootFilesystem, "beside", "/proc/1/ns")
    assert image.stage().image == "layers"
    assert (NO_ROOT in image.known) is not beside


CHANGES = {
    "what is new": "echo new >etc/new; echo new >new; head -c 3000000 /dev/zero >usr/new; "
    "mkdir -p a/b/c etc/a/b/c; echo x >a/b/x; echo x >etc/a/x; "
    "mkfifo -m 640 etc/fifo; "  # fuse-overlayfs 1.14 forgets the umask
    "echo x >etc/x; rm etc/x; echo anew >etc/shadow",  # which another layer has removed
    "what is different": "echo other >etc/passwd; echo other >motd; ln etc/passwd etc/another; "
    "ln -sf /bin/other bin/ash; ln -sfn /else lib; chmod 1777 empty; chmod 700 usr/share",
    "other modes": "chmod 4750 etc/passwd; chmod 600 motd; "
    "rm -r usr/share/doc; mkdir usr/share/doc; echo two >usr/share/doc/two",
    "what is removed": "rm etc/passwd motd; rm -r usr/share/doc",
    "a file and a directory": "rm etc/passwd; mkdir -p etc/passwd/x; rm -r usr/share; "
    "echo x >usr/share",
    "a link instead": "rm -r usr/share; ln -s /etc usr/share; mv etc/passwd bin/passwd",
    "renamed": "mv etc/passwd etc/other; mv usr/share usr/moved",
}


@pytest.mark.parametrize("rootless", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_change(either: Image, change: str, tmp_path: Path, *, rootless: bool) -> None:
    image = either
    image.rootless = rootless
    (image.layers[1] / "etc").mkdir()
    (image.layers[2] / "etc/shadow").write_text("secret")
    os.mknod(image.layers[1] / "etc/shadow", stat.S_IFCHR)
    image.mounted()
    subprocess.run(["cp", "-a", image.rootfs, tmp_path / "expected"], check=True)
    in_shell(CHANGES[change], tmp_path / "expected")
    staged = image.stage()
    assert staged.overlaid, staged.notes
    image.run(CHANGES[change])
    image.end(staged)
    assert listing(image.rootfs) == listing(tmp_path / "expected")


def test_deletions_of_layers(either: Image) -> None:
    """Also of what is in the root directory, and where a directory begins anew."""
    image = either
    lower, upper = image.layers[2], image.layers[1]
    os.mknod(upper / "empty", stat.S_IFCHR)
    os.mknod(upper / "motd", stat.S_IFCHR)
    (upper / "usr").mkdir()
    os.setxattr(upper / "usr", "user.overlay.opaque", b"y")
    (upper / "usr/new").write_text("new")
    (lower / "opt").write_text("a file")
    (upper / "opt").mkdir()
    image.mounted()
    assert image.stage().overlaid
    image.run("find . >../seen")
    seen = (image.staged / "seen").read_text().split()
    (image.staged / "seen").unlink()
    expected = {f"./{path.relative_to(image.rootfs)}" for path in image.rootfs.rglob("*")}
    assert set(seen) == {".", *expected}
    assert "./usr/share" not in seen


def test_files_of_others_belong_to_the_only_user(either: Image) -> None:
    image = either
    lower = image.layers[2]
    for name, mode in {"etc/passwd": 0o600, "usr/share/doc/one": 0o4755}.items():
        os.chown(lower / name, 33, 33)
        (lower / name).chmod(mode)
    os.chown(lower / "usr/share", 33, 33)
    (lower / "usr/share").chmod(0o700)
    (lower / "usr/share/mine").write_text("mine")
    os.chown(lower / "empty", 33, 33)
    (lower / "empty").chmod(0o700)
    (lower / "empty/not").write_text("not")
    image.mounted()
    staged = image.stage()
    assert staged.overlaid, staged.notes
    assert json.loads(image.cache.read_bytes()).keys() == {str(path) for path in image.layers[1:]}
    image.run(
        "cat etc/passwd empty/not; echo x >>etc/passwd; cat usr/share/mine; "
        "rm usr/share/doc/one empty/not; touch usr/share/new"
    )
    image.end(staged)
    changed = (image.rootfs / "etc/passwd").stat()
    assert (image.rootfs / "etc/passwd").read_text() == "etc/passwdx\n"
    assert (changed.st_uid, stat.S_IMODE(changed.st_mode)) == (33, 0o600)
    assert not (image.rootfs / "usr/share/doc/one").exists()
    assert not (image.rootfs / "empty/not").exists()
    assert (image.rootfs / "usr/share").stat().st_uid == 33
    assert (image.rootfs / "usr/share/new").stat().st_uid == os.geteuid()
    assert (image.rootfs / "usr/share/mine").read_text() == "mine"


def test_what_others_have_where_the_image_has_a_link(either: Image, tmp_path: Path) -> None:
    """An upper layer has a link in the place of a lower one's directory: it is not followed."""
    image = either
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/one").write_text("secret")
    os.chown(tmp_path / "outside/one", 33, 33)
    os.chown(image.layers[2] / "usr/share/doc/one", 33, 33)
    (image.layers[1] / "usr/share").mkdir(parents=True)
    (image.layers[1] / "usr/share/doc").symlink_to(tmp_path / "outside")
    image.mounted()
    assert image.stage().overlaid
    assert "secret" not in [path.read_text() for path in image.staged.rglob("one")]
    assert not list((image.staged / "overlay/own").rglob("one"))


def test_root_s_container_with_users_of_its_own(image: Image) -> None:
    image.rootless = False
    image.config["linux"] = {"namespaces": [{"type": "user"}]}
    image.mounted()
    staged = image.stage()
    assert not staged.overlaid
    assert "users of its own" in staged.notes[0]


def test_marks_that_the_node_would_not_read(image: Image) -> None:
    """A user's container cannot use what root has mounted."""
    image.rootless = False
    image.mounted()
    image.rootless = True
    staged = image.stage()
    assert "have marks" in staged.notes[0]


@pytest.mark.parametrize("rootless", [True, False])
def test_the_container_s_own_layer_is_on_this_machine_only(
    image: Image, monkeypatch: pytest.MonkeyPatch, *, rootless: bool
) -> None:
    """As with images in a store that all machines share, and containers on a local disk."""
    image.rootless = rootless
    lower, mine = image.layers[2], image.layers[0]
    (lower / "etc/old").mkdir()
    (lower / "etc/old/f").write_text("old")
    (mine / "etc/old").mkdir(parents=True)
    mark = "user" if rootless else "trusted"
    os.setxattr(mine / "etc/old", f"{mark}.overlay.opaque", b"y")
    (mine / "etc/passwd").write_text("mine")
    (mine / "etc/passwd").chmod(0o640)
    os.setxattr(mine / "etc/passwd", "user.note", b"kept")
    os.mknod(mine / "etc/hosts", stat.S_IFCHR)
    (mine / "etc/link").symlink_to("passwd")
    image.mounted()
    hide = f"mount -t tmpfs none {shlex.quote(str(mine))}; "

    def elsewhere(script: str) -> str:
        return ask(shlex.join([*AS_ROOT[:3], "-c", hide + script]))

    image.node = elsewhere
    staged = image.stage()
    assert staged.overlaid, staged.notes
    image.run(
        "test ! -e etc/old/f; test ! -e etc/hosts; test $(cat etc/link) = mine; "
        "test $(stat -c %a etc/passwd) = 640"
    )
    copied = image.staged / "overlay/l/0/etc/passwd"
    assert os.getxattr(copied, "user.note") == b"kept"


def test_a_large_layer_of_its_own_is_mounted_as_it_is(image: Image) -> None:
    for number in range(300):
        (image.layers[0] / "etc" / str(number)).mkdir(parents=True)
    image.mounted()
    assert image.stage().overlaid
    assert (image.staged / "overlay/l/0").readlink() == image.layers[0]


def test_many_layers(either: Image) -> None:
    """As many as fit into a page by short names, with the long name of a container's record."""
    image = either
    image.staged = image.staged.with_name("c" * 100)
    for number in range(40):
        layer = image.store / f"layer{number}" / "diff"
        (layer / "usr").mkdir(parents=True)
        (layer / "usr" / str(number)).write_text("x")
        image.layers.insert(1, layer)
    image.mounted()
    staged = image.stage()
    assert staged.overlaid, staged.notes
    image.run("test $(ls usr | wc -l) = 41; rm usr/0")
    image.end(staged)
    assert not (image.rootfs / "usr/0").exists()
    stage_out(str(image.staged))
    assert not list(image.staged.parent.glob(".scrun-*"))


def test_what_a_killed_supervisor_has_left(either: Image) -> None:
    """Whoever finds the staged bundle brings the changes back, and removes it."""
    image = either
    image.rootless = False
    image.mounted()
    assert image.stage().overlaid
    image.run("rm -r usr/share; mkdir usr/share; echo x >motd")
    clean(str(image.staged), str(image.rootfs))
    assert not image.staged.exists()
    assert list((image.rootfs / "usr/share").iterdir()) == []
    assert (image.rootfs / "motd").read_text() == "x\n"


def test_nothing_comes_back_of_what_is_removed_anyway(image: Image) -> None:
    image.mounted()
    image.config["annotations"] = {"io.podman.annotations.autoremove": "TRUE"}
    staged = image.stage()
    assert staged.overlaid, staged.notes
    assert staged.copied_from == ""


def test_a_read_only_root(either: Image) -> None:
    """Mount points that are missing are made before: the runtime cannot."""
    image = either
    image.config["root"]["readonly"] = True
    (image.layers[2] / "etc/there").touch()
    image.config["mounts"] = [
        {"destination": "/etc/there", "type": "bind", "source": str(image.layers[2] / "motd")},
        {"destination": "/etc/file", "type": "bind", "source": str(image.layers[2] / "motd")},
        {"destination": "/usr/share/a/b", "type": "tmpfs"},
        {"destination": "/new", "type": "tmpfs"},
    ]
    image.mount_points = ["/etc/of/slurm"]
    image.mounted()
    staged = image.stage()
    assert staged.overlaid, staged.notes
    assert staged.copied_from == ""
    image.run(
        "if touch etc/x 2>/dev/null; then exit 1; fi; "
        "test -f etc/file; test -f etc/there; test -d usr/share/a/b; test -d etc/of/slurm; "
        "test -f usr/share/doc/one; test $(stat -c %a usr/share) = 755"
    )


def a_device(image: Image) -> None:
    os.mkfifo(image.layers[2] / "fifo")


def a_name(image: Image) -> None:
    (image.layers[2] / "a:b").mkdir()


def a_blank(image: Image) -> None:
    image.staged = image.staged.with_name("a b")


UNUSABLE = {
    "a FIFO": (a_device, "FIFO"),
    "a name": (a_name, "/'a:b'"),
    "the place": (a_blank, "cannot be mounted in"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_what_cannot_be_mounted_is_copied(image: Image, case: str) -> None:
    change, why = UNUSABLE[case]
    change(image)
    image.mounted()
    staged = image.stage()
    assert not staged.overlaid
    assert why in staged.notes[0]
    assert "root: copied" in staged.notes[1]
    assert (image.staged / "rootfs/etc/passwd").read_text() == "etc/passwd"
    assert not (image.staged / "overlay").exists()


ANSWERS: dict[str, tuple[Callable[[str], str], str]] = {
    "others": (lambda answer: "1 1\n" + answer.partition("\n")[2], "differ on the node"),
    "nothing there": (lambda _: "sh: 1: cd: can't cd to /x\n", "on the node: sh: 1: cd"),
    "refused": (lambda a: f"hello\n{a[:-8]}mount: denied\nsee dmesg\n", "node: mount: denied"),
    "nothing": (lambda _: "", "differ on the node"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_the_node_s_answer_decides(
    image: Image, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, why = ANSWERS[case]
    image.node = lambda script: change(ask(script))
    image.mounted()
    staged = image.stage()
    assert not staged.overlaid
    assert why in staged.notes[0]


def test_a_site_s_prolog_writes_before_the_answer(
    image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    image.node = lambda script: f"Welcome: 1 2\n{ask(script)}"
    image.mounted()
    assert image.stage().overlaid


def test_a_layer_is_gone(image: Image) -> None:
    image.mounted()
    image.layers[1].rmdir()
    staged = image.stage()
    assert "are not all here" in staged.notes[0]
    assert not staged.overlaid


# Several tasks


def test_each_task_writes_to_a_directory_of_its_own(either: Image) -> None:
    """What comes back is in the order of the tasks: the last one's counts."""
    image = either
    image.tasks = 3
    image.mounted()
    staged = image.staged_as("layers")
    assert [Path(task.place).name for task in staged.tasks] == ["task-0", "task-1", "task-2"]
    for number, task in enumerate(staged.tasks):
        image.run(f"test ! -e etc/new; echo {number} >etc/new; echo {number} >bin/{number}", task)
    image.run("rm etc/passwd; rm -r usr/share/doc", staged.tasks[0])
    image.run("echo back >etc/passwd; mkdir empty/b", staged.tasks[1])
    image.end(staged)
    found = listing(image.rootfs)
    assert {name for name in found if name.startswith("bin/")} == {
        "bin/sh", "bin/ash", "bin/0", "bin/1", "bin/2",
    }  # fmt: skip
    assert (image.rootfs / "etc/new").read_text() == "2\n"
    assert (image.rootfs / "etc/passwd").read_text() == "back\n"
    assert not (image.rootfs / "usr/share/doc").exists()
    assert (image.rootfs / "empty/b").is_dir()


def test_a_killed_supervisor_leaves_the_changes_of_all_tasks(either: Image) -> None:
    image = either
    image.tasks = 11
    image.mounted()
    staged = image.stage()
    for number in (10, 2, 0):
        image.run(f"echo {number} >etc/new; echo >bin/{number}", staged.tasks[number])
    clean(str(image.staged), str(image.rootfs))
    assert (image.rootfs / "etc/new").read_text() == "10\n"
    assert len(list((image.rootfs / "bin").iterdir())) == 5


def test_one_node_of_several_does_not_see_the_layers(image: Image) -> None:
    image.tasks = 2
    image.mounted()
    hide = f"mount -t tmpfs none {shlex.quote(str(image.store))}; "

    def in_turn(script: str) -> str:
        if len(image.asked) % 2 and not image.said:
            image.said.append("asked")
            return ask(script)
        return ask(shlex.join([*AS_ROOT[:3], "-c", hide + script]))

    image.node = in_turn
    staged = image.staged_as("copy")
    assert "cannot be mounted on the node: stat: " in staged.notes[0]


def test_the_same_mounts_for_all_tasks_can_only_be_read(image: Image) -> None:
    """As with srun --container."""
    image.tasks = 0
    image.mounted()
    staged = image.staged_as("copy")
    assert "two overlays cannot write to one directory" in staged.notes[0]
    stage_out(str(image.staged))
    image.config["root"]["readonly"] = True
    staged = image.staged_as("layers")
    image.run("cat etc/passwd; ! touch etc/new")
