"""What containers have used, and could use: as records and Slurm say it."""

import pytest
from hypothesis import given as holds
from hypothesis import strategies as st

from scrun.model.usage import USAGE, Usage, given, of_tasks, read_usage

_ONE = Usage(user=1.0, system=0.5, memory=100, memory_of="step", wall=2.0)
_OTHER = Usage(user=2.0, system=0.5, memory=50, memory_of="process", wall=1.0)


def test_of_several_tasks() -> None:
    whole = Usage(user=3.0, system=1.0, memory=150, memory_of="process", wall=2.0)
    assert of_tasks([_ONE, _OTHER]) == whole
    assert whole.cpu == 4.0
    assert of_tasks([_ONE, None]) is None
    assert of_tasks([]) is None
    limited = Usage(user=1.0, limit=9)
    assert of_tasks([limited]) == limited
    assert of_tasks([limited, limited]) == Usage(user=2.0)  # it is one for both


def test_what_is_not_known_of_one_is_not_known() -> None:
    found = of_tasks([_ONE, Usage(memory=5, memory_of="cgroup")])
    assert found == Usage(memory=105, memory_of="step", wall=2.0)
    assert found.cpu is None


@pytest.mark.parametrize(
    ("variables", "resources", "expected"),
    [
        ({}, {}, (None, None)),
        ({"SLURM_JOB_CPUS_PER_NODE": "4"}, {}, (4, None)),
        (
            {"SLURM_JOB_CPUS_PER_NODE": "4(x2),1", "SLURM_MEM_PER_NODE": "100"},
            {},
            (9, 300 << 20),
        ),
        ({"SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_MEM_PER_CPU": "100"}, {}, (4, 400 << 20)),
        ({"SLURM_JOB_CPUS_PER_NODE": "4", "SLURM_MEM_PER_NODE": "0"}, {}, (4, None)),
        (
            {"SLURM_JOB_CPUS_PER_NODE": "4"},
            {"cpu": {"quota": 150_000, "period": 100_000}, "memory": {"limit": 1 << 30}},
            (1.5, 1 << 30),
        ),
        ({}, {"cpu": None, "memory": {"limit": -1}}, (None, None)),
        ({}, {"cpu": {"quota": -1, "period": 1}, "memory": {"limit": "1"}}, (None, None)),
    ],
)
def test_what_it_could_use(
    variables: dict[str, str],
    resources: dict[str, object],
    expected: tuple[float | None, int | None],
) -> None:
    assert given(variables, resources) == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"user":-1}', '{"memory":1e400}', '{"memory_of":"me"}', "\udcff"]
)
def test_an_annotation_that_says_nothing(text: str) -> None:
    assert read_usage({USAGE: text}) is None
    assert read_usage({}) is None


def test_one_of_a_later_version() -> None:
    assert read_usage({USAGE: '{"user":1.5,"energy":7}'}) == Usage(user=1.5)


@holds(st.text(), st.text())
def test_any_variables(cpus: str, memory: str) -> None:
    variables = {"SLURM_JOB_CPUS_PER_NODE": cpus, "SLURM_MEM_PER_NODE": memory}
    found = given(variables, {})
    assert all(figure is None or figure > 0 for figure in found)
