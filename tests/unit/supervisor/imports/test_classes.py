"""What stands for attrs makes the classes that attrs makes."""

import inspect
import subprocess
import sys
from types import ModuleType
from typing import Any

import attrs
import pytest

from scrun.supervisor.imports import classes
from tests import CHECKOUT

LIGHT = classes.modules()
OLD = pytest.importorskip("attr")
PAIRS = [(attrs, OLD), (LIGHT["attrs"], LIGHT["attr"])]

SOURCE = """
from __future__ import annotations
import typing
from typing import ClassVar

class Meta(type):
    pass

@attrs.define
class Plain:
    one: int
    _two: str = "two"
    three: list[int] = attrs.Factory(list)
    four: int = attrs.field(default=4, kw_only=True, repr=False)
    five: dict[str, int] = attrs.field(factory=dict, init=False, eq=False)
    six: int = attrs.field(init=False)
    count: ClassVar[int] = 7
    def twice(self): return self.one * 2

@attrs.define(eq=False)
class Parent:
    a: int
    b: int = attrs.field(default=2, alias="bee")
    def __attrs_post_init__(self): self.b += 1
    def who(self): return __class__.__name__

@attrs.define(eq=False)
class Child(Parent):
    c: int = 3
    def who(self): return "child of " + super().who()

@attrs.frozen
class Frozen:
    x: float
    y: float = 0.0

@attrs.frozen(eq=False, slots=False)
class Loose:
    x: int
    y: int = 5

@attrs.define(eq=False, repr=False, slots=False)
class WithDict:
    x: int = 1
    y: set[int] = attrs.field(factory=set)

@attrs.define(eq=False, kw_only=True)
class Failure(BaseException):
    why: str
    who: str | None = None
    def __str__(self): return "failed"

@attrs.define(repr=False, eq=False)
class OfMeta(metaclass=Meta):
    z: int = attrs.field(default=9, init=False)

@attrs.define
class Own:
    v: int
    def __repr__(self): return "own"
    def __eq__(self, other): return True
    __hash__ = object.__hash__

@attrs.frozen
class Hex:
    data: bytes = attrs.field(repr=lambda data: data.hex())

@attr.s(repr=False, init=False, slots=True)
class Outcome:
    _taken: bool = attr.ib(default=False, eq=False, init=False)

@attr.s(frozen=True, repr=False, slots=True)
class Value(Outcome):
    value: int = attr.ib()

@attr.s(frozen=True, repr=False, slots=True)
class Error(Outcome):
    error: BaseException = attr.ib(validator=attr.validators.instance_of(BaseException))
"""


def made(new: ModuleType, old: ModuleType) -> dict[str, Any]:
    names: dict[str, Any] = {"attrs": new, "attr": old, "__name__": "made"}
    exec(SOURCE, names)
    return names


CALLS = (
    "Plain(1)", "Plain(1, 'b', [3], four=5)", "Plain(one=1, two='x')", "Plain()",
    "Plain(1, 2, 3, 4)", "Plain(1, _two=3)", "Plain(1, five={})", "Plain(1, one=2)",
    "Plain(1).twice()", "Plain.count", "Plain(1) == Plain(1)", "Plain(1) != Plain(2)",
    "Plain(1) == 1", "Plain(1) < Plain(2)", "hash(Plain(1))", "Plain(1).six",
    "setattr(Plain(1), 'other', 1)", "Plain(1).three is Plain(1).three", "Parent(1).b",
    "Parent(1, 5).b", "Parent(1, bee=6).b", "Parent(1, b=6).b", "Child(1, 2, 4)",
    "Child(1).who()", "Child.__slots__", "Parent.__slots__", "Child(1).__dict__",
    "Child(1) == Child(1)", "Frozen(1, 2)", "Frozen(1) == Frozen(1)",
    "hash(Frozen(1)) == hash(Frozen(1))", "setattr(Frozen(1), 'x', 2)",
    "delattr(Frozen(1), 'x')", "{Frozen(1): 2}[Frozen(1)]", "Loose(1)",
    "setattr(Loose(1), 'x', 2)", "Loose(1) == Loose(1)", "sorted(vars(Loose(1)).items())",
    "WithDict(3).x", "vars(WithDict(3))", "hasattr(WithDict, 'x')",
    "WithDict.__hash__ is object.__hash__", "Failure(why='x').args", "repr(Failure(why='x'))",
    "str(Failure(why='x'))", "Failure('x')", "Failure(why='x').who", "type(OfMeta).__name__",
    "OfMeta().z", "OfMeta(3)", "repr(Own(1))", "Own(1) == 3", "Hex(b'ab')",
    "Hex(data=b'ab').data", "Value(3) == Value(3)", "Value(3) < Value(4)",
    "Value(3) >= Value(4)", "Value(3) < 4", "hash(Value(3)) == hash(Value(3))",
    "Value(3)._taken", "setattr(Value(3), 'value', 1)", "Error(3)",
    "str(Error(ValueError()).error)", "Value.__slots__", "Outcome.__hash__", "Value()",
    "[name for name in ('__weakref__',) if hasattr(Plain(1), name)]",
    "attrs.evolve(Frozen(1), y=4)", "attrs.evolve(Plain(1), two='w')", "Plain.__qualname__",
)  # fmt: skip


