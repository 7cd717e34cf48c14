"""Where the shim's files are on a node: nobody else can replace them, by any part of the path."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from scrun.supervisor.shim import cache, files
from scrun.supervisor.shim.runtime import CallRefused
from scrun.supervisor.staging.on_node import making_in
from tests.harness.program import run_program

KEY = b"k" * 16
Spoil = Callable[[Path], object]

SPOILS: dict[str, Spoil] = {
    "everybody writes": lambda path: path.chmod(0o777),
    "a group writes": lambda path: path.chmod(0o770),
    "somebody else's": lambda path: os.chown(path, 12345, -1),
}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for /var/tmp and /dev/shm."""
    path = tmp_path / "elsewhere"
    path.mkdir(0o700)
    monkeypatch.setattr(files, "_MEMORY", str(path))
    monkeypatch.setattr(files, "folders", lambda env: [env["TMPDIR"], str(path)])
    monkeypatch.setattr(cache, "folders", files.folders)
    return path


def tmpdir(tmp_path: Path, depth: int = 0) -> tuple[Path, Path]:
    """A TMPDIR, and the directory `depth` above it."""
    path = tmp_path / "a" / "b" / "c"
    path.mkdir(parents=True)
    for part in (path, *path.parents[:2]):
        part.chmod(0o755)
    return path, [path, *path.parents][depth]


@pytest.mark.covers("security replace what is in a node's TMPDIR")
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("kind", SPOILS)
@pytest.mark.by_root
def test_a_place_that_others_can_replace(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, depth: int, kind: str
) -> None:
    """Whatever part of the path it is: another place is used, and what is there is left alone."""
    place, part = tmpdir(tmp_path, depth)
    left = place / f"scrun-{os.geteuid()}-aaaaaa"
    left.mkdir(0o700)
    env = {"TMPDIR": str(place)}
    assert files.others(env, "") == [str(left)]
    monkeypatch.setenv("TMPDIR", str(place))
    assert cache.folder_of_images() == f"{place}/scrun-images-{os.geteuid()}"
    SPOILS[kind](part)
    made = files.make_directory(env, KEY)
    os.close(made.lock)
    assert os.path.dirname(made.path) == str(elsewhere)
    assert files.others(env, made.path) == []
    assert cache.folder_of_images() == f"{elsewhere}/scrun-images-{os.geteuid()}"
    elsewhere.chmod(0o777)
    with pytest.raises(PermissionError, match="Others could replace"):
        files.make_directory(env, KEY)
    with pytest.raises(CallRefused, match="Others could replace"):
        cache.folder_of_images()


def test_a_sticky_place(tmp_path: Path) -> None:
    """As /tmp is: nobody renames what is somebody else's."""
    place, _ = tmpdir(tmp_path)
    place.chmod(0o1777)
    made = files.make_directory({"TMPDIR": str(place)}, KEY)
    os.close(made.lock)
    assert os.path.dirname(made.path) == str(place)
    assert stat.S_IMODE(os.stat(made.path).st_mode) == 0o700


def left_in(place: Path, base: Path, key: bytes | None) -> tuple[Path, Path]:
    """Leave what a dead shim leaves, with the mark of this key; and what its command makes."""
    done, folder = base / "done", place / f"scrun-{os.geteuid()}-abcdef"
    folder.mkdir(0o700)
    (folder / "lock").write_bytes(b"" if key is None else files._mark(key, str(folder)))
    (folder / "c1").mkdir()
    told = {"delete": f"touch {done}", "made": []}
    (folder / "c1" / files.LEFT).write_text(json.dumps(told))
    return folder, done


