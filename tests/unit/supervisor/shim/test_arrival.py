"""Where a shim looks for its supervisor."""

from collections.abc import Mapping

import pytest

from scrun.supervisor.shim.arrival import hosts


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, ["login1", "127.0.0.1"]),
        ({"SLURM_LAUNCH_NODE_IPADDR": ""}, ["login1", "127.0.0.1"]),
        ({"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1"}, ["10.0.0.1", "127.0.0.1"]),
        (
            {"SLURM_LAUNCH_NODE_IPADDR": "10.0.0.1", "SLURM_SRUN_COMM_HOST": "10.0.0.1"},
            ["10.0.0.1", "127.0.0.1"],
        ),
        (
            {"SLURM_SRUN_COMM_HOST": "10.1.0.1", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"},
            ["127.0.0.1", "10.1.0.1"],
        ),
    ],
)
def test_where_it_connects(environment: Mapping[str, str], found: list[str]) -> None:
    assert hosts(environment, "login1") == found
