"""Contracts are called: nobody asks which of them an object matches."""

import ast
from collections.abc import Iterator

from tests import CHECKOUT


def contracts() -> Iterator[str]:
    """The interfaces in `supervisor/contracts`, which others implement."""
    for path in (CHECKOUT / "supervisor" / "contracts").glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and {"ABC", "Protocol"} & {*map(_name, node.bases)}:
                yield node.name


def _name(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0]


def asked() -> Iterator[str]:
    """What isinstance is asked for, anywhere in the supervisor."""
    for path in (CHECKOUT / "supervisor").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
                yield from (of.id for of in ast.walk(node.args[1]) if isinstance(of, ast.Name))


def test_nobody_asks_for_a_contract() -> None:
    known = {*contracts()}
    assert {"Engine", "Job", "Session", "Stager", "HeldAllocation", "FirstProcess"} <= known
    assert not known & {*asked()}
