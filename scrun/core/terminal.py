"""A new terminal."""

import posix


def openpty() -> tuple[int, int]:
    """Open a terminal; return its master and its slave.

    Raises:
        OSError: With the device's name, which openpty(3) does not give: "Permission denied" alone
            says nothing to who looks for it on a node.
    """
    try:
        return posix.openpty()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "/dev/ptmx") from None
