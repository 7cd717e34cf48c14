"""Slurm's own scrun, as a caller meets it, to be measured in turn with ours.

Its cluster needs an oci.conf, a scrun.lua, and to be the one of /etc/slurm, where its srun looks
whatever SLURM_CONF says.
"""

import json
import os
import select
import shutil
import tempfile
import time
from pathlib import Path

from tests.stress.bench.stand import Stand

_PROGRAM = "/usr/bin/scrun"
_PATIENCE = 60.0  # in 24.11 some of its anchors never end


class Own:
    """Slurm's own scrun."""

    def __init__(self, stand: Stand) -> None:
        """Prepare a directory for it."""
        self._stand = stand
        self._root = Path(tempfile.mkdtemp(prefix="scrun-bench-", dir="/dev/shm"))
        self._numbers = 0

    def bundle(self, *arguments: str) -> Path:
        """Return a bundle, ready for Slurm, that runs a program of its /bin, as `in_container`."""
        bundle = self._stand.site.base / "b" / f"own-{arguments[0]}"
        shutil.copytree(self._stand.plain, bundle, symlinks=True)
        config = json.loads((bundle / "config.json").read_bytes())
        config["process"]["args"] = [f"/bin/{arguments[0]}", *arguments[1:]]
        (bundle / "config.json").write_text(json.dumps(config))
        return bundle

    def life(self, bundle: Path) -> float:
        """Have a container made, and wait until nothing of it is left; return the seconds."""
        began = time.perf_counter()
        made, anchor = self.create(bundle)
        self._call("start", made)
        self._await(anchor)
        self._call("delete", made)
        return time.perf_counter() - began

    def create(self, bundle: Path) -> tuple[str, int]:
        """Have a container made, which begins to run at once; return its id and its anchor."""
        self._numbers += 1
        name, pid_file = f"own{self._numbers}", self._root / f"pid{self._numbers}"
        self._call("create", "--bundle", str(bundle), "--pid-file", str(pid_file), name)
        return name, int(pid_file.read_text())

    def is_there(self, anchor: int) -> bool:
        """Tell whether an anchor has not ended."""
        with open(f"/proc/{anchor}/stat") as file:  # it is the stand's child, at least a zombie
            return file.read().rpartition(")")[2].split()[0] != "Z"

    def remove(self, name: str, anchor: int) -> None:
        """End a container, if it has not ended."""
        if self.is_there(anchor):
            self._call("kill", name, "KILL")
        self._await(anchor)
        self._call("delete", "--force", name)

    def _await(self, anchor: int) -> None:
        """Wait for an anchor, which is the stand's child now."""
        descriptor = os.pidfd_open(anchor)
        ended = select.select([descriptor], [], [], _PATIENCE)[0]
        os.close(descriptor)
        if not ended:
            raise SystemExit(f"bench: the anchor {anchor} of Slurm's own scrun does not end")
        os.waitpid(anchor, 0)

    def close(self) -> None:
        shutil.rmtree(self._root)

    def _call(self, *words: str) -> None:
        command = [_PROGRAM, "--root", str(self._root), *words]
        with self._stand.with_oci_conf():
            self._stand.succeeds(self._stand.popen(command))
