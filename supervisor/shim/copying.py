"""Packs files of a container into an archive, or unpacks one there (`scrun cp`).

Also the caller's side of that, and in a program of the supervisor's, for a container on this
machine. The format is that of tar(5), with pax headers.

A container is entered first. From then on nothing is imported, and no name service is asked: both
would load what the image has in their place. What is unpacked is reached directory by directory,
and no link is followed: neither side trusts the names that the other one sends.
"""

import _signal as signal
import errno
import io
import os
import stat
import sys
import tarfile

from .entering import Refused, enter_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO, Any

OUT = "out"
"""From the container; else into it."""

SAID, CUT_OFF = 1, 3
"""Exit statuses: it has said why it failed; or the other side has failed, which says why."""

_PIECE = 1 << 18
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PERMISSIONS, _OF_FOLDERS = 0o777, 0o1777  # none that gives its caller the owner's rights
_SAID_AT_MOST = 5
_ENDS = "unexpected end of data"  # so says `tarfile` in the middle of a file
_OF_THE_KERNEL = 64 << 20  # the longest file in /proc or /sys that is read
_LEFT_OUT = "devices, sockets or file systems of the kernel were left out"
_ATTEMPTS = 20


class CutOff(Exception):
    """The archive ends too early: its other side has failed."""


def serve_descriptors() -> None:
    """Copy for the program: its arguments are those of `copy`.

    The archive is its standard input or output.
    """
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # a container is not to have them
    pid, direction, path = sys.argv[1:]
    sys.exit(copy(int(pid), direction, path))


