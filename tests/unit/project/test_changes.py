"""A file that tests change for a while."""

from contextlib import ExitStack
from itertools import permutations
from pathlib import Path

import pytest

from tests.harness.changes import ChangedFile


@pytest.mark.parametrize("order", [*permutations(range(3))])
def test_changes_end_in_any_order(tmp_path: Path, order: tuple[int, ...]) -> None:
    file = ChangedFile(tmp_path / "conf")
    file.path.write_text("a")
    begun = {one: file.begin(lambda text, one=one: f"{text}{one}") for one in range(3)}  # type: ignore[misc]
    assert file.path.read_text() == "a012"
    for one in order:
        file.end(begun.pop(one))
        assert file.path.read_text() == "a" + "".join(str(number) for number in begun)


def test_the_same_change_twice(tmp_path: Path) -> None:
    file = ChangedFile(tmp_path / "conf")
    file.path.write_text("a")

    def change(text: str | None) -> str:
        return f"{text}b"

    with file.changed(change):
        with file.changed(change):
            assert file.path.read_text() == "abb"
        assert file.path.read_text() == "ab"
    assert file.path.read_text() == "a"


def test_a_file_that_is_not_there_or_is_to_go(tmp_path: Path) -> None:
    file = ChangedFile(tmp_path / "conf")
    first, second = ExitStack(), ExitStack()
    first.enter_context(file.changed(lambda _: "new"))
    second.enter_context(file.changed(lambda _: None))
    assert not file.path.exists()
    first.close()
    assert not file.path.exists()
    first.enter_context(file.changed(lambda _: "newer"))
    second.close()
    assert file.path.read_text() == "newer"
    first.close()
    assert not file.path.exists()


def test_what_stays(tmp_path: Path) -> None:
    file = ChangedFile(tmp_path / "conf")
    file.path.write_text("a")
    with file.changed(lambda text: f"{text}1"):
        file.change_for_good(lambda text: f"{text}b")
        assert file.path.read_text() == "ab1"
    assert file.path.read_text() == "ab"
    file.change_for_good(lambda _: "c")
    assert file.path.read_text() == "c"
