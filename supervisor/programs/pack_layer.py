"""Makes a squashfs image of a layer, with all marks of deletions: one file, instead of many.

The arguments of `pack` are SOURCE IMAGE MARK OWNERS KIND TOOL: MARK is `user` or `trusted` (who
shall mount the image), OWNERS `owners` to keep them or UID:GID for all files, KIND `fuse` if the
source has the marks of fuse-overlayfs, too, and TOOL mksquashfs(1) from 4.5 on. It makes nothing
but the image: what is in the layer goes to the tool as an archive. Prints the bytes packed so far,
a number in each line.

An image's author may be hostile: no link is followed, and what the image could not show is an
error. Sockets, which archives do not have, are left out. A file with large holes is refused: each
of its zeros would be packed.
"""

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from scrun.images.squashfs import FINE_FOR_USERS, NO_SEARCH, best_compression, unpacking
from scrun.oci.signals import its_end
from scrun.supervisor.staging.layers import NO_ROOM, Unusable, attributes_of, deletion_by_name

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DEPTH = 300
_PERIOD = 0.2

_PIECE = 1 << 20
_BLOCK, _NAME = 512, 100
_HOLES = 64 << 20
_OCTAL = 8**7 - 1
_TYPES = {
    stat.S_IFREG: b"0",
    stat.S_IFLNK: b"2",
    stat.S_IFCHR: b"3",
    stat.S_IFBLK: b"4",
    stat.S_IFDIR: b"5",
    stat.S_IFIFO: b"6",
}
_PR_SET_PDEATHSIG = 1
_FULL = ("No space left on device", "Disk quota exceeded")


def pack(argv: Sequence[str]) -> int:
    """Pack and return 0; or print why not and return 1, or 3 if there is no room."""
    source, image, mark, owners, kind, tool = argv
    try:
        # else mksquashfs would make the top directory writable for all
        mode = stat.S_IMODE(os.stat(source, follow_symlinks=False).st_mode)
        words = [tool, *_options(tool, image), "-root-mode", f"{mode:o}"]
    except OSError as error:
        sys.stderr.write(f"cannot be packed: {error.strerror}: {source!a}\n")
        return 1
    with tempfile.TemporaryFile() as said:
        child = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=said, stderr=said, preexec_fn=end_with_parent
        )
        assert child.stdin is not None
        archive = _Archive(
            child.stdin.fileno(),
            f"{mark}.overlay.opaque",
            owner=None if owners == "owners" else _pair(owners),
            names_delete=kind == "fuse",
        )
        try:
            archive.root(source)
        except Unusable as error:
            child.kill()
            sys.stderr.write(f"{error}\n")
            return 1
        except BrokenPipeError:
            pass  # the tool has failed, and says why
        except OSError as error:
            child.kill()
            where = f": {os.fsdecode(error.filename)!a}" if error.filename is not None else ""
            sys.stderr.write(f"cannot be packed: {error.strerror}{where}\n")
            return 1
        finally:
            child.stdin.close()
            status = child.wait()
        if not status:
            return 0
        said.seek(0)
        text = said.read(1 << 16).decode(errors="replace")
    lines = text.strip().splitlines()
    why = next(
        (line for line in lines if "rror" in line or "ailed" in line), f"it {its_end(status)}"
    )
    sys.stderr.write(f"cannot be packed into {image}: {os.path.basename(tool)}: {why}\n")
    return NO_ROOM if any(word in text for word in _FULL) else 1


