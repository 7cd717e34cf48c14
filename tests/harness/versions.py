"""What differs between the versions of Slurm that the tests are run with: measured with each.

Tests that state such a fact ask here. A version that is not in the table is taken to do what the
one before it did, until a test says that it does not.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

from tests.harness.cluster import slurm

Release = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Slurm:
    """A version of Slurm.

    Attributes:
        release: Its number.
        containers_per_node: How many tasks of a container's step a node runs; None is any.
        forces_rootfs: Whether slurmstepd wants `rootfs` in a bundle, so that a script's bundle
            that has none gets another one before it.
        real_terminal: Whether a container's terminal is its controlling one, in its own /dev.
        absolute_program: Whether a container's first process is called by its absolute path,
            because slurmstepd would look a bare name up on the node.
        made_in_root: What is made in a container's root file system to mount the step's directory
            on, in the words of `podman diff`.
        deletes_killed: Whether RunTimeDelete is called for a container whose step was killed; else
            the runtime's state of it stays.
        keeps_what_no_node_has: Whether a job that asks for more processors than a node has stays
            pending; else it is refused.
        debug_is_roots: Whether only root may give srun --slurmd-debug.
        job_container_ids: Whether a job can have its container's id.
        limits_rate: Whether slurmctld limits the requests of a user (rl_enable).
        only_in_help: Requests whose option salloc and srun list, and do not know.
    """

    release: Release
    containers_per_node: int | None
    forces_rootfs: bool
    real_terminal: bool
    absolute_program: bool
    made_in_root: tuple[str, ...]
    deletes_killed: bool
    keeps_what_no_node_has: bool
    debug_is_roots: bool
    job_container_ids: bool
    limits_rate: bool
    only_in_help: tuple[str, ...]

    def called(self, name: str) -> str:
        """The name by which the first process of a container calls a program of /bin."""
        return f"/bin/{name}" if self.absolute_program else name


_TABLE = [
    Slurm(
        (22, 5),
        containers_per_node=1,
        forces_rootfs=True,
        real_terminal=False,
        absolute_program=False,
        made_in_root=(),
        deletes_killed=True,
        keeps_what_no_node_has=True,
        debug_is_roots=False,
        job_container_ids=False,
        limits_rate=False,
        only_in_help=(),
    ),
    Slurm(
        (24, 11),
        containers_per_node=None,
        forces_rootfs=False,
        real_terminal=True,
        absolute_program=True,
        made_in_root=("C /var", "A /var/run", "A /var/run/slurm"),
        deletes_killed=False,
        keeps_what_no_node_has=False,
        debug_is_roots=True,
        job_container_ids=True,
        limits_rate=True,
        only_in_help=("SCRUN_POWER",),
    ),
]
_TABLE.append(replace(_TABLE[-1], release=(26, 5), made_in_root=()))


@cache
def slurm_version() -> Slurm:
    """The version of the cluster of the tests."""
    found = re.search(r"(\d+)\.(\d+)", slurm("srun", "--version"))
    assert found
    release = int(found[1]), int(found[2])
    return [known for known in _TABLE if known.release <= release][-1]
