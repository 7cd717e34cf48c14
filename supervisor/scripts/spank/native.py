"""Finds the lines of plugstack.conf that Slurm's own tools load.

salloc and srun read the same plugstack.conf. Where they find lua.so, they call the scripts
themselves: salloc in the allocator context, srun in the local one. scrun then calls only
slurm_spank_init, to know the options to pass on. Calling the other functions would do everything
twice.
"""

import os
import shutil
from collections.abc import Sequence

from scrun.settings.file.load import Settings
from scrun.settings.slurm_conf import find_slurm_conf, read_slurm_conf
from scrun.settings.spank.plugstack import StackScript

Native = frozenset[str]
"""Lines, as their file and number."""

_USUAL = (
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/lib/slurm-wlm",
    "/usr/local/lib/slurm",
    "/usr/lib/x86_64-linux-gnu/slurm-wlm",
    "/usr/lib/aarch64-linux-gnu/slurm-wlm",
)


def loaded_by_slurm(scripts: Sequence[StackScript], settings: Settings) -> Native:
    """Return the lines that Slurm's tools on this machine load. Call this in a thread."""
    conf = find_slurm_conf(settings)
    path = read_slurm_conf(conf).get("plugindir", "") if conf else ""
    directories = [entry for entry in path.split(":") if entry] or _directories(settings)
    lines = {script.line.where: script.line.plugin for script in scripts}
    return frozenset(
        where
        for where, plugin in lines.items()
        if any(os.path.exists(os.path.join(directory, plugin)) for directory in directories)
    )


def _directories(settings: Settings) -> list[str]:
    """Return the usual plugin directories: beside Slurm's tools, and those of packages."""
    salloc = shutil.which("salloc", path=settings.slurm.bin or None)
    if salloc is None:
        return [*_USUAL]
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(salloc)))
    return [os.path.join(prefix, library, "slurm") for library in ("lib", "lib64")] + [*_USUAL]
