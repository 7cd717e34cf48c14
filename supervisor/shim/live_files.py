"""Answers a file system of a container's files, as engines see them on the submit host.

What arrives on standard input are requests of the kernel there, as it writes them to /dev/fuse
(linux/fuse.h, version 7.31), and what leaves are answers. The supervisor passes both on, and has
negotiated the version (`scrun.supervisor.containers.live_files`).

The container is entered first, as by `copying`. Each path is reached from a directory that is
open, and no link is followed: the kernel that asks does that. A file's number stands for its name
in a directory, so files that are not open need no descriptor.
"""

import _signal as signal
import errno
import os
import stat
import struct
import time

from scrun.supervisor.wire.fuse import (
    ATTR,
    ATTR_OUT,
    BATCH_FORGET,
    CREATE,
    DIRENT,
    ENTRY,
    FALLOCATE,
    FORGET,
    FSYNC,
    GETATTR,
    IN,
    KEEP_SIZE,
    LARGEST,
    LINK,
    LONGEST,
    LOOKUP,
    LSEEK,
    MKDIR,
    MKNOD,
    OPEN,
    OPEN_OUT,
    OPENDIR,
    OUT,
    PROC,
    RANGE,
    READ,
    READDIR,
    READDIRPLUS,
    READLINK,
    RELEASE,
    RELEASEDIR,
    RENAME,
    RENAME2,
    RMDIR,
    ROOM,
    ROOT,
    SETATTR,
    STATFS,
    STATFS_OUT,
    SYMLINK,
    UNANSWERED,
    UNLINK,
    WRITE,
)

from .asked_files import (
    NONBLOCKING,
    Handle,
    attributes,
    change_mode,
    component,
    name_of,
    names_of,
    open_file,
    padded,
    write_all,
)
from .copying import CUT_OFF, SAID
from .entering import Refused, enter_files
from .libc import reserve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SETATTR = struct.Struct("=IIQQQQQQIIIIIIII")
_FORGOTTEN = struct.Struct("=QQ")
_NUMBER, _TWO, _FOUR = struct.Struct("=Q"), struct.Struct("=II"), struct.Struct("=IIII")
_SEEK = struct.Struct("=QQII")
_NEWDIR = struct.Struct("=QII")

_MODE, _UID, _GID, _SIZE, _ATIME, _MTIME, _FH, _ATIME_NOW, _MTIME_NOW = (
    1 << bit for bit in range(9)
)
# nanoseconds for which the kernel does not ask again: within one copy, not from one to the next.
# Where all is slow, so is whatever comes next: then it is as long as so many requests take.
_VALID, _LONGEST_VALID, _REQUESTS = 20_000_000, 500_000_000, 16
_LATEST = 8
_MOST_FILES = 1 << 16  # half a KiB each
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_FOLDERS, _DEEP = 128, 16  # open at a time, and of one path
_NANO = 10**9
_LISTED = ENTRY.size + ATTR.size + DIRENT.size
_NOT_MADE = (stat.S_IFCHR, stat.S_IFBLK)


