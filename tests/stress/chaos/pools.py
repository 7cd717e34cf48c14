"""Containers in the pool `auto`, and the faults of its jobs and nodes. Pure.

Many share a job: what hits that disturbs everybody.
"""

from collections.abc import Sequence

from tests.stress.chaos.faults import ALL, KINDS, NONE, TRAPPED, Fault

POOLED: tuple[Fault, ...] = tuple(
    Fault(
        name=name,
        target="cluster",
        action=name,
        moments=ALL,
        seen=seen,
        ends=ends,
        surely=False,
        refuses=bool(ends),
        engines=("slurm",),
        launches=("shim",),
        kinds=KINDS,
        outage=True,
    )
    for name, seen, ends in (
        (
            "pool-kill",
            "status 122, `job N was cancelled`; those that wait get another job",
            frozenset({122, 125, TRAPPED}),
        ),
        (
            "pool-shims-kill",
            "status 125; the job goes on with another shim",
            frozenset({125}),
        ),
        (
            "node-kill",
            "status 120, `node N failed`; those that wait get another job",
            frozenset({120, 125}),
        ),
        ("node-drain", "nothing: what has a node keeps it", frozenset[int]()),
    )
)
"""What happens to the pool's jobs, and their nodes."""

SETTINGS = (
    'pool = "auto"\npool_max = 3\npool_idle = 2\n'
    '[slurm.pool_node]\ncpus_per_task = 3\njob_name = "{name}"\n'
)
"""The end of `[slurm]` of scrun.toml, by the name of the pool's jobs."""


def in_pool(faults: Sequence[Fault]) -> list[Fault]:
    """Return those of containers in a pool: what hits a job, or all in it, is an outage.

    Its `create` returns while it waits for a node, so nobody waits for a runtime that hangs.
    """
    image = {"image", "converter"}
    return [
        fault
        for fault in faults
        if fault.beside_it == NONE
        and fault.action != "hang"
        and not image & {fault.target, *fault.beside}
    ]
