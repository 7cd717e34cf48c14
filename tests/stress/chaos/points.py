"""Named points of the supervisor's code at which it dies, is told to end, or waits.

Windows of microseconds are not hit by chance. So these containers have a scrun whose supervisor is
started by a program of ours (`started.py`): it wraps one function of the product before that is
used, as the file ROOT.point says, and then is the supervisor.
"""

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from tests import CHECKOUT
from tests.harness.installation import Installation

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

_STARTED = Path(__file__).with_name("started.py")
_LOOKS = 0.05

POINTS = {
    "record-made": ("scrun.supervisor.containers.records:make_record", "after"),
    "record-removed": ("scrun.supervisor.containers.records:remove_record", "before"),
    "record-gone": ("scrun.supervisor.containers.records:remove_record", "after"),
    "noted": ("scrun.supervisor.containers.ledger:Ledger.note", "after"),
    "job-known": ("scrun.supervisor.containers.ledger:Ledger.job_is_known", "before"),
    "granted": ("scrun.supervisor.engines.slurm.allocation:_environment", "before"),
    "staged": ("scrun.supervisor.staging.staged_bundle:stage_in", "after"),
    "unstaged": ("scrun.supervisor.staging.staged_bundle:stage_out", "before"),
    "volume-copied": ("scrun.supervisor.staging.volumes:_fill", "before"),
    "volume-back": ("scrun.supervisor.staging.volumes:_settle", "before"),
    "file-back": ("scrun.supervisor.staging.bring_back:_replaced", "before"),
    "files-back": ("scrun.supervisor.staging.volumes:_remove", "before"),
    "anchor-ended": ("scrun.supervisor.containers.anchors:Anchor.end", "after"),
    "name-left": ("scrun.supervisor.daemon.server:Server._withdraw", "after"),
    "listening": ("scrun.supervisor.nodes.dialing:listen", "after"),
    "shim-ready": ("scrun.supervisor.engines.slurm.shim_step:ShimStep._get_ready", "after"),
    "created-there": ("scrun.supervisor.engines.slurm.shim_job:ShimJob._create", "after"),
    "child-started": ("scrun.supervisor.children.processes:Child.__init__", "after"),
}
"""The points by their names: a function of the product, and the side of its call."""

OF_SHIMS = ("listening", "shim-ready", "created-there")
"""Those that only containers of a shim come to."""

OF_VOLUMES = ("volume-copied", "volume-back", "file-back", "files-back")
"""Those that only containers on a cluster come to, and not those that a script stages."""

REPEATED = ("noted", "child-started", "file-back")
"""Those whose functions are called several times for a container."""


def installation() -> Installation:
    """Make an installation whose supervisor stops at points; the caller closes it."""
    made = Installation()
    made.own_copies(CHECKOUT)
    supervisor = made.site / "scrun" / "supervisor"
    os.rename(supervisor / "__main__.py", supervisor / "product_main.py")
    shutil.copy(_STARTED, supervisor / "__main__.py")
    return made


def prepare(root: str, point: str, action: str, seconds: float, call: int) -> None:
    """Write down what is to happen in the supervisors of a root directory.

    Args:
        root: It.
        point: Which of `POINTS`.
        action: "kill" or "term", a signal which it sends itself, "delay", or "secret": strangers
            connect to where it listens.
        seconds: How long a delay is; the more, the more strangers.
        call: At which call of the function, from 1.
    """
    function, side = POINTS[point]
    order = {
        "function": function,
        "side": side,
        "action": action.upper() if action in ("kill", "term") else action,
        "seconds": seconds,
        "call": call,
        "reached": f"{root}.reached",
    }
    Path(f"{root}.point").write_text(json.dumps(order))


async def notice(container: "Container") -> None:
    """Wait until the point was reached."""
    while not reached(container.where.root):
        await trio.sleep(_LOOKS)
    container.hit(f"{container.plan.fault.name}: reached")


def reached(root: str) -> bool:
    """Tell whether the point was reached."""
    return os.path.exists(f"{root}.reached")


def forget(root: str) -> list[str]:
    """Remove the root directory of a container that is over, and return what was left in it."""
    try:
        left = [name for name in os.listdir(root) if name[0] != "@" or name.startswith("@tmp")]
    except FileNotFoundError:
        left = []
    for path in (f"{root}.point", f"{root}.reached"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return left
