"""A site that wants an audit, for one process and its children."""

import ctypes
import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
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

    def wanted(self, more: str = "") -> None:
        """Write the site's settings."""
        Path(_PLACE, "scrun.toml").write_text(f'[log]\naudit = "{self.path}"\n{more}')

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
def audited() -> Iterator[Audit]:
    """Be on such a machine while the block runs; only for root, and not in another thread."""
    is_new = not os.path.isdir(_PLACE)
    os.makedirs(_PLACE, exist_ok=True)
    with open("/proc/self/ns/mnt") as before:
        assert apart.new_namespace("/etc")
        try:
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", _PLACE], check=True)
            yield Audit()
        finally:
            subprocess.run(["umount", "--lazy", _PLACE], check=True)
            if is_new:
                os.rmdir(_PLACE)
            # refused once there are threads; all is as before there, too
            ctypes.CDLL(None).setns(before.fileno(), 0)
