"""Things of the file system that are in the way: what a test puts where something else belongs."""

import os
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.harness import processes
from tests.harness.users import User

Put = Callable[[Path, User], None]


def _link_to(target: str) -> Put:
    return lambda path, user: path.symlink_to(target)


def _socket(path: Path, user: User) -> None:
    """Make a socket that nobody listens at."""
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.open(path.parent, os.O_PATH)
        sock.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)
    user.give(path)


def _device(number: int) -> Put:
    return lambda path, user: os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, number))


def _fifo(path: Path, user: User) -> None:
    os.mkfifo(path, 0o666)
    user.give(path)


def _file(path: Path, user: User) -> None:
    path.write_text("a file\n")
    user.give(path)


def _directory(path: Path, user: User) -> None:
    path.mkdir()
    user.give(path)


def _unreadable_file(path: Path, user: User) -> None:
    _file(path, user)
    path.chmod(0)


def _unreadable_directory(path: Path, user: User) -> None:
    _directory(path, user)
    path.chmod(0)


def _another_s_file(path: Path, user: User) -> None:
    path.write_text("root's\n")
    path.chmod(0o600)


def _another_s_directory(path: Path, user: User) -> None:
    path.mkdir(mode=0o700)


KINDS: dict[str, Put] = {
    "a file": _file,
    "a directory": _directory,
    "a link to itself": lambda path, user: path.symlink_to(path.name),
    "a link to nothing": _link_to("/nonexistent/scrun"),
    "a FIFO": _fifo,
    "a socket": _socket,
    "/dev/zero": _device(5),
    "/dev/full": _device(7),
    "an unreadable file": _unreadable_file,
    "an unreadable directory": _unreadable_directory,
    "another's file": _another_s_file,
    "another's directory": _another_s_directory,
}


def remove(path: Path) -> None:
    """Remove what `KINDS` has made."""
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


def each(path: Path, user: User, *without: str) -> Iterator[str]:
    """Put one kind after the other in the place of a path, but some; yield what it is."""
    for kind, put in KINDS.items():
        if kind not in without:
            put(path, user)
            try:
                yield kind
            finally:
                remove(path)


@contextmanager
def mounted(path: Path, *options: str) -> Iterator[None]:
    """Have a small tmpfs at a path, which is made for it."""
    path.mkdir(exist_ok=True)
    processes.run("mount", "-t", "tmpfs", *options, "tmpfs", str(path))
    try:
        yield
    finally:
        processes.run("umount", "--lazy", str(path))
