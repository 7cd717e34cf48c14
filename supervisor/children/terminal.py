"""The size of a container's terminal, known to the container from its first moment."""

import fcntl
import os
import struct
import termios

import msgspec


def give_a_size(terminal: int) -> None:
    """Give a terminal that has none a size: srun (22.05) passes no change on otherwise."""
    if os.get_terminal_size(terminal) == (0, 0):
        size = struct.pack("HHHH", 24, 80, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)  # ioctl_tty(2)


def write_size(bundle: str, terminal: int) -> None:
    """Write the terminal's size into the config.json of a staged bundle.

    crun and runc copy it to the container's terminal only after the process has begun, so that
    one which asks at once finds 0 by 0.
    """
    columns, rows = os.get_terminal_size(terminal)
    with open(os.path.join(bundle, "config.json"), "rb+") as file:
        config = msgspec.json.decode(file.read())
        config["process"]["consoleSize"] = {"height": rows, "width": columns}
        file.seek(0)
        file.write(msgspec.json.encode(config))
        file.truncate()
