"""A secret that the supervisors of a root directory have in common, and no container.

Shims mark their directories with it: a container may see the place where those are, as with a
mount of /tmp, and what one shim has left another one cleans up with the user's rights.
"""

import os

NAME = "@key"
_SIZE = 16


class _Key:
    """The secret; made when it is first needed."""

    def __init__(self) -> None:
        self.root = ""
        self.content = b""


_own = _Key()


def keep_key_in(root: str) -> None:
    """Keep it in a file of the root directory from now on, for successors."""
    _own.root, _own.content = root, b""


def own_key() -> bytes:
    """Return it; a new one that nobody else has if it can neither be read nor written."""
    if not _own.content:
        _own.content = os.urandom(_SIZE)
        if _own.root:
            _own.content = _shared(os.path.join(_own.root, NAME), _own.content)
    return _own.content


def _shared(path: str, own: bytes) -> bytes:
    temporary = f"{path}.{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600)
        try:
            os.write(fd, own)
            os.link(temporary, path)  # as a whole, and the first one counts
        except FileExistsError:
            pass
        finally:
            os.close(fd)
            os.unlink(temporary)
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.read(fd, _SIZE + 1)
        finally:
            os.close(fd)
    except OSError:
        return own
    return found if len(found) == _SIZE else own