def serve(pid: int, over: "Sequence[str] | None" = None, users: int = -1) -> int:
    """Answer until standard input ends; return the exit status.

    Args:
        pid: As for `copying.copy`.
        over, users: As for `entering.enter_files`.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stay)  # Slurm tells all programs before a job ends
    try:
        enter_files(pid, over, users)
        os.umask(0)  # the kernel that asks has one
        LiveFiles().answer_all(0, 1)
    except BrokenPipeError:
        return CUT_OFF
    except (OSError, Refused) as error:
        os.write(2, f"{error}\n".encode("utf-8", "replace"))
        return SAID
    return 0


def _stay(number: int, frame: object) -> None:
    """Be told that this process handles signals."""


class _File:
    """A file by its name, as the kernel knows it; `count`: how often it was told."""

    __slots__ = ("count", "folder", "name", "seen")

    def __init__(self, folder: int, name: bytes, seen: "tuple[int, ...]" = ()) -> None:
        self.folder, self.name, self.seen = folder, name, seen
        self.count = 0


class LiveFiles:
    """The files below a directory."""

    def __init__(self, root: str = "/") -> None:
        self._files = {ROOT: _File(ROOT, b""), PROC: _File(ROOT, b"proc")}
        self._numbers = {(ROOT, b"proc"): PROC}
        # the kernel remembers those of another process, which has ended
        self._last = self._last_handle = int.from_bytes(os.urandom(4), "little") << 32 | PROC
        self._handles: dict[int, Handle] = {}
        self._folders: dict[int, int] = {ROOT: os.open(root, _FOLDER)}
        self._pauses = [0.0] * _LATEST
        self._valid = _VALID
        self._calls: dict[int, Callable[[int, memoryview], bytes]] = {
            LOOKUP: self._lookup,
            GETATTR: self._getattr,
            SETATTR: self._setattr,
            READLINK: self._readlink,
            SYMLINK: self._symlink,
            MKNOD: self._mknod,
            MKDIR: self._mkdir,
            UNLINK: self._unlink,
            RMDIR: self._rmdir,
            RENAME: self._rename,
            LINK: self._link,
            OPEN: self._open,
            READ: self._read,
            WRITE: self._write,
            STATFS: self._statfs,
            RELEASE: self._release,
            FSYNC: self._fsync,
            FALLOCATE: self._fallocate,
            OPENDIR: self._opendir,
            READDIR: self._readdir,
            RELEASEDIR: self._release,
            CREATE: self._create,
            READDIRPLUS: self._readdirplus,
            RENAME2: self._rename2,
            LSEEK: self._lseek,
        }

    def answer_all(self, source: int, sink: int) -> None:
        """Answer the requests from a descriptor on another one until the end.

        Raises:
            OSError: One of them fails.
        """
        kept, before = bytearray(), time.monotonic()
        while True:
            data = os.read(source, LONGEST)
            if not data:
                return
            kept += data
            at = 0
            with memoryview(kept) as view:
                while len(kept) - at >= IN.size:
                    (length,) = struct.unpack_from("=I", kept, at)
                    if not IN.size <= length <= LONGEST:
                        raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))
                    if len(kept) - at < length:
                        break
                    with view[at : at + length] as request:
                        self._waited(before)
                        write_all(sink, self.answer(request))
                        before = time.monotonic()
                    at += length
            del kept[:at]

    def _waited(self, since: float) -> None:
        """Learn how long the way to who asks is, and back: the shortest of the latest pauses."""
        self._pauses = [*self._pauses[1:], time.monotonic() - since]
        some = int(_REQUESTS * min(self._pauses) * _NANO)
        self._valid = min(max(_VALID, some), _LONGEST_VALID)

    def answer(self, request: memoryview) -> bytes:
        """Return the answer to a request, with its head; nothing if it gets none."""
        _, code, unique, number, *_ = IN.unpack_from(request)
        self._close_some()
        if len(self._files) > _MOST_FILES:
            self._drop_some()
        with request[IN.size :] as body:
            if code in UNANSWERED:
                self._forget_all(code, number, body)
                return b""
            call = self._calls.get(code)
            try:
                if call is None:
                    raise OSError(errno.ENOSYS, "")
                answer = call(number, body)
            except OSError as error:
                return OUT.pack(OUT.size, -(error.errno or errno.EIO), unique)
            except (struct.error, ValueError):  # a name with a zero in it
                return OUT.pack(OUT.size, -errno.EINVAL, unique)
        return OUT.pack(OUT.size + len(answer), 0, unique) + answer

    # names

    def _file(self, number: int) -> _File:
        try:
            return self._files[number]
        except KeyError:
            raise OSError(errno.ESTALE, "") from None

    def _folder(self, number: int) -> int:
        """Return a descriptor of a directory, which stays open for a while."""
        way = []
        while number not in self._folders:
            file = self._file(number)
            way.append((number, file.name))
            number = file.folder
        fd = self._folders[number]
        for left in range(len(way) - 1, -1, -1):
            number, name = way[left]
            before = fd
            try:
                fd = os.open(name, _FOLDER, dir_fd=before)
            finally:
                if before not in self._folders.values():
                    os.close(before)
            if left < _DEEP:
                self._folders[number] = fd
        return fd

    def _close_some(self) -> None:
        """Close the directories that have been open for the longest time."""
        while len(self._folders) > _MOST_FOLDERS:
            self._close_folder(next(one for one in self._folders if one != ROOT))

    def close_all(self) -> None:
        """Close all directories but the root."""
        for number in [one for one in self._folders if one != ROOT]:
            self._close_folder(number)

    @property
    def known(self) -> "set[int]":
        """The numbers that the kernel knows."""
        return set(self._files)

    def _close_folder(self, number: int) -> None:
        fd = self._folders.pop(number, None)
        if fd is not None:
            os.close(fd)

    def _at(self, number: int) -> "tuple[int, bytes]":
        """Return the directory of a file and its name there."""
        file = self._file(number)
        return (
            (self._folder(ROOT), b".")
            if number == ROOT
            else (self._folder(file.folder), file.name)
        )

    def _status(self, number: int) -> os.stat_result:
        folder, name = self._at(number)
        return os.lstat(name, dir_fd=folder)

    def _known(self, folder: int, name: bytes, status: os.stat_result) -> int:
        """Return the number of a name, once more told to the kernel.

        A name that has come to mean another file gets another number.
        """
        key, kind = (folder, name), stat.S_IFMT(status.st_mode)
        seen = (status.st_dev, status.st_ino, kind)
        number = self._numbers.get(key, 0)
        file = self._files.get(number)
        if file is None or (file.seen != seen and number != PROC):
            self._last += 1
            number = self._numbers[key] = self._last
            file = self._files[number] = _File(folder, name, seen)
        file.count += 1
        self._files[number] = self._files.pop(number)  # the latest
        return number

    def _forget_all(self, code: int, number: int, body: memoryview) -> None:
        if code == FORGET:
            self._forget(number, *_NUMBER.unpack_from(body))
        elif code == BATCH_FORGET:
            count = _TWO.unpack_from(body)[0]
            for one, times in _FORGOTTEN.iter_unpack(body[8 : 8 + count * _FORGOTTEN.size]):
                self._forget(one, times)

    def _forget(self, number: int, times: int) -> None:
        file = self._files.get(number)
        if file is None or number <= PROC:
            return
        file.count -= times
        if file.count <= 0:
            self._drop(number)

    def _drop(self, number: int) -> None:
        file = self._files.pop(number)
        self._close_folder(number)
        if self._numbers.get((file.folder, file.name)) == number:
            del self._numbers[file.folder, file.name]

    def _drop_some(self) -> None:
        """Forget files that the kernel still knows, the half that nobody has asked for lately.

        It asks for a path once more if a number in it means nothing any more.
        """
        numbers = list(self._files)
        in_use = [handle.file for handle in self._handles.values()]
        kept = {ROOT, PROC}
        for number in (*in_use, *numbers[len(numbers) // 2 :]):
            if len(kept) > _MOST_FILES * 3 // 4:  # directories in directories in directories
                break
            while number not in kept and number in self._files:
                kept.add(number)
                number = self._files[number].folder
        for number in numbers:
            if number not in kept:
                self._drop(number)

    def _moved(self, folder: int, name: bytes, to: int, new: bytes) -> None:
        """Note that a name has become another one."""
        number = self._numbers.pop((folder, name), 0)
        if number in self._files:
            self._files[number].folder, self._files[number].name = to, new
            self._numbers[to, new] = number

    # files

    def _lookup(self, number: int, body: memoryview) -> bytes:
        return self._entry(number, name_of(body))

    def _entry(self, folder: int, name: bytes) -> bytes:
        status = os.lstat(name, dir_fd=self._folder(folder))
        number = self._known(folder, name, status)
        return ENTRY.pack(number, 0, 0, 0, self._valid, self._valid) + attributes(status)

    def _getattr(self, number: int, body: memoryview) -> bytes:
        flags, _, handle = struct.unpack_from("=IIQ", body)
        fd = self._handles[handle].fd if flags & 1 and handle in self._handles else -1
        return self._attr_out(number, os.fstat(fd) if fd >= 0 else self._status(number))

    def _attr_out(self, number: int, status: os.stat_result) -> bytes:
        return ATTR_OUT.pack(0, self._valid, 0) + attributes(status)

    def _setattr(self, number: int, body: memoryview) -> bytes:
        (valid, _, handle, size, _, *times) = _SETATTR.unpack_from(body)
        atime, mtime, _, atime_rest, mtime_rest, _, mode, _, uid, gid, _ = times
        folder, name = self._at(number)
        status = os.lstat(name, dir_fd=folder)
        if valid & (_UID | _GID):
            owner = uid if valid & _UID else -1
            os.chown(
                name, owner, gid if valid & _GID else -1, dir_fd=folder, follow_symlinks=False
            )
        if valid & _MODE:
            change_mode(folder, name, stat.S_IMODE(mode), status)
        if valid & _SIZE:
            open_one = self._handles.get(handle) if valid & _FH else None
            if open_one is not None:
                os.ftruncate(open_one.fd, size)
            else:
                fd = open_file(name, os.O_WRONLY, folder)
                try:
                    os.ftruncate(fd, size)
                finally:
                    os.close(fd)
        if valid & (_ATIME | _MTIME):
            self._set_times(
                (folder, name), valid, status, atime * _NANO + atime_rest,
                mtime * _NANO + mtime_rest,
            )  # fmt: skip
        return self._attr_out(number, os.lstat(name, dir_fd=folder))

    def _set_times(
        self, where: "tuple[int, bytes]", valid: int, status: os.stat_result,
        atime: int, mtime: int,
    ) -> None:  # fmt: skip
        folder, name = where
        if valid & _ATIME_NOW and valid & _MTIME_NOW:
            os.utime(name, dir_fd=folder, follow_symlinks=False)
            return
        times = (
            atime if valid & _ATIME else status.st_atime_ns,
            mtime if valid & _MTIME else status.st_mtime_ns,
        )
        os.utime(name, ns=times, dir_fd=folder, follow_symlinks=False)

    def _readlink(self, number: int, _: memoryview) -> bytes:
        folder, name = self._at(number)
        return os.readlink(name, dir_fd=folder)

    def _symlink(self, number: int, body: memoryview) -> bytes:
        name, target = names_of(body)
        os.symlink(target, name, dir_fd=self._folder(number))
        return self._entry(number, name)

    def _mknod(self, number: int, body: memoryview) -> bytes:
        mode, _, umask, _ = _FOUR.unpack_from(body)
        if stat.S_IFMT(mode) in _NOT_MADE:
            raise OSError(errno.EPERM, "")
        name = name_of(body[_FOUR.size :])
        os.mknod(name, mode & ~umask, dir_fd=self._folder(number))
        return self._entry(number, name)

    def _mkdir(self, number: int, body: memoryview) -> bytes:
        mode, umask = _TWO.unpack_from(body)
        name = name_of(body[_TWO.size :])
        os.mkdir(name, mode & ~umask, dir_fd=self._folder(number))
        return self._entry(number, name)

    def _unlink(self, number: int, body: memoryview) -> bytes:
        os.unlink(name_of(body), dir_fd=self._folder(number))
        return b""

    def _rmdir(self, number: int, body: memoryview) -> bytes:
        os.rmdir(name_of(body), dir_fd=self._folder(number))
        return b""

    def _rename(self, number: int, body: memoryview) -> bytes:
        (to,) = _NUMBER.unpack_from(body)
        return self._rename_to(number, to, body[_NUMBER.size :])

    def _rename2(self, number: int, body: memoryview) -> bytes:
        to, flags, _ = _NEWDIR.unpack_from(body)
        if flags:
            raise OSError(errno.EINVAL, "")
        return self._rename_to(number, to, body[_NEWDIR.size :])

    def _rename_to(self, number: int, to: int, names: memoryview) -> bytes:
        name, new = names_of(names)
        component(new)
        os.rename(name, new, src_dir_fd=self._folder(number), dst_dir_fd=self._folder(to))
        self._moved(number, name, to, new)
        return b""

    def _link(self, number: int, body: memoryview) -> bytes:
        (old,) = _NUMBER.unpack_from(body)
        folder, name = self._at(old)
        new = name_of(body[_NUMBER.size :])
        os.link(
            name, new, src_dir_fd=folder, dst_dir_fd=self._folder(number), follow_symlinks=False
        )
        return self._entry(number, new)

    def _open(self, number: int, body: memoryview) -> bytes:
        flags, _ = _TWO.unpack_from(body)
        folder, name = self._at(number)
        return self._opened(Handle(open_file(name, flags & os.O_ACCMODE, folder), number))

    def _opened(self, handle: Handle) -> bytes:
        self._last_handle += 1
        self._handles[self._last_handle] = handle
        return OPEN_OUT.pack(self._last_handle, 0, 0)

    def _create(self, number: int, body: memoryview) -> bytes:
        flags, mode, umask, _ = _FOUR.unpack_from(body)
        name = name_of(body[_FOUR.size :])
        wanted = flags & os.O_ACCMODE | os.O_CREAT | flags & os.O_EXCL
        fd = open_file(name, wanted, self._folder(number), mode & ~umask & 0o7777)
        entry = self._entry(number, name)
        return entry + self._opened(Handle(fd, _NUMBER.unpack_from(entry)[0]))

    def _handle(self, number: int) -> Handle:
        try:
            return self._handles[number]
        except KeyError:
            raise OSError(errno.EBADF, "") from None

    def _read(self, _: int, body: memoryview) -> bytes:
        handle, offset, size, *_more = RANGE.unpack_from(body)
        return os.pread(self._handle(handle).fd, min(size, LARGEST), offset)

    def _write(self, _: int, body: memoryview) -> bytes:
        handle, offset, size, *_more = RANGE.unpack_from(body)
        with body[RANGE.size : RANGE.size + size] as data:
            return _TWO.pack(os.pwrite(self._handle(handle).fd, data, offset), 0)

    def _statfs(self, number: int, _: memoryview) -> bytes:
        folder, name = self._at(number)
        fd = folder if number == ROOT else os.open(name, os.O_PATH | NONBLOCKING, dir_fd=folder)
        try:
            found = os.fstatvfs(fd)
        finally:
            if fd != folder:
                os.close(fd)
        return STATFS_OUT.pack(
            found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
            found.f_bsize, found.f_namemax, found.f_frsize, 0,
        )  # fmt: skip

    def _release(self, _: int, body: memoryview) -> bytes:
        handle = self._handles.pop(_NUMBER.unpack_from(body)[0], None)
        if handle is not None:
            try:
                if handle.has_room:  # what is not needed is given back
                    os.ftruncate(handle.fd, os.fstat(handle.fd).st_size)
            finally:
                handle.close()
        return b""

    def _fallocate(self, _: int, body: memoryview) -> bytes:
        """Reserve room on the disk for what will be written."""
        which, offset, length, mode, _unused = ROOM.unpack_from(body)
        if mode != KEEP_SIZE:
            raise OSError(errno.EOPNOTSUPP, "")
        handle = self._handle(which)
        reserve(handle.fd, offset, length)
        handle.has_room = True
        return b""

    def _fsync(self, _: int, body: memoryview) -> bytes:
        handle, flags, _unused = _NEWDIR.unpack_from(body)
        (os.fdatasync if flags & 1 else os.fsync)(self._handle(handle).fd)
        return b""

    def _lseek(self, _: int, body: memoryview) -> bytes:
        handle, offset, whence, _unused = _SEEK.unpack_from(body)
        if whence not in (os.SEEK_DATA, os.SEEK_HOLE):
            raise OSError(errno.EINVAL, "")
        return _NUMBER.pack(os.lseek(self._handle(handle).fd, offset, whence))

    # directories

    def _opendir(self, number: int, _: memoryview) -> bytes:
        folder, name = self._at(number)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return self._opened(Handle(os.open(name, flags, dir_fd=folder), number))

    def _readdir(self, number: int, body: memoryview) -> bytes:
        return self._list(number, body, with_entries=False)

    def _readdirplus(self, number: int, body: memoryview) -> bytes:
        return self._list(number, body, with_entries=True)

    def _list(self, number: int, body: memoryview, *, with_entries: bool) -> bytes:
        """Return as many entries from an offset on as fit."""
        which, offset, size, *_more = RANGE.unpack_from(body)
        handle = self._handle(which)
        found = bytearray()
        for at, name in enumerate(handle.names_from(offset), offset + 1):
            if len(found) + padded(_LISTED + len(name)) > size:
                break
            try:
                status = os.lstat(name, dir_fd=handle.fd)
            except OSError:  # it has been removed, or cannot be reached
                continue
            if with_entries:
                one = self._known(number, name, status)
                found += ENTRY.pack(one, 0, 0, 0, self._valid, self._valid) + attributes(status)
            kind = stat.S_IFMT(status.st_mode) >> 12
            found += DIRENT.pack(status.st_ino, at, len(name), kind) + name
            found += bytes(-len(name) % 8)
        return bytes(found)
