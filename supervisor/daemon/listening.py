"""The supervisor's name: a socket in the root directory."""

import fcntl
import os
import socket

from scrun.core.own_directory import own_directory
from scrun.protocol import wire


def listen(root: str, name: str) -> socket.socket:
    """Bind the socket. Whoever started us holds the lock of the name, so an old one is dead.

    Raises:
        OSError: It cannot be made there.
    """
    path = os.path.join(root, name)
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        # sun_path holds 108 bytes, and a root directory may be longer
        listener.bind(f"/proc/self/fd/{directory}/{name}")
    finally:
        os.close(directory)
    listener.listen(1024)
    return listener


def listen_again(root: str, name: str) -> tuple[str, socket.socket]:
    """Bind a socket in a root directory that was removed, and is made again.

    Returns:
        Its name, another one if somebody has taken ours; and the socket.

    Raises:
        OSError: It cannot be made.
        SettingsError: Likewise.
    """
    own_directory(root)
    lock = os.open(
        os.path.join(root, f"{name}.lock"),
        os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _somebody_listens(root, name):
            raise BlockingIOError
        return name, listen(root, name)
    except BlockingIOError:
        own = f"{name}-{os.getpid()}"
        return own, listen(root, own)
    finally:
        os.close(lock)


def _somebody_listens(root: str, name: str) -> bool:
    try:
        wire.connect(root, name, 1).close()
    except wire.NOBODY:
        return False
    except OSError:  # that cannot be known
        pass
    return True


def watch_removals(root: str) -> int:
    """Have SIGIO sent to us whenever something in the root directory is removed.

    This is dnotify, of which the standard library has all that it takes; inotify it has not.

    Returns:
        The descriptor that it lasts as long as.

    Raises:
        OSError: It cannot be watched.
    """
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(directory, fcntl.F_NOTIFY, fcntl.DN_DELETE | fcntl.DN_MULTISHOT)
    except BaseException:
        os.close(directory)
        raise
    return directory