def copy(pid: int, direction: str, path: str) -> int:
    """Pack a path to standard output, or unpack standard input there; return the exit status.

    Args:
        pid: The container's first process, or its runtime, of which that is a descendant; 0: stay
            here.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    where, failed = "", 0
    try:
        if pid:
            where = " in the container"
            enter_files(pid)
        if direction == OUT:
            left_out, failed = pack(path, 1, where)
        else:
            with open(0, "rb", _PIECE, closefd=False) as source:
                left_out = unpack(source, path)
    except (BrokenPipeError, CutOff):
        return CUT_OFF
    except KeyboardInterrupt as ended:
        [number] = ended.args
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    except RecursionError:
        _say(f"{path}{where}: its directories are too deep")
    except Refused as error:
        _say(f"{error}")
    except (tarfile.TarError, ValueError, OverflowError) as error:
        if str(error) == _ENDS:
            return CUT_OFF
        _say(f"what arrives is not a tar archive, or damaged: {error}")
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else path
        _say(f"{name}{where}: {error.strerror}")
    else:
        if failed > _SAID_AT_MOST:
            _say(f"{failed - _SAID_AT_MOST} more could not be read")
        if left_out:
            _say(f"{path}{where}: {left_out} {_LEFT_OUT}")
        return SAID if failed else 0
    return SAID


def _end(number: int, _frame: object) -> None:
    """Leave no file that is not complete, and then let a signal end this process."""
    raise KeyboardInterrupt(number)


def _say(text: str) -> None:
    shown = "".join(char if char.isprintable() else "?" for char in text)
    os.write(2, f"scrun: cp: {shown}\n".encode("utf-8", "replace"))


# --- pack ---------------------------------------------------------------------------------------


def pack(path: str, fd: int, where: str = "") -> "tuple[int, int]":
    """Write an archive of a file or directory to a descriptor.

    A link is followed if it is the path itself. The names in the archive begin with the last
    component; with "." if the path ends with that, for what is in the directory. What cannot be
    read in a directory is said, and the rest is written.

    Args:
        where: What is said after a path.

    Returns:
        How many files are left out because of their kind, and how many could not be read.

    Raises:
        OSError: It cannot be read.
        Refused: It is neither a file nor a directory; or the archive cannot be written.
    """
    name = os.path.basename(path.rstrip("/")) or "."
    if name == "..":
        name = "."
    sink = _Sink(fd)
    packing = _Packing(sink, where)
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            packing.add_folder(os.open(path, _FOLDER & ~os.O_NOFOLLOW), name, path)
        elif not stat.S_ISREG(status.st_mode):
            raise Refused(f"{path}{where} is a device, a FIFO or a socket")
        elif path.endswith(("/", "/.")):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        else:
            packing.add_file(os.open(path, _FILE), name)
        packing.tar.close()
    finally:
        sink.is_over = True
    return packing.left_out, packing.failed


class _Sink:
    """Where the archive goes. `tarfile` would end one that has failed as if it were complete."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_over = False

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self.is_over:
                rest = rest[os.write(self._fd, rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise Refused(f"the archive cannot be written: {error.strerror}") from None


class _Packing:
    """One archive that is being written."""

    def __init__(self, sink: _Sink, where: str) -> None:
        self._where = where
        self.tar: tarfile.TarFile = tarfile.open(  # type: ignore[call-overload] # noqa: SIM115 - closed by `pack`
            fileobj=sink, mode="w|", bufsize=_PIECE, format=tarfile.PAX_FORMAT,
            encoding="utf-8", errors="surrogateescape",
        )  # fmt: skip
        self.left_out = self.failed = 0
        self._linked: dict[tuple[int, int], str] = {}

    def _put(self, info: tarfile.TarInfo, content: "IO[bytes] | None" = None) -> None:
        self.tar.addfile(info, content)
        self.tar.members = []  # type: ignore[attr-defined] # it would keep all of them

    def add_folder(self, fd: int, name: str, path: str) -> None:
        """Add a directory and all in it; its descriptor is closed."""
        try:
            status = os.fstat(fd)
            self._put(_described(name, status, tarfile.DIRTYPE))
            for entry in sorted(os.listdir(fd)):
                try:
                    below = f"{path.rstrip('/')}/{entry}"
                    self._add(fd, entry, f"{name}/{entry}", below, status.st_dev)
                except FileNotFoundError:  # it has been removed meanwhile
                    pass
                except OSError as error:
                    if isinstance(error, BrokenPipeError):
                        raise
                    self._fails(below, error)
        finally:
            os.close(fd)

    def _fails(self, path: str, error: OSError) -> None:
        self.failed += 1
        if self.failed <= _SAID_AT_MOST:
            _say(f"{path}{self._where}: {error.strerror}")

    def _add(self, folder: int, entry: str, name: str, path: str, device: int) -> None:
        """Add an entry of a directory, which is on a device."""
        status = os.lstat(entry, dir_fd=folder)
        if stat.S_ISDIR(status.st_mode):
            fd = os.open(entry, _FOLDER, dir_fd=folder)
            if status.st_dev != device and _is_of_the_kernel(fd):
                os.close(fd)
                self.left_out += 1
            else:
                self.add_folder(fd, name, path)
        elif stat.S_ISREG(status.st_mode):
            self.add_file(os.open(entry, _FILE | os.O_NOFOLLOW, dir_fd=folder), name)
        elif stat.S_ISLNK(status.st_mode):
            info = _described(name, status, tarfile.SYMTYPE)
            info.linkname = os.readlink(entry, dir_fd=folder)
            self._put(info)
        elif stat.S_ISFIFO(status.st_mode):
            self._put(_described(name, status, tarfile.FIFOTYPE))
        else:
            self.left_out += 1

    def add_file(self, fd: int, name: str) -> None:
        """Add a regular file, which may change meanwhile; its descriptor is closed."""
        with open(fd, "rb", _PIECE) as file:
            status = os.fstat(fd)
            info = _described(name, status, tarfile.REGTYPE)
            first = self._linked.get((status.st_dev, status.st_ino))
            if first is not None:
                info.type, info.linkname = tarfile.LNKTYPE, first
                self._put(info)
                return
            if not stat.S_ISREG(status.st_mode):  # by now
                self.left_out += 1
                return
            if status.st_nlink > 1:
                self._linked[status.st_dev, status.st_ino] = name
            content: Any = _AsLong(file)
            info.size = status.st_size
            if not info.size:  # in /proc they all say so
                text = file.read(_OF_THE_KERNEL)
                content, info.size = io.BytesIO(text), len(text)
            self._put(info, content)


def _is_of_the_kernel(fd: int) -> bool:
    """Tell whether a file system has neither blocks nor files of its own, as /proc and /sys."""
    found = os.fstatvfs(fd)
    return not (found.f_blocks or found.f_files)


class _AsLong:
    """A file that has become shorter goes on with zeros: its length is written already."""

    def __init__(self, file: "IO[bytes]") -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def _described(name: str, status: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, stat.S_IMODE(status.st_mode)
    info.uid, info.gid, info.mtime = status.st_uid, status.st_gid, int(status.st_mtime)
    return info


# --- unpack -------------------------------------------------------------------------------------


def unpack(source: "IO[bytes]", path: str) -> int:
    """Read an archive; return how many files were left out.

    Into the path if that is a directory; else the one file or directory in the archive gets that
    name. What it makes belongs to us, and has the permissions and times of the archive. Each file
    is complete or not there.

    Raises:
        OSError: Something cannot be written.
        Refused: It does not fit, or its names lead elsewhere.
        tarfile.TarError, ValueError, OverflowError: It is not an archive, or damaged.
        CutOff: It ends too early.
    """
    tar = tarfile.open(  # noqa: SIM115 - it has nothing to close
        fileobj=source, mode="r|", bufsize=_PIECE, encoding="utf-8", errors="surrogateescape",
        tarinfo=_Entry,
    )  # fmt: skip
    first = tar.next()
    if first is None:
        return 0
    unpacking = _Unpacking(*_destination(path, first))
    try:
        info: tarfile.TarInfo | None = first
        while info is not None:
            unpacking.add(tar, info)
            tar.members = []  # type: ignore[attr-defined] # it would keep all of them
            info = tar.next()
        unpacking.finish()
    finally:
        unpacking.close()
    while source.read(_PIECE):  # else whoever writes is told that nobody reads
        pass
    return unpacking.left_out


class _Entry(tarfile.TarInfo):
    """`tarfile` takes a damaged entry, or none, for the end of an archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Entry":
        try:
            entry = super().fromtarfile(tarfile_)
        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError):  # type: ignore[attr-defined]
            raise CutOff from None
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from None
        if entry.size < 0:
            raise tarfile.ReadError("a negative size")
        return entry


def _destination(path: str, first: tarfile.TarInfo) -> "tuple[str, list[str], list[str]]":
    """Return the directory to unpack in, a beginning of all names, and what takes its place."""
    parts = _parts(first.name)
    real = os.path.realpath(path)
    if os.path.isdir(real):
        return real, [], []
    if os.path.lexists(real) and (not parts or first.isdir() or path.endswith("/")):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    folder, name = os.path.split(real)
    if (path.endswith("/") and not first.isdir()) or not os.path.isdir(folder):
        missing = path if os.path.isdir(folder) else folder
        raise FileNotFoundError(errno.ENOENT, "there is no such directory", missing)
    return folder, parts[:1], [name]


def _parts(name: str) -> "list[str]":
    """Split a name in an archive.

    Raises:
        Refused: It leads elsewhere.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise Refused(f"{name}: a name in the archive leads out of the directory")
    return parts


class _Unpacking:
    """One archive that is being read."""

    def __init__(self, path: str, old: "list[str]", new: "list[str]") -> None:
        """Unpack below a directory; `old` at the beginning of names becomes `new`."""
        self.left_out = 0
        self._path, self._old, self._new = path, old, new
        self._top = os.open(path, _FOLDER)
        self._folder = os.dup(self._top)
        self._at: tuple[str, ...] = ()
        self._folders: list[tuple[list[str], int, float]] = []

    def close(self) -> None:
        os.close(self._top)
        os.close(self._folder)

    def add(self, tar: tarfile.TarFile, info: tarfile.TarInfo) -> None:
        """Make what an entry describes."""
        parts = self._placed(info.name)
        try:
            if not parts:  # the directory itself, which is there
                return
            self._go(parts[:-1], makes=True)
            if info.isdir():
                self._make_folder(info, parts)
            else:
                self._make(tar, info, parts[-1])
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._shown(parts)) from None

    def _make_folder(self, info: tarfile.TarInfo, parts: "list[str]") -> None:
        try:
            os.mkdir(parts[-1], 0o700, dir_fd=self._folder)
        except FileExistsError:  # it stays as it is, if it is one
            self._go(parts)
        else:
            self._folders.append((parts, info.mode, info.mtime))

    def _make(self, tar: tarfile.TarFile, info: tarfile.TarInfo, name: str) -> None:
        if info.isreg():
            self._write(tar, info, name)
        elif info.issym():
            linked = info.linkname
            self._replace(name, lambda new: os.symlink(linked, new, dir_fd=self._folder))
        elif info.isfifo():
            mode = info.mode & _PERMISSIONS
            self._replace(name, lambda new: os.mkfifo(new, mode, dir_fd=self._folder))
        elif info.islnk():
            *folders, last = self._placed(info.linkname) or [""]
            there = self._opened(folders)
            try:
                self._replace(
                    name,
                    lambda new: os.link(
                        last, new, src_dir_fd=there, dst_dir_fd=self._folder, follow_symlinks=False
                    ),
                )
            finally:
                os.close(there)
        else:
            self.left_out += 1

    def _write(self, tar: tarfile.TarFile, info: tarfile.TarInfo, name: str) -> None:
        content = tar.extractfile(info)
        assert content is not None

        def fill(new: str) -> None:
            fd = os.open(new, _NEW, 0o600, dir_fd=self._folder)
            with open(fd, "wb", _PIECE) as file:
                while True:
                    piece = content.read(_PIECE)
                    if piece.count(0) == len(piece) > 0:
                        file.seek(len(piece), os.SEEK_CUR)  # a hole, as it may have been
                    elif piece:
                        file.write(piece)
                    else:
                        break
                file.truncate()
                file.flush()
                os.fchmod(fd, info.mode & _PERMISSIONS)
                os.utime(fd, (info.mtime, info.mtime))

        self._replace(name, fill)

    def _replace(self, name: str, make: "Callable[[str], None]") -> None:
        """Make something under another name, and give it this one; leave nothing else."""
        for new in _new_names():
            try:
                make(new)
            except FileExistsError:
                continue
            except BaseException:
                self._remove(new)
                raise
            break
        try:
            self._check_replaceable(name)
            os.rename(new, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        finally:  # also of two links to the same file, of which rename(2) leaves both
            self._remove(new)

    def _remove(self, new: str) -> None:
        try:
            os.unlink(new, dir_fd=self._folder)
        except FileNotFoundError:
            pass

    def _check_replaceable(self, name: str) -> None:
        """Keep what root could replace without a word: /dev/null, a FIFO that somebody reads.

        Raises:
            OSError: Such a thing has the name.
        """
        try:
            mode = os.lstat(name, dir_fd=self._folder).st_mode
        except FileNotFoundError:
            return
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise FileExistsError(errno.EEXIST, "is a device, a FIFO or a socket, and stays", name)

    def _placed(self, name: str) -> "list[str]":
        """Return where a name of the archive belongs.

        Raises:
            Refused: It leads elsewhere.
        """
        parts = _parts(name)
        count = len(self._old)
        if parts[:count] != self._old:
            raise Refused(f"{name}: there is more than one file in the archive; name a directory")
        return self._new + parts[count:]

    def _go(self, parts: "list[str]", *, makes: bool = False) -> None:
        if tuple(parts) != self._at:
            folder = self._opened(parts, makes=makes)
            os.close(self._folder)
            self._folder, self._at = folder, tuple(parts)

    def _opened(self, parts: "list[str]", *, makes: bool = False) -> int:
        """Open a directory, step by step: none of them is a link."""
        folder = os.dup(self._top)
        for part in parts:
            try:
                if makes:
                    try:
                        os.mkdir(part, dir_fd=folder)
                    except FileExistsError:
                        pass
                inner = os.open(part, _FOLDER, dir_fd=folder)
            finally:
                os.close(folder)
            folder = inner
        return folder

    def finish(self) -> None:
        """Give the directories their permissions and times, the inner ones first."""
        for parts, mode, mtime in reversed(self._folders):
            try:
                self._go(parts)
                os.fchmod(self._folder, mode & _OF_FOLDERS)
                os.utime(self._folder, (mtime, mtime))
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._shown(parts)) from None

    def _shown(self, parts: "list[str]") -> str:
        return os.path.join(self._path, *parts)


def _new_names() -> "Iterator[str]":
    """Return names for a file until it has its own.

    Raises:
        FileExistsError: All of them are taken.
    """
    for _ in range(_ATTEMPTS):
        yield f".scrun-{os.urandom(6).hex()}"
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
