"""docs/reference/security.md names tests that exist, and every try of another user."""

import pytest

from tests.harness.documents import PROJECT, functions, missing, named_tests

TEXT = (PROJECT / "docs" / "reference" / "security.md").read_text()


def test_every_test_that_is_named_is_there() -> None:
    named = named_tests(TEXT)
    assert len(named) > 40
    assert missing(named) == []


@pytest.mark.parametrize("path", ["tests/integration/test_other_user.py"])
def test_every_try_is_named(path: str) -> None:
    named = {name.partition("::")[2] for name in named_tests(TEXT)}
    tests = {name for name in functions(path) if name.startswith("test_")}
    assert tests - named == set()


def test_it_is_linked() -> None:
    assert "docs/reference/security.md" in (PROJECT / "README.md").read_text()
