"""Read and replace configuration files."""

import contextlib
import os
import tempfile

import msgspec

from scrun.core.errors import SettingsError, why

BACKUP = ".bak"
_LIMIT = 4 * 1024 * 1024


class Change(msgspec.Struct, frozen=True):
    """A change of one file; None stands for a file that does not exist.

    `keeps`: the text before is saved in `path` + BACKUP.
    """

    path: str
    before: str | None
    after: str | None
    keeps: bool = False

    @property
    def undone(self) -> "Change":
        return Change(self.path, self.after, self.before)


def read(path: str) -> str | None:
    """Read a file; None if it does not exist."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            text = file.read(_LIMIT + 1)
    except FileNotFoundError:
        if os.path.islink(path):
            raise SettingsError(f"{path}: a symbolic link to nothing; remove it") from None
        return None
    except OSError as error:
        raise SettingsError(f"{path}: {why(error)}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8, so left alone") from error
    if len(text) > _LIMIT:
        raise SettingsError(f"{path}: too large to be a configuration file")
    return text


def apply(change: Change, base: str) -> None:
    """Replace, create or remove a file of the caller's atomically.

    With a file, empty directories above it are removed, if they are below `base`.
    """
    if change.after == change.before:
        return
    real = _own(change.path)
    if change.after is None:
        os.unlink(change.path)
        _remove_empty(os.path.dirname(change.path), base)
        return
    status = os.stat(real) if change.before is not None else None
    if change.keeps and change.before is not None:
        _replace(_own(change.path + BACKUP), change.before, status)
    _replace(real, change.after, status)


def _replace(real: str, text: str, like: os.stat_result | None) -> None:
    """Replace or make a file, with the owner and mode of another one."""
    directory = os.path.dirname(real)
    _make(directory)
    fd, temporary = tempfile.mkstemp(prefix=".scrun-", dir=directory)
    try:
        with open(fd, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            if like is None:
                os.fchmod(fd, 0o644)
            else:
                os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, like.st_mode & 0o7777)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, real)
    except BaseException:
        os.unlink(temporary)
        raise


def _make(directory: str) -> None:
    """Make a directory; what root makes, all may enter, whatever the umask: engines read it."""
    if os.path.isdir(directory):
        return
    _make(os.path.dirname(directory))
    with contextlib.suppress(FileExistsError):  # by somebody else, just now
        os.mkdir(directory)
    if os.geteuid() == 0:
        os.chmod(directory, 0o755)


def _own(path: str) -> str:
    """Return the file to replace: the target of a symbolic link, if it belongs to the caller."""
    real = os.path.realpath(path)
    if os.path.lexists(path):
        owner = os.stat(real).st_uid
        if owner != os.geteuid():
            leads = f" leads to {real}, which" if os.path.islink(path) else ""
            raise SettingsError(f"{path}:{leads} belongs to uid {owner}; left alone")
    return real


def _remove_empty(directory: str, base: str) -> None:
    while directory.startswith(base + os.sep):
        try:
            os.rmdir(directory)
        except OSError:
            return
        directory = os.path.dirname(directory)
