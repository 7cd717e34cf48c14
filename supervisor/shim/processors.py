"""The processors of a container: its creator's, as with a program of srun's.

crun from 1.25 on, and runc from 1.2.7 and 1.3.1 on, give it all processors of its control group,
whatever they may use themselves. What Slurm or a launcher of MPI has bound, it has bound by that.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any


def bind(pid: int, processors: "Collection[int]") -> None:
    """Bind a process, whose program has not started yet, to these processors.

    Args:
        processors: The processors; none: leave it as it is.
    """
    try:
        if processors and os.sched_getaffinity(pid) != set(processors):
            os.sched_setaffinity(pid, processors)
    except OSError:
        pass  # it has ended, is somebody else's, or its control group has none of them


def bind_exec(process: "dict[str, Any]", processors: "Collection[int]") -> None:
    """Bind one more program in a container to these processors.

    Older runtimes do not read it, and pass on their own.
    """
    process["execCPUAffinity"] = {"final": ",".join(map(str, sorted(processors)))}
