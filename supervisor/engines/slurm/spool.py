"""Where slurmstepd mounts the directory of a step in the containers that it launches."""

from collections.abc import Mapping

from scrun.settings.slurm.versions import Features

_DEFAULT = "/var/spool/slurmd"  # slurm.conf(5), SlurmdSpoolDir


def spool_mount(
    features: Features, pattern: str | None, conf: Mapping[str, str], nodes: str
) -> str:
    """Return where it does so, or the directory above that all steps have in common; "": nowhere.

    What would hide a whole top-level directory of the container is left out as well.

    Args:
        features: What this version of Slurm can do.
        pattern: MountSpoolDir of oci.conf.
        conf: The settings of slurm.conf, by name in lower case.
        nodes: SLURM_JOB_NODELIST.
    """
    if not features.mounts_spool:
        return ""
    where = pattern or features.spool_mount or conf.get("slurmdspooldir") or _DEFAULT
    if not set(nodes) & set(",["):
        where = where.replace("%n", nodes)
    known = where.partition("%")[0]
    if known != where:
        known = known.rpartition("/")[0]
    return known if known.count("/") > 1 else ""
