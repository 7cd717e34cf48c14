"""The line about what a container has used."""

import pytest

from scrun.cli.columns import usage_line
from scrun.model.usage import Usage


@pytest.mark.parametrize(
    ("usage", "line"),
    [
        (
            Usage(user=11.0, system=1.0, memory=3 << 29, wall=4.0, cpus=8.0, limit=64 << 30),
            "used: 4.0 s, 12.0 s of processor time (3.0 of 8 processors), "
            "1.5GiB of memory (of 64.0GiB)",
        ),
        (
            Usage(user=0.0, system=0.0, memory=1 << 20, wall=0.0, cpus=1.0),
            "used: 0.0 s, 0.0 s of processor time, 1.0MiB of memory",
        ),
        (
            Usage(memory=1 << 20, wall=1.0, cpus=1.5, limit=1 << 30),
            "used: 1.0 s, 1.0MiB of memory (of 1.0GiB)",
        ),
        (Usage(user=1.0, system=1.0), "used: 2.0 s of processor time"),
    ],
)
def test_only_what_is_known(usage: Usage, line: str) -> None:
    assert usage_line(usage) == line
