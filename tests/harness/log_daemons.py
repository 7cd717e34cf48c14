"""rsyslogd and systemd-journald, for one process and its children.

Use them where mounts at `PLACES` are nobody else's.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.harness.daemons import program
from tests.harness.processes import run
from tests.harness.program import output_of
from tests.harness.wait import wait_until

PLACES = ("/dev", "/run")

_RSYSLOG = """\
global(workDirectory="{base}")
module(load="imuxsock")
template(name="whole" type="string" string="%syslogtag%%msg%\\n")
action(type="omfile" file="{base}/log" template="whole")
"""
_JOURNALD = "/lib/systemd/systemd-journald"
_OF_JOURNALD = "/run/systemd/journal/socket"
_AUDIT = "scrun-audit"


class LogDaemon:
    """One of them.

    Attributes:
        text: Returns all that it has got.
        lines: Returns the lines of the audit in that.
    """

    def __init__(
        self,
        argv: Sequence[str],
        socket: str,
        text: Callable[[], str],
        messages: Callable[[], Sequence[str]],
    ) -> None:
        self.text = text
        self.lines: Callable[[], list[dict[str, Any]]] = lambda: [*map(json.loads, messages())]
        null = subprocess.DEVNULL
        self._process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null)
        wait_until(f"{argv[0]} listens", Path(socket).is_socket)

    def end(self) -> None:
        self._process.terminate()
        self._process.wait(20)


@contextmanager
def rsyslogd() -> Iterator[LogDaemon]:
    """Have one listen on /dev/log, as it is configured by itself."""
    with tempfile.TemporaryDirectory(prefix="scrun-rsyslog-") as base, _own_dev(base):
        conf, log = Path(base, "conf"), Path(base, "log")
        conf.write_text(_RSYSLOG.format(base=base))
        log.touch()

        def messages() -> list[str]:
            lines = log.read_text().splitlines(keepends=True)
            return [
                line.partition(": ")[2]
                for line in lines
                if line.startswith(f"{_AUDIT}[") and line.endswith("\n")
            ]

        argv = [program("rsyslogd"), "-n", "-f", str(conf), "-i", f"{base}/pid"]
        daemon = LogDaemon(argv, "/dev/log", log.read_text, messages)
        try:
            yield daemon
        finally:
            daemon.end()


@contextmanager
def journald() -> Iterator[LogDaemon]:
    """Have one with its own /run/systemd; what it has, journalctl reads."""
    with _mounted("/run/systemd"), _mounted("/run/log"):
        os.mkdir("/run/log/journal")
        read = ["journalctl", "--quiet", "--directory", "/run/log/journal", "--output", "json"]
        read += ["--all", "--no-pager"]

        def messages() -> list[str]:
            found = map(json.loads, output_of([*read, f"SYSLOG_IDENTIFIER={_AUDIT}"]).splitlines())
            return [str(line["MESSAGE"]) for line in found]

        daemon = LogDaemon([_JOURNALD], _OF_JOURNALD, lambda: output_of(read), messages)
        try:
            yield daemon
        finally:
            daemon.end()


DAEMONS = {"syslog": rsyslogd, "journald": journald}


@contextmanager
def _mounted(place: str) -> Iterator[None]:
    """Have a file system in memory there."""
    os.makedirs(place, exist_ok=True)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
    try:
        yield
    finally:
        run("umount", "--lazy", place)


@contextmanager
def _own_dev(base: str) -> Iterator[None]:
    """Have a /dev in which others see no socket."""
    new = Path(base, "dev")
    with _mounted(str(new)):
        entries = [*os.scandir("/dev")]
        folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        files = [entry.path for entry in entries if entry.name not in (*folders, "log")]
        run("cp", "--archive", *files, str(new))
        for name in folders:
            (new / name).mkdir()
            run("mount", "--rbind", f"/dev/{name}", str(new / name))
        run("mount", "--rbind", str(new), "/dev")
        try:
            yield
        finally:
            run("umount", "--lazy", "/dev")
