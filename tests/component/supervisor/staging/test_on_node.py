"""Staged bundles on file systems that no overlay can be written to: FUSE here, NFS at sites."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.errors import StagingError
from scrun.supervisor.staging import staged_bundle
from scrun.supervisor.staging.on_node import SENT, archive_of, removing, sending
from scrun.supervisor.staging.stage_out import clean, stage_out
from tests.harness.layers import Image, ask, listing

CHANGES = """
echo new >etc/new; mkdir -p a/b; echo x >a/b/x; echo other >etc/passwd; chmod 4750 etc/hosts
rm -r usr/share; mkdir usr/share; echo two >usr/share/two; ln -sf /bin/other bin/ash; mkfifo etc/f
mv empty/old empty/moved; ln etc/new etc/twice; echo y >motd; touch bin/closed; chmod 0 bin/closed
mkdir bin/dir; chmod 0 bin/dir
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Image]:
    one = Image(tmp_path, monkeypatch)
    (one.layers[2] / "empty/old").write_text("old")
    below, scratch, node = (tmp_path / name for name in ("below", "scratch", "node"))
    for folder in (below, scratch, node):
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(node))
    subprocess.run(["bindfs", "--xattr-none", below, scratch], check=True, timeout=10)
    one.staged = scratch / "staged"
    try:
        yield one
        stage_out(str(one.staged))
        assert not one.staged.exists()
        assert os.listdir(node) == [], "nothing is left on the node"
    finally:
        subprocess.run(["umount", scratch], check=True, timeout=10)


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("rootless", [True, False])
def test_what_is_written_comes_back(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rootless: bool, knows: bool
) -> None:
    """By the kind of the file system, or after an attempt."""
    if not knows:
        monkeypatch.setattr(staged_bundle, "remote", lambda _: False)
    image.rootless = rootless
    image.mounted()
    subprocess.run(["cp", "-a", image.rootfs, tmp_path / "expected"], check=True)
    subprocess.run(["/bin/sh", "-ec", CHANGES], cwd=tmp_path / "expected", check=True)
    staged = image.staged_as("layers")
    assert staged.place.startswith(f"{tmp_path}/node/scrun-written-")
    image.run(CHANGES)
    image.end(staged)
    assert listing(image.rootfs) == listing(tmp_path / "expected")


def test_nothing_changes_without_changes(image: Image) -> None:
    image.mounted()
    before = [(path, path.lstat().st_mtime_ns) for path in sorted(image.rootfs.rglob("*"))]
    staged = image.stage()
    image.run("ls -R . >/dev/null")
    image.end(staged)
    after = [(path, path.lstat().st_mtime_ns) for path in sorted(image.rootfs.rglob("*"))]
    assert after == before


def test_what_a_killed_supervisor_has_left(image: Image, caplog: pytest.LogCaptureFixture) -> None:
    """The node is out of reach: its log says what is lost."""
    image.mounted()
    staged = image.stage()
    image.run("echo x >etc/new; echo y >new")
    caplog.set_level("WARNING")
    clean(str(image.staged), str(image.rootfs))
    assert f"were on its node, in {staged.place}" in caplog.text
    assert not (image.rootfs / "etc/new").exists()
    assert (image.rootfs / "new").read_text() == "y\n"
    ask(removing([staged.place], rootless=True))


def test_what_a_killed_supervisor_had_been_sent(
    image: Image, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is left on the node then: this is all there is of it."""
    image.rootless = False
    image.mounted()
    subprocess.run(["cp", "-a", image.rootfs, tmp_path / "expected"], check=True)
    subprocess.run(["/bin/sh", "-ec", CHANGES], cwd=tmp_path / "expected", check=True)
    staged = image.stage()
    image.run(CHANGES)
    archive, before = archive_of(staged.bundle, 0), os.listdir("/var/tmp")
    assert ask(sending(staged.place, archive, rootless=image.rootless)) == f"{SENT}\n"
    caplog.set_level("WARNING")
    clean(str(image.staged), str(image.rootfs))
    assert listing(image.rootfs) == listing(tmp_path / "expected")
    assert "were on its node" not in caplog.text
    assert os.listdir("/var/tmp") == before


def test_an_archive_that_cannot_be_unpacked_stays(image: Image) -> None:
    image.mounted()
    staged = image.stage()
    Path(archive_of(staged.bundle, 0)).write_bytes(b"no archive" * 100)
    with pytest.raises(StagingError, match="unpacking the container's changes failed: tar: "):
        clean(str(image.staged), str(image.rootfs))
    assert Path(archive_of(staged.bundle, 0)).exists()
    ask(removing([staged.place], rootless=True))


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("case", ["refused", "another bundle"])
def test_a_node_keeps_nothing_of_an_attempt(image: Image, case: str, tasks: int) -> None:
    image.tasks = tasks
    image.mounted()
    if case == "refused":
        image.node = lambda script: ask(script.replace("-t overlay", "-t none"))
        why = "cannot be mounted on the node: mount:"
    else:
        image.node = lambda script: "\n. 1 1\n".join(ask(script).split("\n. ")) + "\n. 1 1\n"
        why = "differ on the node"
    staged = image.staged_as("copy")
    assert why in staged.notes[0]


def test_layers_that_the_node_does_not_see(image: Image) -> None:
    """The directory that was made for the first attempt is removed."""
    image.with_store = True
    image.by_shim()
    image.recorded()
    image.unseen()
    staged = image.staged_as("squashfs")
    image.run("echo x >etc/new")
    image.end(staged)
    assert (image.rootfs / "etc/new").read_text() == "x\n"


def test_of_several_tasks_each_has_a_directory(image: Image, tmp_path: Path) -> None:
    image.tasks = 2
    image.mounted()
    staged = image.staged_as("layers")
    assert not staged.place
    assert len({task.place for task in staged.tasks}) == 2
    for number, task in enumerate(staged.tasks):
        assert task.place.startswith(f"{tmp_path}/node/scrun-written-")
        image.run(f"echo {number} >etc/new; echo {number} >usr/of-{number}", task)
    image.end(staged)
    assert (image.rootfs / "etc/new").read_text() == "1\n"
    assert sorted(path.name for path in (image.rootfs / "usr").glob("of-*")) == ["of-0", "of-1"]


def test_a_read_only_one_needs_no_directory(image: Image) -> None:
    image.config["root"]["readonly"] = True
    image.mounted()
    staged = image.stage()
    assert (staged.image, staged.place, staged.tasks) == ("layers", "", ())
    image.run("cat etc/passwd; ! touch etc/new")
