"""Sets the size of a container's terminal before its program starts."""

import fcntl
import os
import struct
import termios

import msgspec

from scrun.oci.config import ConsoleSize

_USUAL = ConsoleSize(height=24, width=80)
_LARGEST = 0xFFFF


def give_a_size(terminal: int, size: ConsoleSize = _USUAL) -> None:
    """Set a terminal's size if it has none: otherwise srun (22.05) passes on no changes."""
    if os.get_terminal_size(terminal) == (0, 0):
        rows, columns = min(size.height, _LARGEST), min(size.width, _LARGEST)
        packed = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, packed)  # ioctl_tty(2)


def write_size(bundle: str, terminal: int) -> None:
    """Write the terminal's size into the config.json of a staged bundle.

    crun and runc set the size of the container's terminal only after the process has started, so
    a program that asks at once would see 0 by 0.
    """
    columns, rows = os.get_terminal_size(terminal)
    with open(os.path.join(bundle, "config.json"), "rb+") as file:
        config = msgspec.json.decode(file.read())
        config["process"]["consoleSize"] = {"height": rows, "width": columns}
        file.seek(0)
        file.write(msgspec.json.encode(config))
        file.truncate()
