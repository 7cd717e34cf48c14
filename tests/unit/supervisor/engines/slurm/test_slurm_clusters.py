"""Jobs go to one cluster, and a name of another one is refused."""

import pytest

from scrun.core.errors import SettingsError
from scrun.supervisor.engines.slurm.tools import CLUSTERS, check_cluster, other_cluster

INSIDE = {"SLURM_JOB_ID": "7", "SLURM_WORKING_CLUSTER": "far:10.0.0.1:6817:9728:109"}


@pytest.mark.parametrize(
    ("wanted", "environment", "expected"),
    [
        ({}, {}, ("", "")),
        ({CLUSTERS: "far"}, {}, (CLUSTERS, "far")),
        ({CLUSTERS: "far,near"}, INSIDE, (CLUSTERS, "far,near")),
        ({}, INSIDE, ("SLURM_WORKING_CLUSTER", "far")),
        ({}, {**INSIDE, "SLURM_WORKING_CLUSTER": ""}, ("", "")),
        ({}, {"SLURM_WORKING_CLUSTER": "far:1:2:3"}, ("", "")),
    ],
)
def test_which_is_named(
    wanted: dict[str, str], environment: dict[str, str], expected: tuple[str, str]
) -> None:
    assert other_cluster(wanted, environment) == expected


def test_another_one_is_refused() -> None:
    check_cluster(CLUSTERS, "Near", {"clustername": "near"})
    with pytest.raises(SettingsError, match=r"SCRUN_CLUSTERS=far: .* only to near; name its"):
        check_cluster(CLUSTERS, "far", {"clustername": "near"})
    with pytest.raises(SettingsError, match=r"only to that of its slurm\.conf"):
        check_cluster(CLUSTERS, "far", {})
