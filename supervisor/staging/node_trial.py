"""Tries on a node whether an overlay can be mounted there from the same layers."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from scrun.supervisor.staging.overlay_options import Unusable, marks

if TYPE_CHECKING:
    from collections.abc import Sequence

TRIAL = ("trial", "trial/upper", "trial/work", "trial/rootfs")
"""Directories that it needs."""

_MOUNTED = "mounted"
# mount(8) as of 2.39 gives the kernel the options one by one, which may have 256 bytes then
_TRY = """\
export LIBMOUNT_FORCE_MOUNT2=always
cd %s && stat -L -c '%%i %%Y' %s && %s /bin/sh -c 'mount -t overlay overlay -o "$1" "$2"' \
sh %s trial/rootfs && echo %s
"""
_COMPLAINT = re.compile(r"(mount|unshare|stat|(/bin/)?sh): ")
_ROOTLESS = "unshare --user --map-root-user --mount"
_AS_ROOT = "unshare --mount"


class Trial:
    """A script for a node, and what to make of its answer.

    Attributes:
        script: For `sh -c`.
    """

    def __init__(
        self, directory: str, lower: str, layers: Sequence[str], *, rootless: bool
    ) -> None:
        """Write the script; reads the layers' inodes here.

        Args:
            directory: Has `l/N`, links to the layers, and the directories TRIAL.
            lower: The option that names the lower directories.
            layers: The layers.
            rootless: Whether the container has rights in a user namespace only.
        """
        options = [lower, "upperdir=trial/upper", "workdir=trial/work", *marks(users=rootless)]
        self.script = _TRY % (
            shlex.quote(directory),
            " ".join(f"l/{number}" for number in range(len(layers))),
            _ROOTLESS if rootless else _AS_ROOT,
            shlex.quote(",".join(options)),
            _MOUNTED,
        )
        found = map(os.stat, layers)
        lines = [f"{status.st_ino} {status.st_mtime_ns // 10**9}" for status in found]
        self._expected = [*lines, _MOUNTED]

    def judge(self, answer: str) -> None:
        """Look at what the script printed.

        Raises:
            Unusable: The node has other layers, or could not mount them.
        """
        lines = answer.splitlines()
        if lines[-len(self._expected) :] == self._expected:  # a site's prolog may write before
            return
        if said := next(filter(_COMPLAINT.match, lines), ""):
            raise Unusable(f"cannot be mounted on the node: {said}")
        raise Unusable("are others on the node")
