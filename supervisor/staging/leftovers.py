"""Staged bundles in a scratch directory that are in no record any more are removed.

The record went with /run, at a restart of the machine or the end of a session, and the scratch
directory did not.
"""

import os

from scrun.core.errors import StagingError
from scrun.supervisor.core.identity import is_dead
from scrun.supervisor.core.names import learn
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.staging.owner import beginning, read_owner, scratch_of
from scrun.supervisor.staging.place import clean


def remove_leftovers(scratch: str, root: str) -> None:
    """Remove the staged bundles of dead supervisors of this machine and root directory.

    What containers have changed in copies is brought back first. Blocks: the file system is the
    site's.

    Args:
        scratch: The setting of that name.
        root: The root directory.
    """
    learn()
    directory = scratch_of(scratch)
    try:
        names = [name for name in os.listdir(directory) if name.startswith(beginning(root))]
    except OSError:
        return
    for path in (os.path.join(directory, name) for name in names):
        owner = read_owner(path)
        if owner is None or not is_dead(owner.supervisor):
            continue
        log.warning("%s: of container %s, whose supervisor is dead: removed", path, owner.id)
        try:
            clean(path, owner.rootfs)
        except (StagingError, OSError) as error:  # it stays, for the next one to try
            fault(path, error)
