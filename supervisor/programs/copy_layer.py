"""Copies a layer of an image, with all marks of deletions, to where nodes see it.

Usage: copy_layer.py SOURCE TARGET MARK OWNERS KIND, where TARGET is an empty directory, MARK
`user` or `trusted` (who shall mount the copy), OWNERS `owners` to keep them or `one` for an image
whose container has one user, and KIND `fuse` if the source has the marks of fuse-overlayfs, too.
Prints the bytes copied so far, a number in each line.

An image's author may be hostile: no link is followed, and what the copy could not show is an
error.
"""

import errno
import os
import stat
import sys
import time

NO_ROOM = 3

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE = 8 << 20
DEPTH = 300  # two descriptors each
PERIOD = 0.2
_KINDS = ("trusted.overlay.", "user.overlay.", "user.fuseoverlayfs.")
_REMOVED, _OPAQUE = b".wh.", b".wh..wh..opq"
_ELSEWHERE = ("metacopy", "redirect", "whiteout")
_STATUS = ("user.containers.override_stat", "user.fuseoverlayfs.override_stat")


class LayerRefused(Exception):
    """The layer cannot be copied; says why, as the end of a sentence about layers."""


def main(argv: "list[str]") -> int:
    """Copy and return 0; or print why not and return 1, or 3 if there is no room."""
    source, target, mark, owners, kind = argv
    try:
        copy = _Copy(
            f"{mark}.overlay.opaque", owners=owners == "owners", names_delete=kind == "fuse"
        )
        copy.root(source, target)
    except LayerRefused as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except OSError as error:
        where = f": {os.fsdecode(error.filename)!a}" if error.filename is not None else ""
        sys.stderr.write(f"cannot be copied to {target}: {error.strerror}{where}\n")
        return NO_ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else 1
    return 0


def print_count(count: int) -> None:
    """Print a number of bytes."""
    sys.stdout.write(f"{count}\n")
    sys.stdout.flush()


def deletion_by_name(name: bytes) -> "bytes | None":
    """Return what a mark of fuse-overlayfs deletes; b"": all below; None: it is not a mark."""
    if name == _OPAQUE:
        return b""
    return name[len(_REMOVED) :] if name.startswith(_REMOVED) else None


def attributes_of(reading: int, opaque: str) -> "dict[str, bytes]":
    """Return the extended attributes of a file for a copy, as far as they may be read.

    Args:
        opaque: What marks a directory there that hides those of the layers below.

    Raises:
        Refused: Only the engine's mount understands them.
    """
    found: dict[str, bytes] = {}
    try:
        names = os.listxattr(reading)
    except OSError:
        return found
    for name in names:
        mark = next((name[len(kind) :] for kind in _KINDS if name.startswith(kind)), None)
        if name in _STATUS or mark in _ELSEWHERE:
            raise LayerRefused(f"have what only the engine's mount can read: {name}")
        if mark is None:
            try:
                found[name] = os.getxattr(reading, name)
            except OSError:
                continue
        elif mark == "opaque" and os.getxattr(reading, name) == b"y":
            found[opaque] = b"y"
    return found


def kept_mode(mode: int) -> int:
    """Return the mode of a copy that belongs to another user."""
    return mode & ~(stat.S_ISUID | stat.S_ISGID)


