"""Root file systems in files, as enroot and pyxis keep them.

enroot puts the variables of an image into `/etc/environment`, and its entrypoint and command into
the script `/etc/rc`. What is saved here has them, too.
"""

import os
import shlex
import struct
import tempfile
from collections.abc import Callable

from scrun.core.errors import ImageError
from scrun.core.inside import read_inside
from scrun.core.paths import open_regular
from scrun.core.trees import OPEN_FOLDER
from scrun.images.leases import Lock
from scrun.images.squashfs import (
    FINE_FOR_USERS,
    NO_SEARCH,
    entries,
    linked_in,
    root_directory,
    unpacking,
)
from scrun.images.store import ROOTFS, Defaults, Entry, Facts, Fill
from scrun.pull.layers import ENTRIES
from scrun.pull.programs import run

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SUPERBLOCK = struct.Struct("<4sI")  # its first members
_MAGIC = b"hsqs"
_RC, _ENVIRONMENT = "rc", "environment"


def unpack_squashfs(
    file: str, rootfs: str, most: int, progress: Callable[[int], None] | None = None
) -> Defaults:
    """Unpack a file, and return how its program is started.

    It may unpack to `most` bytes, without holes of files; 0: any number. `progress` is called with
    how many bytes of it were read.
    """
    count = _count_in(file)
    if count > ENTRIES:
        raise ImageError(f"{file}: has {count} files, at most {ENTRIES} are possible")
    _unsquashfs(unpacking(file, rootfs), file, most, progress)
    return _defaults_in(rootfs)


def look_into_squashfs(file: str, rootfs: str) -> Defaults:
    """Make a file's root directory, by unsquashfs 4.5; return how it is started."""
    _unsquashfs(root_directory(file, rootfs), file)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(rootfs)) as folder:
        paths = [f"etc/{name}" for name in (_RC, _ENVIRONMENT)]
        _unsquashfs(entries(file, folder, 2, paths), file)
        return _defaults_in(folder)


def _count_in(file: str) -> int:
    """Return how many files its superblock says that it has; 0 if it has none."""
    try:
        fd = open_regular(file)
    except OSError:
        return 0
    try:
        block = os.pread(fd, _SUPERBLOCK.size, 0)
    finally:
        os.close(fd)
    if len(block) < _SUPERBLOCK.size:
        return 0
    magic, count = _SUPERBLOCK.unpack(block)
    return int(count) if magic == _MAGIC else 0


def _unsquashfs(
    command: "tuple[str, ...]",
    file: str,
    most: int = 0,
    progress: Callable[[int], None] | None = None,
) -> None:
    fine = FINE_FOR_USERS if os.geteuid() else (0,)
    what = f"{file}: unsquashfs cannot unpack it"
    run(*command, what=what, fine=fine, most=most, progress=progress)


def _defaults_in(rootfs: str) -> Defaults:
    has_rc = _read_in(rootfs, _RC) is not None
    text = (_read_in(rootfs, _ENVIRONMENT) or b"").decode(errors="surrogateescape")
    lines = (line.strip() for line in text.splitlines())
    env = [line for line in lines if "=" in line and not line.startswith("#")]
    if not any(line.startswith("PATH=") for line in env):
        env.insert(0, _PATH)
    entrypoint = ("/bin/sh", "/etc/rc") if has_rc else ()
    return Defaults(entrypoint, () if has_rc else ("/bin/sh",), tuple(env))


def _read_in(rootfs: str, name: str) -> "bytes | None":
    try:
        root = os.open(rootfs, OPEN_FOLDER | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return read_inside(root, f"etc/{name}".encode(), 1 << 20)
    except OSError:
        return None
    finally:
        os.close(root)


def save(rootfs: str, defaults: Defaults, file: str) -> None:
    """Write a root file system into a file, which replaces one that is there, or fails."""
    _write_defaults(rootfs, defaults)
    temporary = f"{file}.{os.getpid()}"
    owners = () if os.geteuid() == 0 else ("-all-root",)
    options = ("-noappend", "-no-progress", "-quiet", NO_SEARCH, *owners)
    try:
        what = f"{file}: mksquashfs cannot write it"
        run("mksquashfs", rootfs, temporary, *options, what=what)
        fd = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, file)
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)


def _write_defaults(rootfs: str, defaults: Defaults) -> None:
    """Write `/etc/environment` and `/etc/rc` as enroot does, unless they are there."""
    try:
        etc = os.open(os.path.join(rootfs, "etc"), OPEN_FOLDER | os.O_CLOEXEC)
    except OSError:
        return  # a root file system without /etc keeps no such thing
    try:
        env = "".join(f"{line}\n" for line in defaults.env if "\n" not in line)
        words, cmd = shlex.join(defaults.entrypoint), shlex.join(defaults.cmd) or "/bin/sh"
        move = f"mkdir -p {shlex.quote(defaults.cwd)} 2>/dev/null\ncd {shlex.quote(defaults.cwd)}"
        given = f'if [ $# -gt 0 ]; then\n\texec {words} "$@"\nfi\n'
        script = f"#!/bin/sh\n{move} || exit 1\n{given}exec {words} {cmd}\n"
        for name, text in ((_ENVIRONMENT, env), (_RC, script)):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                fd = os.open(name, flags, 0o755 if name == _RC else 0o644, dir_fd=etc)
            except FileExistsError:
                continue
            with open(fd, "wb") as file:
                file.write(text.encode(errors="surrogateescape"))
    finally:
        os.close(etc)


def copy_of(image: Entry, most: int) -> Fill:
    """Return what makes a root file system that is written to, of an image that is not."""

    def fill(directory: str, lock: Lock) -> Facts:
        lock.say("it is being copied")
        target = os.path.join(directory, ROOTFS)
        if file := linked_in(image.directory):
            unpack_squashfs(file, target, most)
        else:
            copy_tree(os.path.realpath(image.rootfs), target)
        facts = image.facts
        return Facts(facts.source, facts.digest, writable=True, defaults=facts.defaults)

    return fill


def copy_tree(rootfs: str, target: str) -> None:
    owners = () if os.geteuid() == 0 else ("--no-preserve=ownership",)
    options = ("-a", *owners, "--reflink=auto", "--one-file-system", "--")
    content = os.path.join(rootfs, ".")
    run("cp", *options, content, target, what=f"{rootfs}: cannot be copied")
