"""Whether somebody else could put something else in a path's place, or write to it."""

import os
import pwd
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from scrun.core import paths
from scrun.core.paths import Untrusted, read_trusted, replaceable
from tests.harness import users
from tests.harness.program import run_program


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


def written(path: Path, mode: int = 0o644) -> Path:
    path.write_text("text")
    path.chmod(mode)
    return path


def grouped(path: Path) -> Path:
    """Give a path to a group with other members than us."""
    os.chown(path, -1, pwd.getpwnam("games").pw_gid)
    return path


def acl(path: Path) -> Path:
    """Let one more user write, who is in none of the permission bits."""
    entries = ((1, 7, -1), (2, 7, users.other().uid), (4, 5, -1), (16, 7, -1), (32, 5, -1))
    packed = b"".join(struct.pack("<HHi", *entry) for entry in entries)
    os.setxattr(path, "system.posix_acl_access", struct.pack("<I", 2) + packed)
    return path


def link(path: Path, target: Path | str) -> Path:
    path.symlink_to(target)
    return path


FINE: dict[str, Callable[[Path], Path]] = {
    "our own": lambda base: made(base / "a"),
    "missing": lambda base: base / "a" / "b" / "c",
    "ours in a shared one": lambda base: made(shared(base / "s") / "a"),
    "missing in a shared one": lambda base: shared(base / "s") / "a",
    "of our own group": lambda base: made(made(base / "g", 0o775) / "a"),
    "a link of ours": lambda base: link(shared(base / "s") / "l", made(base / "a")) / "b",
    "a relative link": lambda base: link(base / "l", made(base / "a").name) / ".." / "a",
    "a file": lambda base: link(base / "l", "/dev/urandom"),  # crun gives away /dev/null
}
ALL, GROUP, OWNER = "{}: everybody may write to it", "{}: group ", "{}: belongs to uid "
AT_FAULT: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "missing below one for all": (ALL, lambda base: made(base / "fault", 0o777) / "a" / "b"),
    "below one for all": (ALL, lambda base: made(made(base / "fault", 0o777) / "a") / "b"),
    "for all itself": (ALL, lambda base: made(base / "fault", 0o777)),
    "a link to one for all": (ALL, lambda base: link(base / "l", made(base / "fault", 0o777))),
    "a file for all": (ALL, lambda base: written(base / "fault", 0o646)),
    "of a group": (GROUP, lambda base: made(grouped(made(base / "fault", 0o775)) / "a")),
    "a group's file": (GROUP, lambda base: grouped(written(base / "fault", 0o664))),
    "one more who may write": (GROUP, lambda base: made(acl(made(base / "fault", 0o775)) / "a")),
    "somebody's": (OWNER, lambda base: theirs(made(base / "fault"))),
    "on somebody's way": (OWNER, lambda base: made(theirs(made(base / "fault")) / "a")),
    "missing on somebody's way": (OWNER, lambda base: theirs(made(base / "fault")) / "a"),
    "somebody's in a shared one": (
        "{}/a: belongs to uid ", lambda base: theirs(made(shared(base / "fault") / "a")) / "b"
    ),
    "somebody's link": (OWNER, lambda base: theirs(link(base / "fault", made(base / "a"))) / "b"),
    "a link to somebody's": (
        OWNER, lambda base: link(base / "l", made(theirs(made(base / "fault")) / "a")) / "b"
    ),
    "somebody's file": (OWNER, lambda base: theirs(written(base / "fault"))),
}  # fmt: skip


@pytest.mark.parametrize("case", FINE)
def test_fine(tmp_path: Path, case: str) -> None:
    assert replaceable(str(FINE[case](tmp_path))) == ""


@pytest.mark.covers("security the root directory")
@pytest.mark.parametrize("case", AT_FAULT)
def test_at_fault(tmp_path: Path, case: str) -> None:
    words, make = AT_FAULT[case]
    assert replaceable(str(make(tmp_path))).startswith(words.format(tmp_path / "fault"))


def test_who_is_trusted(tmp_path: Path) -> None:
    path = theirs(written(made(tmp_path / "a") / "file"))
    assert replaceable(str(path)) != ""
    assert replaceable(str(path), [users.other().uid]) == ""


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(theirs(made(tmp_path / "fault")))
    assert replaceable("a").startswith(f"{tmp_path}/fault: belongs to uid ")


@pytest.mark.covers("security /etc/scrun/scrun.toml, slurm.conf, oci.conf")
def test_what_is_read(tmp_path: Path) -> None:
    path = written(tmp_path / "file")
    assert read_trusted(str(path)) == b"text"
    path.chmod(0o606)
    with pytest.raises(Untrusted, match=r"\] everybody may write to it \(chmod o-w\): "):
        read_trusted(str(path))
    inside = written(made(tmp_path / "d") / "file")
    inside.parent.chmod(0o777)
    with pytest.raises(Untrusted, match=r"is not safe to use: .*/d: everybody may write to it"):
        read_trusted(str(inside))


@pytest.mark.timeout(20)
def test_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(OSError, match="is not a regular file"):
        read_trusted(str(tmp_path / "fifo"))


def test_what_is_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = written(tmp_path / "file"), written(tmp_path / "other")

    def replaced(judged: str, trusted: object) -> str:
        other.rename(path)
        return replaceable(judged)

    monkeypatch.setattr(paths, "replaceable", replaced)
    with pytest.raises(Untrusted, match="was replaced while it was read"):
        read_trusted(str(path))


def test_in_a_user_namespace_of_root(tmp_path: Path) -> None:
    """Others are nobody there, and root is not."""
    made(tmp_path / "a")
    theirs(made(tmp_path / "fault"))
    assert namespaced(f"{tmp_path}/a", users.root()) == ""
    assert namespaced(f"{tmp_path}/fault/b", users.root()).startswith(
        f"{tmp_path}/fault: belongs to uid 65534"
    )


def test_in_a_user_namespace_of_a_user() -> None:
    """Root is nobody there, as is everybody else; but not below what is the user's own."""
    user = users.ordinary()
    place = Path(f"/run/user/{user.uid}/replaceable-{os.getpid()}")
    place.mkdir()
    try:
        user.give(made(place / "a", 0o775))
        user.give(place)
        theirs(made(place / "b"))
        assert namespaced(f"{place}/a/c", user) == ""
        assert namespaced(f"{place}/b/c", user).startswith(f"{place}/b: belongs to uid 65534")
        assert namespaced("/etc/passwd", user) == ""
    finally:
        subprocess.run(["rm", "-r", place], check=True)


def namespaced(path: str, user: users.User) -> str:
    """What is told in a user namespace of somebody, as its root."""
    program = (
        "import sys; from scrun.core.paths import replaceable; print(replaceable(sys.argv[1]))"
    )
    command = [*user.prefix, "unshare", "--user", "--map-root-user", sys.executable, "-c", program]
    done = run_program([*command, path], check=True, cwd="/")
    return done.stdout.strip()


def test_links_without_an_end(tmp_path: Path) -> None:
    (tmp_path / "l").symlink_to("l")
    with pytest.raises(OSError, match="symbolic links"):
        replaceable(f"{tmp_path}/l/a")


def test_a_file_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        replaceable(f"{tmp_path}/file/a")
