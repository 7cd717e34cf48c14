"""What a record says of a container's usage."""

from types import SimpleNamespace
from typing import Any

import pytest

from scrun.model.usage import Usage
from scrun.supervisor.containers.usage import used


@pytest.mark.parametrize(("asked", "limit"), [({"SLURM_MEM_PER_NODE": "7"}, 7 << 20), ({}, 9)])
def test_a_limit_that_was_asked_for_counts_more_than_that_of_a_group(
    asked: dict[str, str], limit: int
) -> None:
    usage = Usage(user=1.0, wall=2.0, limit=9)
    job: Any = SimpleNamespace(usage=usage, environment={"SLURM_JOB_CPUS_PER_NODE": "1", **asked})
    record: Any = SimpleNamespace(engine="slurm", annotations={})
    found = used(job, record, {})
    assert found == Usage(user=1.0, wall=2.0, cpus=1, limit=limit)