class _Copy:
    def __init__(self, opaque: str, *, owners: bool, names_delete: bool) -> None:
        self._opaque = opaque
        self._owners = owners
        self._names_delete = names_delete
        self._names: dict[int, bytes] = {}  # of files with several names: where the first one is
        self._bytes = 0
        self._next = 0.0
        self._top = -1
        self._ids = (os.geteuid(), os.getegid())

    def root(self, source: str, target: str) -> None:
        folder, self._top = os.open(source, FOLDER), os.open(target, FOLDER)
        self._folder(folder, self._top, b"", DEPTH)
        self._dress(self._top, os.fstat(folder), folder)
        print_count(self._bytes)

    def _folder(self, source: int, target: int, path: bytes, depth: int) -> None:
        if not depth:
            raise LayerRefused(f"have more than {DEPTH} directories within each other")
        for name in map(os.fsencode, os.listdir(source)):
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            kind = stat.S_IFMT(status.st_mode)
            if self._names_delete and (deleted := deletion_by_name(name)) is not None:
                self._deletion(target, deleted)
            elif kind == stat.S_IFDIR:
                self._below(source, target, name, path + name + b"/", depth)
            elif kind == stat.S_IFREG:
                self._file(source, target, name, path + name, status)
            elif kind == stat.S_IFLNK:
                os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                self._owner_of(name, target, status)
            else:
                self._node(target, name, status)
            self._tell()

    def _deletion(self, target: int, deleted: bytes) -> None:
        if deleted:
            os.mknod(deleted, stat.S_IFCHR, dir_fd=target)
        else:
            os.setxattr(target, self._opaque, b"y")

    def _below(self, source: int, target: int, name: bytes, path: bytes, depth: int) -> None:
        inner = os.open(name, FOLDER, dir_fd=source)
        try:
            os.mkdir(name, 0o700, dir_fd=target)
            copied = os.open(name, FOLDER, dir_fd=target)
            try:
                self._folder(inner, copied, path, depth - 1)
                self._dress(copied, os.fstat(inner), inner)
            finally:
                os.close(copied)
        finally:
            os.close(inner)

    def _file(
        self, source: int, target: int, name: bytes, path: bytes, status: os.stat_result
    ) -> None:
        if status.st_nlink > 1 and self._linked(target, name, path, status.st_ino):
            return
        reading = os.open(name, READ, dir_fd=source)
        try:
            status = os.fstat(reading)
            writing = os.open(name, _WRITE, 0o600, dir_fd=target)
            try:
                self._content(reading, writing, status)
                self._dress(writing, status, reading)
            finally:
                os.close(writing)
        finally:
            os.close(reading)

    def _linked(self, target: int, name: bytes, path: bytes, inode: int) -> bool:
        """Give a file that was copied one more name, if it was."""
        first = self._names.setdefault(inode, path)
        if first == path:
            return False
        try:
            os.link(first, name, src_dir_fd=self._top, dst_dir_fd=target, follow_symlinks=False)
        except OSError:  # too many names, or too long ones
            return False
        return True

    def _content(self, reading: int, writing: int, status: os.stat_result) -> None:
        size = status.st_size
        if status.st_blocks * 512 >= size:
            self._piece(reading, writing, 0, size)
            return
        end = 0
        while end < size:  # a file with holes may claim to be larger than any disk
            try:
                begin = os.lseek(reading, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            end = os.lseek(reading, begin, os.SEEK_HOLE)
            os.lseek(writing, begin, os.SEEK_SET)
            self._piece(reading, writing, begin, end)
        os.ftruncate(writing, size)

    def _piece(self, reading: int, writing: int, begin: int, end: int) -> None:
        while begin < end and (
            sent := os.sendfile(writing, reading, begin, min(end - begin, _PIECE))
        ):
            begin += sent
            self._bytes += sent
            self._tell()

    def _attributes(self, reading: int, writing: int) -> None:
        """Copy extended attributes as far as permitted; translate marks."""
        for name, value in attributes_of(reading, self._opaque).items():
            try:
                os.setxattr(writing, name, value)
            except OSError:
                if name == self._opaque:
                    raise

    def _node(self, target: int, name: bytes, status: os.stat_result) -> None:
        """Make a deletion, a device, a FIFO or a socket."""
        os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)
        if stat.S_ISCHR(status.st_mode) and not status.st_rdev:
            return
        self._owner_of(name, target, status)
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)

    def _owner_of(self, name: bytes, target: int, status: os.stat_result) -> None:
        if self._owners:
            os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)

    def _dress(self, fd: int, status: os.stat_result, source: int) -> None:
        """Set owner, attributes, mode and times; the owner first: chown(2) clears the others."""
        mode = stat.S_IMODE(status.st_mode)
        if self._owners:
            os.fchown(fd, status.st_uid, status.st_gid)
        elif (status.st_uid, status.st_gid) != self._ids:
            mode = kept_mode(mode)
        self._attributes(source, fd)
        os.fchmod(fd, mode)
        os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _tell(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + PERIOD
            print_count(self._bytes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
