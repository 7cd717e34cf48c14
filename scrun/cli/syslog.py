"""Messages to syslog, without ever waiting for it.

By hand, because what there is waits: syslog(3), under Python's module `syslog`, blocks in send(2)
when the daemon does not read, and in the supervisor's loop that stops all containers.
`SysLogHandler` does so too, connects when it is made, and brings `logging`, which nothing else
here needs.
"""

import errno
import os
import socket
import time

DEV_LOG = "/dev/log"

_DAEMON = 3 << 3
_SEVERITIES = {"fatal": 2, "error": 3, "warning": 4, "info": 6, "verbose": 6}
_DEBUG = 7
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
# RFC 3164 has 1024, which would cut paths and messages of Slurm; all daemons of today take this
_LONGEST = 8192


class Syslog:
    """A way to the daemon. There need not be one: it may come later, and go, and come back."""

    def __init__(self, path: str, name: str = "scrun") -> None:
        """Do nothing yet.

        Args:
            path: The daemon's socket, usually /dev/log.
            name: Who is speaking.
        """
        self._path = path
        self._ident = f"{name}[{os.getpid()}]"
        self._stream: socket.socket | None = None

    def send(self, level: str, text: str) -> None:
        """Send a message, a datagram for each of its lines; what cannot be sent now is lost."""
        for packet in packets(level, text, time.localtime(), self._ident):
            try:
                self._send(packet)
            except OSError:
                self._hang_up()  # no daemon, or one that has too much to do

    def _send(self, packet: bytes) -> None:
        if self._stream is None:
            # not connected: a daemon that is started anew has another socket of the same name
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                datagrams.setblocking(False)
                try:
                    datagrams.sendto(packet, self._path)
                    return
                except OSError as error:
                    if error.errno != errno.EPROTOTYPE:
                        raise
            self._stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._stream.setblocking(False)
            self._stream.connect(self._path)
        if self._stream.send(packet + b"\0") <= len(packet):
            self._hang_up()  # or the rest would be taken for the beginning of the next one

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        """Close what is open; a message after that opens it again."""
        self._hang_up()


def packets(level: str, text: str, when: time.struct_time, ident: str) -> list[bytes]:
    """Write a message as syslog(3) sends it: RFC 3164, without the host's name.

    Levels are Slurm's or runc's. Control characters are written out, so that a line cannot
    pretend to be two.
    """
    priority = _DAEMON | _SEVERITIES.get(level, _DEBUG)
    # by hand: strftime's names of months are those of the locale
    stamp = f"{_MONTHS[when.tm_mon - 1]} {when.tm_mday:2} {time.strftime('%H:%M:%S', when)}"
    head = f"<{priority}>{stamp} {ident}: "
    return [
        (head + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)).encode(
            errors="backslashreplace"
        )[:_LONGEST]
        for line in text.splitlines() or [""]
    ]