def unpack(argv: Sequence[str]) -> int:
    """Unpack a squashfs file; return 0, or print why not and return 1, or 3 without room.

    It prints the bytes of the file that were read so far, a number in each line. `argv` is FILE
    DIRECTORY, where the directory is missing or empty. Needs unsquashfs(1).
    """
    file, directory = argv
    command = unpacking(file, directory)
    if shutil.which(command[0]) is None:
        sys.stderr.write(f"cannot be unpacked: {command[0]} is not installed here\n")
        return 1
    with tempfile.TemporaryFile() as errors:
        done = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            preexec_fn=end_with_parent,
        )
        while True:
            try:
                done.wait(_PERIOD)
                break
            except subprocess.TimeoutExpired:
                _print_count(_bytes_read(done.pid))
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    if any(word in said for word in _FULL):  # which unsquashfs may not count as a failure
        sys.stderr.write(f"cannot be unpacked: {file}: no room\n")
        return NO_ROOM
    if not done.returncode or (os.geteuid() and done.returncode in FINE_FOR_USERS):
        return 0
    why = next(iter(said.strip().splitlines()), f"it {its_end(done.returncode)}")
    sys.stderr.write(f"cannot be unpacked: {file}: {why}\n")
    return 1


def end_with_parent() -> None:
    """Let the kernel end this process when its parent ends; for a child before its program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _options(tool: str, image: str) -> "list[str]":
    # not sqfstar: that of 4.5 refuses a level
    return ["-", image, "-tar", "-quiet", "-no-progress", NO_SEARCH, *best_compression(tool)]


class _Archive:
    """Writes an archive, in the format of pax(1)."""

    def __init__(
        self, out: int, opaque: str, *, owner: "tuple[int, int] | None", names_delete: bool
    ) -> None:
        self._out = out
        self._opaque = opaque
        self._owner = owner
        self._names_delete = names_delete
        self._names: dict[int, bytes] = {}  # of files with several names: the first one
        self._held = bytearray()  # headers on their way
        self._bytes = 0
        self._next = 0.0
        self._ids = (os.geteuid(), os.getegid())

    def root(self, source: str) -> None:
        folder = os.open(source, _FOLDER)
        self._folder(folder, b"", _DEPTH)
        os.close(folder)
        self._held += bytes(2 * _BLOCK)
        self._flush()
        _print_count(self._bytes)

    def _folder(self, source: int, path: bytes, depth: int) -> None:
        if not depth:
            raise Unusable(f"have more than {_DEPTH} directories within each other")
        for name in map(os.fsencode, os.listdir(source)):
            if self._names_delete and (deleted := deletion_by_name(name)) is not None:
                if deleted:
                    self._header(path + deleted, stat.S_IFCHR, None, {})
                continue
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            kind = stat.S_IFMT(status.st_mode)
            if kind == stat.S_IFDIR:
                self._below(source, name, path + name, depth)
            elif kind == stat.S_IFREG:
                self._file(source, name, path + name)
            elif kind == stat.S_IFLNK:
                target = os.readlink(name, dir_fd=source)
                self._header(path + name, status.st_mode, status, {}, target=target)
            elif kind != stat.S_IFSOCK:
                self._header(path + name, status.st_mode, status, {})
            self._tell()

    def _below(self, source: int, name: bytes, path: bytes, depth: int) -> None:
        inner = os.open(name, _FOLDER, dir_fd=source)
        try:
            status = os.fstat(inner)
            attributes = attributes_of(inner, self._opaque)
            if self._names_delete and any(
                deletion_by_name(os.fsencode(one)) == b"" for one in os.listdir(inner)
            ):
                attributes[self._opaque] = b"y"
            self._header(path + b"/", status.st_mode, status, attributes)
            self._folder(inner, path + b"/", depth - 1)
        finally:
            os.close(inner)

    def _file(self, source: int, name: bytes, path: bytes) -> None:
        reading = os.open(name, _READ, dir_fd=source)
        try:
            status = os.fstat(reading)
            if status.st_nlink > 1:
                first = self._names.setdefault(status.st_ino, path)
                if first != path:
                    self._header(path, stat.S_IFREG, status, {}, target=first, link=True)
                    return
            if status.st_size - status.st_blocks * _BLOCK > _HOLES:
                raise Unusable(f"have a file with large holes: {os.fsdecode(path)!a}")
            attributes = attributes_of(reading, self._opaque)
            self._header(path, status.st_mode, status, attributes, size=status.st_size)
            self._content(reading, status.st_size)
        finally:
            os.close(reading)

    def _content(self, reading: int, size: int) -> None:
        left = size
        while left and (piece := os.read(reading, min(left, _PIECE))):
            self._held += piece
            left -= len(piece)
            self._bytes += len(piece)
            if len(self._held) >= _PIECE:
                self._flush()
                self._tell()
        self._held += bytes(left)  # it has become shorter
        self._pad(size)

    def _header(
        self,
        path: bytes,
        mode: int,
        status: "os.stat_result | None",
        attributes: "dict[str, bytes]",
        *,
        size: int = 0,
        target: bytes = b"",
        link: bool = False,
    ) -> None:
        """Write the headers of a file; without a status it is the mark of a deletion."""
        own = self._ids if status is None else (status.st_uid, status.st_gid)
        uid, gid = self._owner or own
        if self._owner is not None and own != self._ids:
            mode &= ~(stat.S_ISUID | stat.S_ISGID)  # it would be another user's
        more = {f"SCHILY.xattr.{name}".encode(): value for name, value in attributes.items()}
        names = {b"path": path, b"linkpath": target}
        more.update({key: name for key, name in names.items() if len(name) > _NAME})
        for key, number, largest in (
            (b"uid", uid, _OCTAL),
            (b"gid", gid, _OCTAL),
            (b"size", size, 8**11 - 1),
        ):
            if number > largest:
                more[key] = str(number).encode()
        if more:
            records = b"".join(_record(key, value) for key, value in more.items())
            self._block(b"pax", 0o600, 0, 0, len(records), 0, b"x", b"", 0)
            self._held += records
            self._pad(len(records))
        kind = b"1" if link else _TYPES[stat.S_IFMT(mode)]
        device = status.st_rdev if status is not None else 0
        seconds = max(0, int(status.st_mtime)) if status is not None else 0
        self._block(path, stat.S_IMODE(mode), uid, gid, size, seconds, kind, target, device)

    def _block(
        self,
        path: bytes,
        mode: int,
        uid: int,
        gid: int,
        size: int,
        seconds: int,
        kind: bytes,
        target: bytes,
        device: int,
    ) -> None:
        parts = (
            path[:_NAME].ljust(_NAME, b"\0"),
            *(b"%07o\0" % number for number in (mode, min(uid, _OCTAL), min(gid, _OCTAL))),
            b"%011o\0" % min(size, 8**11 - 1),
            b"%011o\0" % min(seconds, 8**11 - 1),
        )
        after = (
            kind,
            target[:_NAME].ljust(_NAME, b"\0"),
            b"ustar\x0000",
            bytes(64),
            b"%07o\0%07o\0" % (os.major(device) & _OCTAL, os.minor(device) & _OCTAL),
            bytes(167),
        )
        before, behind = b"".join(parts), b"".join(after)
        total = sum(before) + sum(behind) + 8 * ord(" ")
        self._held += before + b"%06o\0 " % total + behind
        if len(self._held) >= _PIECE:
            self._flush()

    def _pad(self, size: int) -> None:
        self._held += bytes(-size % _BLOCK)

    def _flush(self) -> None:
        view = memoryview(bytes(self._held))
        self._held.clear()
        while view:
            view = view[os.write(self._out, view) :]

    def _tell(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PERIOD
            _print_count(self._bytes)


def _bytes_read(pid: int) -> int:
    """Return how many bytes a child has read, by proc(5); 0 if that is not known."""
    try:
        with open(f"/proc/{pid}/io", "rb") as file:
            return int(file.readline().split()[1])
    except OSError:
        return 0


def _print_count(count: int) -> None:
    sys.stdout.write(f"{count}\n")
    sys.stdout.flush()


def _pair(owner: str) -> "tuple[int, int]":
    uid, gid = owner.split(":")
    return int(uid), int(gid)


def _record(key: bytes, value: bytes) -> bytes:
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length = len(str(length)) + len(rest)
    return b"%d" % length + rest
