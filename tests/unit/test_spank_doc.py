"""docs/howto/spank.md names tests that exist, and each paragraph of the manual has one."""

import re

import pytest

from scrun.settings.spank.callbacks import CALLBACKS
from tests.harness.documents import PROJECT, functions, missing, named_tests

TEXT = (PROJECT / "docs" / "howto" / "spank.md").read_text()
PARAGRAPHS = TEXT.partition("## The manual, paragraph by paragraph")[2].partition("\n## ")[0]


def test_every_test_that_is_named_is_there() -> None:
    assert len(named_tests(TEXT)) > 50
    assert missing(named_tests(TEXT)) == []


def test_every_paragraph_has_a_test() -> None:
    paragraphs = [line for line in PARAGRAPHS.splitlines() if line.startswith("| ")][1:]
    assert len(paragraphs) > 25
    assert [line for line in paragraphs if not named_tests(line)] == []


@pytest.mark.parametrize("section", ["DESCRIPTION", "CONFIGURATION", "SPANK LUA API", "EXAMPLE"])
def test_every_section_of_the_manual(section: str) -> None:
    assert f"| {section}: " in PARAGRAPHS


def test_every_callback_is_in_the_table_of_phases() -> None:
    for name in CALLBACKS:
        assert re.search(rf"\b{name.removeprefix('slurm_spank_')}\b", TEXT), name


@pytest.mark.parametrize(
    "path",
    ["tests/integration/test_spank.py", "tests/component/test_spank_scripts.py"],
)
def test_what_the_tests_are_about_is_told(path: str) -> None:
    named = {name.partition("::")[2] for name in named_tests(TEXT)}
    tests = {name for name in functions(path) if name.startswith("test_")}
    assert len(tests & named) > 0.6 * len(tests)


def test_it_is_linked() -> None:
    assert "docs/howto/spank.md" in (PROJECT / "README.md").read_text()
