"""In which surroundings Slurm's tools work."""

import pytest

from scrun.core.paths import OUTSIDE
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv
from scrun.supervisor.engines.slurm.tools import Tools, remedy

TOOLS = Tools("/bin/salloc", ("/bin/srun",), "/bin/scancel", None, ())


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_ID",
        "SLURM_NTASKS",
        "SLURM_CONF",
        "SLURMD_NODENAME",
        "SALLOC_PARTITION",
        "SBATCH_PARTITION",
        "SRUN_CONTAINER",
        "SCANCEL_INTERACTIVE",
        "SQUEUE_PARTITION",
        "SACCT_FORMAT",
    ],
)
def test_options_of_the_callers_own_are_not_ours(name: str) -> None:
    """Within a batch job they describe that job."""
    found = TOOLS.child_env(ChildEnv({name: "x", "PATH": "/p", "HOME": "/h", "MY_SLURM_X": "y"}))
    assert found.environment == {"PATH": "/p", "HOME": "/h", "MY_SLURM_X": "y"}


def test_what_they_need() -> None:
    tools = Tools("a", ("b",), "c", "/etc/slurm.conf", ("unshare",), debug_flags="Steps")
    found = tools.child_env(ChildEnv({"SLURM_CONF": "/other"}, umask=0o077))
    assert found.environment == {
        "PATH": SYSTEM_PATH,
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_DEBUG_FLAGS": "Steps",
    }
    assert (found.umask, found.prefix) == (0o077, ("unshare",))


LOST = "Unable to contact slurm controller (connect failure)"
KIT = {"ROOTLESSKIT_STATE_DIR": "/run/user/1000/dockerd-rootless"}


def test_only_rootlesskit_hides_it() -> None:
    assert "`scrun outside`" in remedy(LOST, KIT)
    assert remedy("Requested node configuration is not available", KIT) == ""
    assert remedy(LOST, {}) == ""
    assert remedy(LOST, {**KIT, OUTSIDE: "/run/user/1000/scrun-outside-1"}) == ""
