"""Where slurmstepd mounts the directory of a step."""

import pytest

from scrun.settings.slurm.versions import SlurmVersion, features
from scrun.supervisor.engines.slurm.job import spool_mount

OLD, MIDDLE, NEW = (22, 5), (24, 11), (26, 5)


@pytest.mark.parametrize(
    ("version", "pattern", "directory", "nodes", "where"),
    [
        (OLD, None, "/s/slurmd", "n1", ""),
        (OLD, "/dev/slurm", "/s/slurmd", "n1", ""),
        (MIDDLE, None, "/s/slurmd", "n1", "/var/run/slurm"),
        (MIDDLE, "/dev/slurm", "/s/slurmd", "n1", "/dev/slurm"),
        (NEW, None, None, "n1", "/var/spool/slurmd"),
        (NEW, None, "/s/slurmd", "n[1-2]", "/s/slurmd"),
        (NEW, None, "/s/slurmd/%n", "n1", "/s/slurmd/n1"),
        (NEW, None, "/s/slurmd/%n", "n1,n2", "/s/slurmd"),
        (NEW, None, "/s/slurmd.%h", "n1", ""),  # it would hide all of /s
        (NEW, None, "/s/spool/slurmd.%h", "n1", "/s/spool"),
        (NEW, "/run/slurm/%j.%s", "/s/slurmd", "n1", "/run/slurm"),
        (NEW, "/slurm", "/s/slurmd", "n1", ""),
    ],
)
def test_where(
    version: tuple[int, int], pattern: str | None, directory: str | None, nodes: str, where: str
) -> None:
    conf = {"slurmdspooldir": directory} if directory else {}
    assert spool_mount(features(SlurmVersion(*version)), pattern, conf, nodes) == where
