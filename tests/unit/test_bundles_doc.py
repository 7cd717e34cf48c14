"""docs/howto/bundles.md goes through the containers guide, and names tests that exist."""

import pytest

from tests.harness.documents import PROJECT, functions, missing, named_tests, rows

TEXT = (PROJECT / "docs" / "howto" / "bundles.md").read_text()
ROWS = [
    row
    for row in rows("howto/bundles.md")
    if row[0] not in ("part of the guide", "what goes wrong")
]

PARTS = (
    "Known limitations", "Prerequisites", "Required software", "OCI runtime configurations",
    "Requesting", "Bundles", "Container support via plugins", "Types",
)  # fmt: skip
TYPES = (
    "Charliecloud", "Docker", "UDOCKER", "rootless Docker", "Kubernetes", "Shifter", "Singularity",
    "ENROOT", "Podman", "Sarus",
)  # fmt: skip


def test_every_test_that_is_named_is_there() -> None:
    named = named_tests(TEXT)
    assert len(named) > 30
    assert missing(named) == []


def test_every_test_of_the_guide_is_named() -> None:
    named = {name.partition("::")[2] for name in named_tests(TEXT)}
    tests = {
        name for name in functions("tests/integration/test_bundles.py") if name.startswith("test_")
    }
    assert tests - named == set()


@pytest.mark.parametrize("part", PARTS)
def test_every_part_of_the_guide_has_rows(part: str) -> None:
    assert [first for first, _ in ROWS if first.startswith(part)]


def test_every_way_to_ask_for_a_container_has_a_test() -> None:
    ways = [names for first, names in ROWS if first.startswith("Requesting: ")]
    assert len(ways) >= 6
    assert all(ways)


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_of_container_has_a_row(kind: str) -> None:
    assert [first for first, _ in ROWS if first.startswith("Types: ") and kind in first]


def test_it_is_linked() -> None:
    assert "docs/howto/bundles.md" in (PROJECT / "README.md").read_text()
