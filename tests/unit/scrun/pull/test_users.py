"""Who the user of an image is; the rules are those of podman and docker."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.errors import ImageError
from scrun.core.inside import open_inside, read_inside
from scrun.pull.layout import Account, find_user

PASSWD = """root:x:0:0:root:/root:/bin/sh

# a comment
short:x
odd:x:many:1::/odd:/bin/sh
app:x:1000:1001::/home/app:/bin/sh
app:x:2000:2001::/second:/bin/sh
no-shell:x:7:8
12:x:5:6::/twelve:/bin/sh
"""
GROUP = """root:x:0:
wheel:x:10:root,app
staff:x:50:app
app:x:1001:
high:x:99999999999:app
"""


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    (etc := tmp_path / "r" / "etc").mkdir(parents=True)
    (etc / "passwd").write_text(PASSWD)
    (etc / "group").write_text(GROUP)
    fd = os.open(tmp_path / "r", os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("", Account(0, 0, (10,), "/root")),
        ("root", Account(0, 0, (10,), "/root")),
        ("app", Account(1000, 1001, (10, 50), "/home/app")),
        ("1000", Account(1000, 1001, (10, 50), "/home/app")),
        ("app:staff", Account(1000, 50, (), "/home/app")),
        ("app:7", Account(1000, 7, (), "/home/app")),
        ("app:", Account(1000, 1001, (), "/home/app")),
        (":staff", Account(0, 50, (), "/root")),
        ("1000:1000:5", Account(1000, 1000, (), "/home/app")),
        ("4711", Account(4711, 0, (), "")),
        ("4711:wheel", Account(4711, 10, (), "")),
        ("no-shell", Account(7, 8, (), "")),
        ("12", Account(12, 0, (), "")),  # a number is always one
    ],
)
def test_who_it_is(root: int, text: str, user: Account) -> None:
    assert find_user(root, text) == user


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nobody", "its /etc/passwd has no user 'nobody': name another by --user UID"),
        ("odd", "has no user 'odd'"),
        ("short", "has no user 'short'"),
        ("app:none", "its /etc/group has no group 'none'"),
        ("2147483648", "is not a number of 0 to 2147483647"),
        ("1:2147483648", "is not a number of 0 to 2147483647"),
        ("app:high", "is not a number of 0 to 2147483647"),
        ("-1", "has no user '-1'"),
        ("²", "has no user '²'"),
    ],
)
def test_who_nobody_is(root: int, text: str, told: str) -> None:
    with pytest.raises(ImageError, match=told):
        find_user(root, text)


@pytest.mark.parametrize("kind", ["none", "fifo", "folder", "device", "loop", "out", "no etc"])
def test_files_that_are_none(tmp_path: Path, root: int, kind: str) -> None:
    """They count as empty, and nobody waits for them."""
    passwd = tmp_path / "r" / "etc" / "passwd"
    passwd.unlink()
    (tmp_path / "outside").write_text(PASSWD)
    if kind == "fifo":
        os.mkfifo(passwd)
    elif kind == "folder":
        passwd.mkdir()
    elif kind == "device":
        passwd.symlink_to("../dev/zero")
        (tmp_path / "r" / "dev").symlink_to("/dev")
    elif kind == "loop":
        passwd.symlink_to("passwd")
    elif kind == "out":
        passwd.symlink_to("../../outside")
    elif kind == "no etc":
        (tmp_path / "r" / "etc").rename(tmp_path / "r" / "gone")
        (tmp_path / "r" / "etc").symlink_to(f"{tmp_path}/r/gone")
    assert find_user(root, "1000") == Account(1000, 0, (), "")


def test_links_are_those_of_the_container(tmp_path: Path, root: int) -> None:
    etc = tmp_path / "r" / "etc"
    (tmp_path / "r" / "run").mkdir()
    (etc / "passwd").rename(tmp_path / "r" / "run" / "users")
    (etc / "passwd").symlink_to("/a/../../b")
    (tmp_path / "r" / "a").symlink_to("etc")
    (tmp_path / "r" / "b").symlink_to("./run//users")
    assert find_user(root, "app").uid == 1000


def test_a_way_that_is_too_long(tmp_path: Path, root: int) -> None:
    names = ["d"] * 400
    (tmp_path / "r" / "/".join(names)).mkdir(parents=True)
    with pytest.raises(OSError, match="File name too long"):
        open_inside(root, "/".join(names).encode())


def test_a_file_that_is_too_large(tmp_path: Path, root: int) -> None:
    os.truncate(tmp_path / "r" / "etc" / "passwd", 1 << 40)
    with pytest.raises(OSError, match="is larger than 1 MiB"):
        read_inside(root, b"etc/passwd", 1 << 20)
    assert find_user(root, "1000") == Account(1000, 0, (), "")


@pytest.mark.parametrize("kind", ["fifo", "device", "socket", "folder"])
def test_what_is_no_file_is_not_opened(tmp_path: Path, root: int, kind: str) -> None:
    """To open acts: a FIFO has a reader then, and a device does what it does."""
    path = tmp_path / "r" / "it"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(path))
    else:
        path.mkdir()
    there = os.open("/dev" if kind == "device" else tmp_path / "r", os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(OSError, match="is not a regular file"):
            read_inside(there, os.fsencode(path.name))
    finally:
        os.close(there)
