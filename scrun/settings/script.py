"""Finds the scrun.lua that stages a container's bundle, if any."""

import os
import stat
from typing import NamedTuple

from scrun.core.errors import SettingsError, why
from scrun.settings.file.load import Settings
from scrun.settings.slurm_conf import (
    check_trusted,
    find_slurm_conf,
    read_slurm_conf,
    slurm_user,
)

NAME = "scrun.lua"
USUAL = "/etc/slurm/scrun.lua"

_REMEDY = "set `script` in the section [lua] of scrun.toml to another script, or to none"


def find_script(settings: Settings, engine: str, usual: str = USUAL) -> str | None:
    """Find the script, or None. Call this in a thread: the script's file system may hang.

    One that the settings name comes first, and has to exist; `none` disables scripts. Engines
    other than Slurm use a script only if the settings name it, or the stager `lua`. `usual` is the
    path to try after the directory of the slurm.conf in use.
    """
    named = settings.lua.script
    wanted = settings.stager == "lua" or (
        settings.stager == "auto" and (named is not None or engine == "slurm")
    )
    if named == "none" or not wanted:
        return None
    if named is not None:
        path = named
    else:
        conf = find_slurm_conf(settings)
        paths = [os.path.join(os.path.dirname(conf), NAME)] if conf else []
        found = next((path for path in (*paths, usual) if os.path.lexists(path)), None)
        if found is None:
            return None
        path = found
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise SettingsError(f"{path}: is not a file; {_REMEDY}")
    except OSError as error:
        raise SettingsError(f"{path}: {why(error, _REMEDY)}") from error
    check_trusted(path, slurm_user(find_slurm_conf(settings)))
    return path


class ScriptSite(NamedTuple):
    """What a worker needs of the site: the cluster, or "", and further owners of the script."""

    cluster: str = ""
    trusted: tuple[int, ...] = ()


def site_of(settings: Settings) -> ScriptSite:
    """Read the slurm.conf in use. Call this in a thread."""
    conf = find_slurm_conf(settings)
    try:
        cluster = read_slurm_conf(conf).get("clustername", "") if conf else ""
    except SettingsError:
        cluster = ""
    return ScriptSite(cluster, slurm_user(conf))
