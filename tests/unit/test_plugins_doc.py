"""docs/howto/plugins.md goes through Slurm's plugin API, and shows the example."""

import re

import pytest

from tests.harness.documents import PROJECT, missing, named_tests, rows

TEXT = (PROJECT / "docs" / "howto" / "plugins.md").read_text()
ROWS = rows("howto/plugins.md")

SECTIONS = (
    "Overview", "Identification", "Versioning", "Data objects", "API functions", "Thread safety",
    "Runtime support", "Performance",
)  # fmt: skip
STRUCTURES = (
    "slurm_job_info_t", "job_step_info_t", "priority_factors_object_t", "job_step_pids_t",
    "slurm_step_layout_t", "slurm_step_launch_params_t", "node_info_t", "reserve_info_t",
    "partition_info_t", "slurm_step_layout_req_t", "slurm_step_ctx_params_t",
)  # fmt: skip


def test_every_test_that_is_named_is_there() -> None:
    named = named_tests(TEXT)
    assert len(named) > 30
    assert missing(named) == []


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_of_the_document_has_rows_with_tests(section: str) -> None:
    found = [names for first, names in ROWS if first.startswith(section)]
    assert found
    assert all(found)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_every_structure_of_the_document_has_a_row(structure: str) -> None:
    assert any(f"`{structure}`" in first for first, _ in ROWS)


def test_the_example_is_the_one_that_the_tests_install() -> None:
    project = (PROJECT / "docs" / "examples" / "plugin" / "pyproject.toml").read_text()
    for line in re.findall(r'^    ("?engine/queue"? = .*)$', TEXT, re.MULTILINE):
        assert line in project
    assert "(../examples/plugin)" in TEXT
    assert "docs/howto/plugins.md" in (PROJECT / "README.md").read_text()
