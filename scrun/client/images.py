"""The caller's store of images, for `run IMAGE` and `image`."""

import os
import subprocess
import sys

from scrun.cli.parse import Parsed
from scrun.client.progress import clear, is_live, show_bar
from scrun.core.errors import SettingsError
from scrun.core.paths import python_code
from scrun.core.progress import Rarely
from scrun.core.trees import remove_whoever_owns_it
from scrun.images.store import Store, path_for
from scrun.pull.get import Request
from scrun.settings.file.load import Settings, load
from scrun.settings.oci_conf.parse import beside
from scrun.settings.script import find_script
from scrun.settings.slurm_conf import find_slurm_conf

_REMOVE = "from scrun.supervisor.staging.id_maps import remove_mapped; remove_mapped(sys.argv[1])"


def open_store(parsed: Parsed) -> Request:
    """Open the caller's store, and remove what killed processes have left there."""
    settings = load(os.environ, parsed.text("config-file"))
    store = Store(path_for(settings, os.environ), discard)
    store.tidy()
    wanted, shown = settings.images, is_live()
    return Request(
        store, wanted.fresh, show_bar if shown else Rarely(_warn), shown, _warn, wanted.also,
        limit=wanted.size << 20,
        mounts=_mounts(settings),
        unpacked=wanted.unpacked_size << 20,
    )  # fmt: skip


def _mounts(settings: Settings) -> bool:
    """Tell whether nodes are likely to mount a user's squashfs file; else it is unpacked later.

    A site's script wants to see the files. Root's would be mounted by the kernel, which is not to
    read what somebody else has made.
    """
    slurm_conf = find_slurm_conf(settings)
    return (
        os.geteuid() != 0
        and settings.engine in ("auto", "slurm")
        and slurm_conf is not None
        and settings.slurm.launch != "container"
        and not os.path.exists(beside(slurm_conf))  # its commands mount none
        and settings.staging.overlay == "mount"
        and settings.stager in ("auto", "builtin")
        and not _has_script(settings)
    )


def _has_script(settings: Settings) -> bool:
    try:
        return find_script(settings, "slurm") is not None
    except SettingsError:  # `create` says what is wrong with it
        return True


def _warn(text: str) -> None:
    clear()
    sys.stderr.write(f"scrun: {text}\n")
    sys.stderr.flush()


def discard(path: str) -> None:
    """Remove a tree of the store, some files of which may belong to subordinate ids."""
    remove_whoever_owns_it(path, _remove_mapped)


def _remove_mapped(path: str) -> None:
    """Have a process of its own do what only the supervisor's code can."""
    subprocess.run(python_code(_REMOVE, path), stdin=subprocess.DEVNULL, check=False)
