"""Whether somebody else could put something else in a directory's place."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from scrun.paths import exchangeable
from tests.harness import users


def shared(path: Path) -> Path:
    """A directory as /tmp is."""
    path.mkdir()
    path.chmod(0o1777)
    return path


def theirs(path: Path) -> Path:
    user = users.other()
    os.lchown(path, user.uid, user.gid)
    return path


def made(path: Path, mode: int = 0o755) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def link(path: Path, target: Path | str) -> Path:
    path.symlink_to(target)
    return path


FINE: dict[str, Callable[[Path], Path]] = {
    "our own": lambda base: made(base / "a"),
    "missing": lambda base: base / "a" / "b" / "c",
    "ours in a shared one": lambda base: made(shared(base / "s") / "a"),
    "missing in a shared one": lambda base: shared(base / "s") / "a",
    "of a group": lambda base: made(made(base / "g", 0o775) / "a"),
    "somebody's, who was given the place": lambda base: made(theirs(made(base / "t")) / "a"),
    "a link of ours": lambda base: link(shared(base / "s") / "l", made(base / "a")) / "b",
    "a relative link": lambda base: link(base / "l", made(base / "a").name) / ".." / "a",
    "a file": lambda base: link(base / "l", "/dev/null"),
}
AT_FAULT: dict[str, Callable[[Path], Path]] = {
    "everybody may write to {}": lambda base: made(base / "fault", 0o777) / "a" / "b",
    "everybody may write to {}:": lambda base: made(made(base / "fault", 0o777) / "a") / "b",
    "everybody may write to {}: chmod": lambda base: (
        link(base / "l", made(base / "fault", 0o777)) / "a"
    ),
    "{}/a belongs to uid": lambda base: theirs(made(shared(base / "fault") / "a")) / "b",
    "{}/a belongs to uid ": lambda base: theirs(made(shared(base / "fault") / "a")),
    "{}/l belongs to uid": lambda base: (
        theirs(link(shared(base / "fault") / "l", made(base / "a"))) / "b"
    ),
    "{}/l belongs to uid ": lambda base: theirs(link(shared(base / "fault") / "l", "/root")),
}


@pytest.mark.parametrize("case", FINE)
def test_fine(tmp_path: Path, case: str) -> None:
    assert exchangeable(str(FINE[case](tmp_path))) == ""


@pytest.mark.parametrize("words", AT_FAULT)
def test_at_fault(tmp_path: Path, words: str) -> None:
    path = AT_FAULT[words](tmp_path)
    assert exchangeable(str(path)).startswith(words.format(tmp_path / "fault"))


def test_links_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "l").symlink_to("l")
    with pytest.raises(OSError, match="symbolic links"):
        exchangeable(f"{tmp_path}/l/a")


def test_a_file_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        exchangeable(f"{tmp_path}/file/a")
