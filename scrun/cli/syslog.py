"""Send messages to syslog without ever blocking.

Python's module `syslog` uses syslog(3), which blocks in send(2) when the daemon does not read; in
the supervisor's event loop that would stop all containers. `SysLogHandler` blocks too, connects
when it is created, and imports `logging`, which nothing else here needs.
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
# RFC 3164 allows 1024, which would cut paths and messages of Slurm; today's daemons take this
_LONGEST = 8192


class Syslog:
    """A connection to the syslog daemon, which may start later, or be restarted."""

    def __init__(self, path: str, name: str = "scrun") -> None:
        self._path = path
        self._ident = f"{name}[{os.getpid()}]"
        self._stream: socket.socket | None = None

    def send(self, level: str, text: str) -> None:
        """Send each line of a message as a datagram; a line that cannot be sent now is lost."""
        for packet in packets(level, text, time.localtime(), self._ident):
            try:
                self._send(packet)
            except OSError:
                self._hang_up()  # no daemon, or a busy one

    def _send(self, packet: bytes) -> None:
        if self._stream is None:
            # not connected: a restarted daemon has another socket of the same name
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
            self._hang_up()  # else the next message would continue this incomplete one

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def close(self) -> None:
        self._hang_up()


def packets(level: str, text: str, when: time.struct_time, ident: str) -> list[bytes]:
    """Format a message as syslog(3) does (RFC 3164, without a host), escaped: it is one line."""
    priority = _DAEMON | _SEVERITIES.get(level, _DEBUG)
    # strftime would use the locale's names of months
    stamp = f"{_MONTHS[when.tm_mon - 1]} {when.tm_mday:2} {time.strftime('%H:%M:%S', when)}"
    head = f"<{priority}>{stamp} {ident}: "
    return [
        (head + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)).encode(
            errors="backslashreplace"
        )[:_LONGEST]
        for line in text.splitlines() or [""]
    ]