@pytest.mark.covers("security leave something for the next shim to run")
@pytest.mark.parametrize("key", [KEY, None, b"x" * 16])
def test_only_what_a_shim_has_left_is_run(tmp_path: Path, key: bytes | None) -> None:
    """A container that sees the place, with a mount of /tmp, can make a directory there, too."""
    place, _ = tmpdir(tmp_path)
    folder, done = left_in(place, tmp_path, key)
    ran = place / "ran"
    runtime = tmp_path / "crun"
    runtime.write_text(f'#!/bin/sh\necho "$@" >>{ran}\n')
    runtime.chmod(0o755)
    (folder / "crun" / "x").mkdir(parents=True)
    child = os.fork()  # it sets an alarm
    if child == 0:
        try:
            files.remove_left([str(folder)], [["crun", str(runtime)]], KEY)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert not folder.exists()
    assert done.exists() is ran.exists() is (key == KEY)


def test_no_link_is_followed_when_a_tree_is_removed(tmp_path: Path) -> None:
    (kept := tmp_path / "kept").mkdir()
    (kept / "file").write_text("")
    (tree := tmp_path / "tree").mkdir()
    (tree / "inner").mkdir()
    (tree / "link").symlink_to(kept)
    (tree / "inner" / "link").symlink_to(kept)
    os.mkfifo(tree / "fifo")
    files.remove_tree(str(tree))
    assert not tree.exists()
    (tmp_path / "link").symlink_to(kept)
    files.remove_tree(str(tmp_path / "link"))
    assert (kept / "file").exists()


def test_what_takes_the_place_of_a_directory_is_not_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a directory a moment ago, and leads elsewhere now."""
    (kept := tmp_path / "kept").mkdir()
    (kept / "file").write_text("")
    (tree := tmp_path / "tree").mkdir()
    (tree / "inner").mkdir()
    names = os.listdir

    def listed(folder: int | str) -> list[str]:
        found = names(folder)
        if "inner" in found:
            (tree / "inner").rmdir()
            (tree / "inner").symlink_to(kept)
        return found

    monkeypatch.setattr(os, "listdir", listed)
    files.remove_tree(str(tree))
    assert (kept / "file").exists()
    assert not tree.exists()


def test_a_link_is_what_it_leads_to(tmp_path: Path) -> None:
    place, part = tmpdir(tmp_path, 1)
    link = tmp_path / "link"
    link.symlink_to(place)
    assert files.own_only(str(link)) == str(place)
    part.chmod(0o777)
    with pytest.raises(PermissionError):
        files.own_only(str(link))


@pytest.mark.by_root
@pytest.mark.parametrize("uid", [0, 12345])
def test_who_else_owns_a_directory(tmp_path: Path, uid: int) -> None:
    """It is private only if it is the user's: mode 0700 of somebody else's is that user's own."""
    path = tmp_path / "private"
    path.mkdir(0o700)
    os.chown(path, uid, -1)
    assert files.is_private(str(path)) is (uid == os.geteuid())


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o701])
def test_what_others_may_enter_is_not_private(tmp_path: Path, mode: int) -> None:
    (path := tmp_path / "private").mkdir()
    path.chmod(mode)
    assert not files.is_private(str(path))


def test_a_link_is_no_private_directory(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir(0o700)
    (tmp_path / "link").symlink_to("private")
    assert not files.is_private(str(tmp_path / "link"))


@pytest.mark.parametrize("shell", [("sh",), ("bash",), ("busybox", "sh")])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.by_root
def test_where_a_container_writes(tmp_path: Path, shell: tuple[str, ...], depth: int) -> None:
    """The script that makes the place on a node goes by the same rule."""
    place, part = tmpdir(tmp_path, depth)
    overlay = tmp_path / "overlay"
    for name in ("upper", "work", "trial"):
        (overlay / name).mkdir(parents=True)

    def made() -> Path:
        env = {"PATH": os.environ["PATH"], "TMPDIR": str(place)}
        done = run_program([*shell, "-c", making_in(str(overlay))], env=env, check=True)
        word, path = done.stdout.split()
        assert word == "place"
        assert (Path(path) / "upper").is_dir()
        return Path(path)

    assert made().parent == place
    part.chmod(0o1777)
    assert made().parent == place
    for spoil in SPOILS.values():
        part.chmod(0o755)
        spoil(part)
        other = made()
        assert other.parent == Path("/var/tmp")
        run_program(["rm", "-r", str(other)], check=True)
        os.chown(part, 0, -1)
