"""The table of tools/mutate: each fault can be put in, and its tests are there."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from scrun.native.build import OPTIONS, compilers, header
from tests import CHECKOUT
from tests.stress.mutations.mutation import Mutation, broken
from tests.stress.mutations.table import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_can_be_put_in(mutation: Mutation) -> None:
    path = CHECKOUT / mutation.file
    text = broken(path.read_text(), mutation)
    if path.suffix == ".py":
        compile(text, mutation.file, "exec")
    else:
        _compile_c(path, text)
    for test in mutation.tests:
        file, _, function = test.partition("::")
        where = CHECKOUT / file
        files = [*where.glob("test_*.py")] if where.is_dir() else [where]
        assert any(f"def {function}" in found.read_text() for found in files)


def _compile_c(path: Path, text: str) -> None:
    """What no compiler takes would be noticed by none of the tests."""
    with tempfile.TemporaryDirectory() as place:
        Path(place, "table.h").write_text(header())
        check = [compilers()[0], *OPTIONS, "-fsyntax-only", "-I", place, "-I", str(path.parent)]
        subprocess.run([*check, "-x", "c", "-"], input=text.encode(), check=True, timeout=60)


def test_names_are_apart() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("text", ["", "a a"])
def test_what_is_not_there_once_is_not_replaced(text: str) -> None:
    with pytest.raises(ValueError, match="times"):
        broken(text, Mutation("x", "y", "a", "b", ()))
