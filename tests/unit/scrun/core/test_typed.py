"""JSON as instances of our classes: msgspec learns a class in one thread at a time."""

import ast
import threading
import time

import msgspec
import pytest

from scrun.core.typed import convert, decode_as
from tests import CHECKOUT


class Slow:
    """Counts who learns at once."""

    now = most = 0

    @property
    def integer(self) -> type[int]:
        """An annotation: msgspec evaluates it when it learns a class."""
        Slow.now += 1
        Slow.most = max(Slow.most, Slow.now)
        time.sleep(0.02)
        Slow.now -= 1
        return int


SLOW = Slow()


class Learnt(msgspec.Struct):
    number: "SLOW.integer"  # type: ignore[name-defined]
    other: "SLOW.integer" = 2  # type: ignore[name-defined]


def test_one_thread_learns_at_a_time() -> None:
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(convert({"number": 1}, Learnt)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [Learnt(1)] * 4
    assert Slow.most == 1


def test_as_msgspec_does() -> None:
    assert decode_as(b'{"number": 3}', Learnt) == Learnt(3)
    assert decode_as('[{"number": 3}]', list[Learnt]) == [Learnt(3)]
    assert convert({"number": "3"}, Learnt, strict=False) == Learnt(3)
    with pytest.raises(msgspec.ValidationError):
        convert({"number": "3"}, Learnt)


def test_nobody_else_has_msgspec_learn() -> None:
    wrong = []
    for place in ("scrun", "supervisor"):
        for path in (CHECKOUT / place).rglob("*.py"):
            if path == CHECKOUT / "scrun/core/typed.py" or path.is_relative_to(
                CHECKOUT / "scrun/supervisor"
            ):
                continue
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "msgspec" in text else ():
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func)
                    typed = [word.arg for word in node.keywords if word.arg == "type"]
                    if name == "msgspec.convert" or (name.startswith("msgspec.json.") and typed):
                        wrong.append(f"{path}:{node.lineno}")
    assert not wrong
