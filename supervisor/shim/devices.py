"""Devices of our own, in place of the machine's: /dev/null as a standard stream of a runtime.

A runtime gives the standard streams to the program's user, so that it can open them by name, and
some give away a device as well: crun before 1.24 in a user namespace, runc 1.1.3 and 1.1.4 in an
`exec`, and all versions of runc /dev/zero. If root calls it, the machine's own device has another
owner from then on.
"""

import os
import stat

_DEVICES = "/dev"  # there a device can be opened, whatever `nodev` says of other places


def own_device(path: str, directory: str) -> int:
    """Open a device for reading and writing: a node of our own, which has no name any more.

    Only root needs one. Where root may make none, it is that of a user namespace, to whom the
    machine's does not belong, and the machine's is opened.

    Args:
        directory: Where to make the node, if devices can be opened there.

    Raises:
        OSError: No descriptor is left, or there is no such device.
    """
    if os.geteuid() == 0:
        number = os.stat(path).st_rdev
        for folder in (directory, _DEVICES):
            name = os.path.join(folder, f".scrun-{os.getpid()}")
            try:
                os.mknod(name, stat.S_IFCHR | 0o600, number)
            except OSError:  # a read-only one; or a dead process' of this number
                continue
            try:
                os.chmod(name, 0o666)  # whatever the umask
                return os.open(name, os.O_RDWR)
            except OSError:  # `nodev`
                pass
            finally:
                os.unlink(name)
    return os.open(path, os.O_RDWR)
