"""The supervisor's socket in the root directory."""

import fcntl
import os
import socket

from scrun.core.own_directory import own_directory
from scrun.protocol import wire


def listen(root: str, name: str) -> socket.socket:
    """Bind the socket. Our starter holds the lock of the name, so an old socket is dead.

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
    """Make a removed root directory again, and bind a socket in it.

    Returns:
        The socket's name, a new one if another supervisor has ours; and the socket.

    Raises:
        OSError: They cannot be made.
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
    except OSError:  # unknown: assume so
        pass
    return True


def watch_removals(root: str) -> int:
    """Request SIGIO for each removal in the root directory.

    This uses dnotify: the standard library supports it, but not inotify.

    Returns:
        A descriptor; closing it ends the watch.

    Raises:
        OSError: The directory cannot be watched.
    """
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(directory, fcntl.F_NOTIFY, fcntl.DN_DELETE | fcntl.DN_MULTISHOT)
    except BaseException:
        os.close(directory)
        raise
    return directory
