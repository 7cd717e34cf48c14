"""docs/manual.md names tests that exist, for every section of the manual page."""

from tests.harness import documents

SECTIONS = (
    "SYNOPSIS", "DESCRIPTION", "RETURN VALUE", "GLOBAL OPTIONS", "CREATE OPTIONS",
    "DELETE OPTIONS", "INPUT ENVIRONMENT VARIABLES", "OUTPUT ENVIRONMENT VARIABLES",
    "JOB ENVIRONMENT VARIABLES", "scrun.lua", "EXAMPLE", "SIGNALS",
)  # fmt: skip


ROWS = documents.rows("manual.md")


def test_every_test_that_is_named_is_there() -> None:
    named = [name for _, names in ROWS for name in names]
    assert len(named) > 60
    assert documents.missing(named) == []


def test_every_row_has_a_test() -> None:
    headings = ("section", "there")
    assert [first for first, names in ROWS if not names and first not in headings] == []


def test_every_section_of_the_manual_has_a_row() -> None:
    firsts = [first for first, _ in ROWS]
    assert [
        section for section in SECTIONS if not any(f.startswith(section) for f in firsts)
    ] == []
