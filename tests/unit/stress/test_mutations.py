"""The table of tools/mutate: each fault can be put in, and its tests are there."""

import pytest

from tests import CHECKOUT
from tests.stress.mutations.mutation import Mutation, broken
from tests.stress.mutations.table import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_fault_can_be_put_in(mutation: Mutation) -> None:
    path = CHECKOUT / mutation.file
    text = broken(path.read_text(), mutation)
    compile(text, mutation.file, "exec")
    for test in mutation.tests:
        file, _, function = test.partition("::")
        assert f"def {function}" in (CHECKOUT / file).read_text()


def test_names_are_apart() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize("text", ["", "a a"])
def test_what_is_not_there_once_is_not_replaced(text: str) -> None:
    with pytest.raises(ValueError, match="times"):
        broken(text, Mutation("x", "y", "a", "b", ()))
