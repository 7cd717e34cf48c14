"""Look for the program of a container before a job is requested.

The search sees the files as the runtime on the node will: in the root file system, through the
bind mounts, with symbolic links resolved inside the container. A hostile container may have
written the root file system, so the kernel never gets a whole path of it: each component is opened
on its own, relative to the previous directory and without following links (O_PATH, O_NOFOLLOW),
and `..` returns along the opened directories.

Measured with crun 1.8.1 and runc 1.1.5: the last PATH of `process.env` counts; without PATH both
find nothing (newer ones use a default); crun resolves a relative entry of PATH, and runc refuses
it. Where they differ, the answer is Unknown.
"""

import errno
import os
import stat
from typing import Self

import msgspec

from scrun.core.inside import OPEN_ENTRY, PathStep, go_back, walk
from scrun.oci.config import Bundle, Mount

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_DEPTH = 100  # directories that are open at once
_STEPS = 20_000  # in total: a thread cannot be cancelled
_MOUNTS = 1000


class Found(msgspec.Struct, frozen=True):
    """The program is executable; `path` is without links, `called` has its name and PATH."""

    path: str
    called: str


class NotFound(msgspec.Struct, frozen=True):
    """There is no such program.

    podman and docker derive their exit status from the words of the message: 127 for a missing
    file, 126 for one that cannot be run.
    """

    message: str
    exit_status: int


class Unknown(msgspec.Struct, frozen=True):
    """Only the node can tell; `reason` says why."""

    reason: str


def find_program(bundle: Bundle) -> Found | NotFound | Unknown:
    """Look for the file that `process.args[0]` names; it may hang: call it in a thread."""
    name = bundle.config.process.args[0]
    try:
        with _Tree(bundle) as tree:
            return _search(tree, bundle, name)
    except _UnclearError as unclear:
        return Unknown(str(unclear))
    except (OSError, ValueError) as error:  # ValueError: no file can have such a name
        return Unknown(f"{name!r}: {error}")


def find_directory(bundle: Bundle) -> str | NotFound | Unknown:
    """Look for `process.cwd`, in a thread; the runtime makes it for a first program only."""
    cwd = bundle.config.process.cwd
    try:
        with _Tree(bundle) as tree:
            mode, path = tree.look_up(cwd)
    except _MissingError:
        return NotFound(f"working directory `{cwd}`: no such file or directory", 127)
    except (_UnclearError, OSError, ValueError) as unclear:
        return Unknown(f"{cwd!r}: {unclear}")
    if not stat.S_ISDIR(mode):
        return NotFound(f"working directory `{cwd}`: not a directory", 126)
    return path


def _search(tree: "_Tree", bundle: Bundle, name: str) -> Found | NotFound | Unknown:
    process = bundle.config.process
    paths = [entry[5:] for entry in process.env if entry.startswith("PATH=")]
    directories = [""] if "/" in name else (paths[-1] if paths else DEFAULT_PATH).split(":")
    denied = False
    for directory in directories:
        try:
            called = os.path.join(process.cwd, directory, name)
            mode, path = tree.look_up(called)
        except _MissingError:
            continue
        if not stat.S_ISREG(mode) or not mode & 0o111:
            denied = True
        elif "/" not in name and not paths:
            return Unknown(f"{path}: process.env has no PATH")
        elif "/" not in name and not directory.startswith("/"):
            return Unknown(f"{path}: is in a relative entry of PATH")
        else:
            return Found(path, called)
    if denied:
        return NotFound(f"open executable `{name}`: permission denied", 126)
    message = f"executable file `{name}` not found in $PATH: no such file or directory"
    return NotFound(message, 127)


class _MissingError(Exception):
    """There is no such file."""


class _UnclearError(Exception):
    """The file cannot be examined on this machine."""


class _OpaqueError(_UnclearError):
    """The file is in a mount that only the node will have."""


class _Tree:
    """The container's files: the root file system with the mounts over it; a context manager."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.steps_left = _STEPS
        # mount points in their order: a later mount hides what is below it
        self.mounts: list[tuple[tuple[str, ...], Mount]] = []

    def __enter__(self) -> Self:
        self.root = _open_source(self.bundle.rootfs)
        try:
            if len(self.bundle.config.mounts) > _MOUNTS:
                raise _UnclearError("too many mounts")
            for mount in self.bundle.config.mounts:
                mount_point = self._mount_point(mount.destination)
                if not mount_point:
                    raise _UnclearError(f"{mount.destination}: a mount over the root")
                self.mounts.append((mount_point, mount))
        except BaseException:
            os.close(self.root)
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.root)

    def look_up(self, path: str) -> tuple[int, str]:
        way = [PathStep("", self.root)]
        try:
            self._walk(path, way)
            return os.fstat(way[-1].fd).st_mode, "/".join(step.name for step in way) or "/"
        finally:
            go_back(way, 1)

    def _mount_point(self, destination: str) -> tuple[str, ...]:
        """Resolve a mount point as far as it exists; the runtime creates the rest."""
        known = ""
        rest = [part for part in destination.split("/") if part not in ("", ".")]
        try:
            while rest:
                known = self.look_up(f"{known}/{rest[0]}")[1].rstrip("/")
                rest.pop(0)
        except (_MissingError, _OpaqueError):
            known = os.path.normpath("/".join(["", known, *rest]))
        return tuple(part for part in known.split("/") if part)

    def _walk(self, path: str, way: list[PathStep]) -> None:
        try:
            walk(way, path, self._enter, _DEPTH)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise _UnclearError(f"{path}: too long a way") from None
            raise _MissingError from None

    def _enter(self, way: list[PathStep], name: str) -> PathStep:
        """Take one step down, into the last mount there that is not hidden."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise _UnclearError(f"/{'/'.join(step.name for step in way[1:])}: too long a way")
        here = way[-1]
        names = (*(step.name for step in way[1:]), name)
        for layer in range(len(self.mounts) - 1, here.layer, -1):
            mount_point, mount = self.mounts[layer]
            if mount_point == names:
                if not mount.is_bind:
                    raise _OpaqueError(f"{mount.destination}: is a mount of type {mount.type}")
                source = os.path.join(self.bundle.path, mount.source)
                return PathStep(name, _open_source(source), layer)
        try:
            fd = os.open(name, OPEN_ENTRY, dir_fd=here.fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
                deeper = (point for point, _ in self.mounts[here.layer + 1 :])
                if any(point[: len(names)] == names for point in deeper):
                    where = "/".join(names)
                    raise _OpaqueError(f"/{where}: is made for a mount below it") from None
                raise _MissingError from None
            raise _UnclearError(f"/{'/'.join(names)}: {error.strerror}") from error
        return PathStep(name, fd, here.layer)


def _open_source(path: str) -> int:
    """Open a path of the caller of scrun: links in it are the host's."""
    try:
        return os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        raise _UnclearError(f"{path}: {error.strerror}") from error
