"""A site that wants an audit, for one process and its children."""

import ctypes
import fcntl
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.harness import apart

_PLACE = "/etc/scrun"


class Audit:
    """The file of the audit, and the settings of the site."""

    def __init__(self) -> None:
        self.path = Path(_PLACE, "audit.json")
        self.path.touch()
        self.path.chmod(0o666)
        self.wanted()

    def wanted(self, more: str = "", target: str = "") -> None:
        """Write the site's settings; `target` is what gets the lines, if it is not our file."""
        text = f'[log]\naudit = "{target or self.path}"\n{more}'
        Path(_PLACE, "scrun.toml").write_text(text)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()]

    def odd(self) -> list[str]:
        """Say which containers have not exactly one beginning and one end."""
        told = self.lines()
        counted = Counter((line["container"], line["created"], line["event"]) for line in told)
        each = dict.fromkeys((line["container"], line["created"]) for line in told)
        numbers = {key: (counted[*key, "create"], counted[*key, "end"]) for key in each}
        return [f"{key}: {found}" for key, found in numbers.items() if found != (1, 1)]


@contextmanager
def audited(*covered: str) -> Iterator[Audit]:
    """Be on such a machine while the block runs; only for root, and not in another thread.

    Mounts at `covered` are nobody else's.
    """
    with _place(), open("/proc/self/ns/mnt") as before:
        assert apart.new_namespace("/etc", *covered)
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", _PLACE], check=True)
            yield Audit()
        finally:
            subprocess.run(["umount", "--lazy", _PLACE], check=True)
            # refused once there are threads; all is as before there, too
            ctypes.CDLL(None).setns(before.fileno(), 0)


@contextmanager
def _place() -> Iterator[None]:
    """Have the directory; who makes it or not, the last run that uses it removes it.

    Not before: the kernel takes away what other namespaces have mounted on it.
    """
    etc = os.stat("/etc")
    with open(f"/run/lock/scrun-audited-{etc.st_dev}-{etc.st_ino}", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if not os.path.isdir(_PLACE):
            lock.write("new")
            lock.flush()
            os.makedirs(_PLACE, exist_ok=True)
        try:
            yield
        finally:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock.seek(0)
                if lock.read():
                    os.rmdir(_PLACE)
                    lock.truncate(0)
