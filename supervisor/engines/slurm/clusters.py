"""The cluster of a job: that of the slurm.conf in use.

`salloc --clusters=NAME` asks slurmdbd where NAME is, and tells srun by SLURM_WORKING_CLUSTER,
which squeue does not look at. A job there would look lost from here, and another job may have its
number here. With the slurm.conf of NAME every call of every tool goes there, also those of a
supervisor that cleans up later.
"""

from collections.abc import Mapping

from scrun.core.errors import SettingsError

CLUSTERS = "SCRUN_CLUSTERS"
_WORKING = "SLURM_WORKING_CLUSTER"
_REMEDY = "name its slurm.conf: with -f, as SLURM_CONF, or as `conf` in [slurm] of scrun.toml"


def other_cluster(wanted: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable that names a cluster, and the name; or ("", "").

    Args:
        wanted: The requests.
        environment: The caller's. salloc sets the variable for a job in another cluster.
    """
    if name := wanted.get(CLUSTERS, ""):
        return CLUSTERS, name
    if "SLURM_JOB_ID" in environment and (found := environment.get(_WORKING)):
        return _WORKING, found.partition(":")[0]
    return "", ""


def check_cluster(variable: str, name: str, conf: Mapping[str, str]) -> None:
    """Refuse a cluster that is not that of the slurm.conf in use.

    Args:
        variable: What names it.
        name: Its name.
        conf: That slurm.conf.

    Raises:
        SettingsError: It is another one.
    """
    own = conf.get("clustername", "")
    if name.lower() != own.lower():
        here = f"only to {own}" if own else "only to that of its slurm.conf"
        raise SettingsError(f"{variable}={name}: scrun sends jobs {here}; {_REMEDY}")
