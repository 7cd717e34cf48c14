"""Removes staged bundles and shared volumes that no record has any more.

A restart of the machine, or the end of a session, removes the records in /run, but not the scratch
directory.
"""

import os

from scrun.core.errors import StagingError
from scrun.model.identity import is_dead
from scrun.supervisor.core.names import learn
from scrun.supervisor.core.ownership import is_owned
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.staging.owner import beginning, read_owner, scratch_of, volumes_in
from scrun.supervisor.staging.stage_out import clean
from scrun.supervisor.staging.volumes import tidy


def remove_leftovers(scratch: str | None, root: str) -> None:
    """Remove the staged bundles and volumes of dead supervisors of this machine and root.

    Changes are brought back first. Blocks on the site's file system.

    Args:
        scratch: The setting `scratch`; None: the records have the staged bundles.
    """
    learn()
    directory = root if scratch is None else scratch_of(scratch)
    for line in tidy(volumes_in(directory, root)):
        log.warning("%s", line)
    if scratch is None:
        return
    try:
        names = [name for name in os.listdir(directory) if name.startswith(beginning(root))]
    except OSError:
        return
    for path in (os.path.join(directory, name) for name in names):
        owner = read_owner(path)
        if owner is None or not is_dead(owner.supervisor):
            continue
        if is_owned(os.path.join(owner.root, owner.id)):  # a successor of its has it
            continue
        log.warning("%s: of container %s, whose supervisor is dead: removed", path, owner.id)
        try:
            clean(path, owner.rootfs)
        except (StagingError, OSError) as error:  # the next call tries again
            fault(path, error)