@pytest.mark.parametrize("many", [1, 30])
@pytest.mark.parametrize("call", CALLS)
def test_what_they_do(call: str, many: int) -> None:
    """The first time, and when there have been many instances."""

    def result(names: dict[str, Any]) -> object:
        try:
            found = eval(call, names)
        except Exception as error:
            return next(it for it in type(error).__mro__ if it.__module__ == "builtins")
        return repr(found).split(" at 0x")[0].replace("attr.exceptions", "")

    one, two = (made(*pair) for pair in PAIRS)
    for _ in range(many):
        assert result(one) == result(two)


def test_many_instances_are_made_faster() -> None:
    names = made(*PAIRS[1])
    kinds = [names[name] for name in ("Plain", "Child", "Frozen", "Loose", "Value", "Own")]
    before = [kind.__init__ for kind in kinds]
    for kind in kinds:
        for _ in range(30):
            kind(1)
    for kind, first in zip(kinds, before, strict=True):
        assert kind.__init__ is not first
        assert "given" not in inspect.signature(kind).parameters


def test_one_that_shows_itself() -> None:
    for pair in PAIRS:
        plain = made(*pair)["Plain"](1)
        plain.six = plain.three = plain
        assert repr(plain) == "Plain(one=1, _two='two', three=..., five={}, six=...)"


@pytest.mark.parametrize(
    "source",
    [
        "attrs.define(weakref_slot=False)(type('C', (), {}))",
        "attrs.field(converter=int)",
        "attrs.field(hash=True)",
        "attrs.Factory(list, takes_self=True)",
        "attrs.asdict(1)",
        "attr.attrib()",
        "attrs.define(type('C', (), {'x': attrs.field()}))",
        "attrs.define(type('C', (Exception,), {}))",
        "attrs.define(type('C', (), {'__annotations__': {'x': int}}))",
        "attrs.define(type('C', (), {'__attrs_pre_init__': 1}))",
    ],
)
def test_what_is_not_here_is_refused(source: str) -> None:
    """Then the real one is used."""
    names = {"attrs": LIGHT["attrs"], "attr": LIGHT["attr"]}
    with pytest.raises((AttributeError, TypeError, NotImplementedError)):
        eval(source, dict(names))


_EACH = """
import gc, sys
sys.path.insert(0, {checkout!r})
{first}
import trio, outcome, trio._dtls
METHODS = "__init__ __repr__ __eq__ __ne__ __lt__ __hash__ __setattr__ __slots__".split()
found = {{}}
for it in gc.get_objects():
    if isinstance(it, type) and "__attrs_attrs__" in vars(it):
        fields = [(one.name, one.init, bool(one.kw_only), one.alias, bool(one.eq))
                  for one in it.__attrs_attrs__]
        own = [name for name in METHODS if name in vars(it)]
        found[it.__module__ + " " + it.__qualname__] = (
            fields, own, vars(it).get("__slots__"), vars(it).get("__hash__", 0) is None,
            [base.__name__ for base in it.__mro__],
        )
for name in sorted(found):
    if name.startswith(("trio", "outcome")):
        print(name, found[name])
"""


def test_each_class_of_trio() -> None:
    """It has the same attributes, methods and slots."""
    light = (
        "from scrun.supervisor.imports.libraries import import_libraries; import_libraries()\n"
        "assert 'attr' not in sys.modules and 'attrs' not in sys.modules"
    )
    texts = []
    for first in ("", light):
        program = _EACH.format(checkout=str(CHECKOUT), first=first)
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        texts.append(done.stdout.splitlines())
    assert len(texts[0]) > 40
    assert texts[0] == texts[1]
