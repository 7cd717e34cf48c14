"""The part of attrs that trio and outcome use, for a supervisor that imports them.

attrs writes the methods of each class as text and compiles them, and imports what examines code.
With it the imports of a supervisor take a quarter longer (measured: 117 and 93 ms). Whatever of
attrs is not here raises an error, and the real one is used (`scrun.supervisor.imports.libraries`).

The classes behave as those of attrs: a test makes each of trio's and outcome's with both.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from reprlib import recursive_repr
from types import ModuleType
from typing import Any

_CLASS_VARIABLES = ("ClassVar", "typing.ClassVar", "t.ClassVar", "_t.ClassVar")
_POST = "__attrs_post_init__"
_ABSENT: Any = object()
_ATTRIBUTES = "__attrs_attrs__"
_MANY = 20  # to compile takes as long as 50 calls, and most classes have few instances
_ORDER = ("lt", "le", "gt", "ge")


class FrozenInstanceError(AttributeError):
    """Somebody changes an instance of a frozen class."""


class Factory:
    """Makes the default value of an attribute, for each instance one."""

    __slots__ = ("make",)

    def __init__(self, factory: Callable[[], object]) -> None:
        """See the class."""
        self.make = factory


class Attribute:
    """One attribute of the instances of a class."""

    __slots__ = ("alias", "default", "eq", "init", "kw_only", "name", "repr", "validator")

    def __init__(
        self,
        *,
        default: object = _ABSENT,
        factory: Callable[[], object] | None = None,
        validator: Callable[[object, "Attribute", Any], None] | None = None,
        repr: bool | Callable[[Any], str] = True,  # noqa: A002  (as attrs has it)
        eq: bool = True,
        init: bool = True,
        kw_only: bool | None = None,
        alias: str | None = None,
    ) -> None:
        """See `attrs.field`; without its other options."""
        self.default = default if factory is None else Factory(factory)
        self.validator = validator
        self.repr, self.eq, self.init = repr, eq, init
        self.kw_only, self.alias = kw_only, alias
        self.name = ""

    def value(self) -> object:
        """Return a default value."""
        return self.default.make() if type(self.default) is Factory else self.default


def define(cls: type | None = None, **options: bool) -> object:
    """See `attrs.define`."""
    if cls is None:
        return lambda cls: define(cls, **options)
    return _made(cls, _annotated(cls), **{"slots": True, **options})


def frozen(cls: type | None = None, **options: bool) -> object:
    """See `attrs.frozen`."""
    return define(cls, **{**options, "frozen": True})


def evolve(instance: object, /, **changes: object) -> object:
    """See `attrs.evolve`."""
    make: Callable[..., object] = type(instance)
    taken = [one for one in getattr(instance, _ATTRIBUTES) if one.init]
    return make(**{one.alias: getattr(instance, one.name) for one in taken} | changes)


def _define_of_old(**options: bool) -> Callable[[type], type]:
    """See `attr.s`."""

    def decorate(cls: type) -> type:
        own = {name: it for name, it in vars(cls).items() if isinstance(it, Attribute)}
        return _made(cls, own, order=True, detect=False, **options)

    return decorate


def instance_of(kind: type) -> Callable[[object, Attribute, Any], None]:
    """See `attr.validators.instance_of`."""

    def check(_: object, attribute: Attribute, value: object) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"'{attribute.name}' must be {kind!r}, not {value!r}")

    return check


def modules() -> dict[str, ModuleType]:
    """Return what stands for the modules `attrs` and `attr`."""
    new, old, validators = (ModuleType(name) for name in ("attrs", "attr", "attr.validators"))
    vars(new).update(
        define=define, frozen=frozen, field=Attribute, Factory=Factory, evolve=evolve
    )  # fmt: skip
    vars(validators).update(instance_of=instance_of)
    vars(old).update(s=_define_of_old, ib=Attribute, validators=validators)
    return {"attrs": new, "attr": old}


def _annotated(cls: type) -> dict[str, Attribute]:
    """Return a class's attributes: all that are annotated."""
    own = {}
    for name, annotation in cls.__annotations__.items():
        if not isinstance(annotation, str):
            raise NotImplementedError("an annotation that is evaluated")
        if annotation.startswith(_CLASS_VARIABLES):
            continue
        given = vars(cls).get(name, _ABSENT)
        own[name] = given if isinstance(given, Attribute) else Attribute(default=given)
    if any(isinstance(given, Attribute) and name not in own for name, given in vars(cls).items()):
        raise NotImplementedError("an attribute without an annotation")
    return own


def _made(
    cls: type,
    own: dict[str, Attribute],
    *,
    frozen: bool = False,
    eq: bool = True,
    order: bool = False,
    repr: bool = True,  # noqa: A002  (as attrs has it)
    init: bool = True,
    slots: bool = False,
    kw_only: bool = False,
    detect: bool = True,
) -> type:
    """Return a class with the methods that its attributes ask for.

    Args:
        cls: The class.
        own: Its own attributes, without those of its bases.
        frozen: Whether nobody may change an instance.
        eq: Whether two instances are equal that have the same values.
        order: Whether those values put them in an order.
        repr: Whether `repr` shows the values.
        init: Whether the values can be given.
        slots: Whether instances have room for these attributes only.
        kw_only: Whether the values have to be given by name.
        detect: Whether a method stays that the class has.
    """
    is_error = issubclass(cls, BaseException)
    unusual = ("__attrs_pre_init__", "__getattribute__", "__getstate__", "__attrs_own_setattr__")
    if any(name in vars(cls) for name in unusual) or (is_error and (frozen or eq)):
        raise NotImplementedError(f"a class like {cls.__qualname__}")
    for name, attribute in own.items():
        attribute.name = name
        attribute.alias = attribute.alias or name.lstrip("_")
        attribute.kw_only = kw_only if attribute.kw_only is None else attribute.kw_only
    inherited: dict[str, Attribute] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited |= {one.name: one for one in vars(base).get(_ATTRIBUTES, ())}
    every = [*(one for one in inherited.values() if one.name not in own), *own.values()]
    methods: dict[str, Any] = {_ATTRIBUTES: tuple(every)}

    def add(name: str, method: object) -> None:
        if not (detect and name in vars(cls)):
            methods[name] = method

    if init:
        add("__init__", _init(cls.__name__, every, frozen=frozen, post=hasattr(cls, _POST)))
    if repr:
        add("__repr__", _repr([one for one in every if one.repr]))
    if eq:
        compared = [one.name for one in every if one.eq]
        if not (detect and "__eq__" in vars(cls)):
            methods["__eq__"], methods["__ne__"] = _equal(compared)
            methods["__hash__"] = _hash(cls.__qualname__, compared) if frozen else None
        if order:
            methods |= {f"__{name}__": _compared(name, compared) for name in _ORDER}
    if frozen:
        methods["__setattr__"] = methods["__delattr__"] = _refuse
    if slots:
        return _with_slots(cls, own, methods)
    for name in own:
        if name in vars(cls):
            delattr(cls, name)
    for name, method in methods.items():
        setattr(cls, name, method)
    return cls


def _with_slots(cls: type, own: Mapping[str, object], methods: dict[str, object]) -> type:
    """Return a class like another one, with slots."""
    left_out = {*own, "__dict__", "__weakref__"}
    content = {name: it for name, it in vars(cls).items() if name not in left_out}
    content |= methods
    known = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    names = [name for name in own if name not in known]
    if not any(hasattr(base, "__weakref__") for base in cls.__bases__):
        names.append("__weakref__")
    content["__slots__"] = tuple(names)
    content["__qualname__"] = cls.__qualname__
    made: type = type(cls)(cls.__name__, cls.__bases__, content)
    for item in vars(made).values():  # `super()` and `__class__` in methods
        if isinstance(item, (classmethod, staticmethod)):
            functions: Sequence[object] = (item.__func__,)
        elif isinstance(item, property):
            functions = (item.fget, item.fset, item.fdel)
        else:
            functions = (item,)
        for function in functions:
            for cell in getattr(function, "__closure__", None) or ():
                try:
                    if cell.cell_contents is cls:
                        cell.cell_contents = made
                except ValueError:  # it is empty
                    pass
    return made


def _init(name: str, every: Sequence[Attribute], *, frozen: bool, post: bool) -> object:
    """Return the method `__init__`; of a class with many instances, it becomes a faster one."""
    by_place = [one for one in every if one.init and not one.kw_only]
    by_name = [one for one in every if one.init and one.kw_only]
    others = [one for one in every if not one.init and one.default is not _ABSENT]
    checked = [one for one in every if one.validator is not None]
    put = object.__setattr__
    calls = 0

    def __init__(self: object, *given: object, **named: object) -> None:
        nonlocal calls
        calls += 1
        if calls == _MANY:
            fast = _compiled(every, frozen=frozen, post=post)
            for cls in type(self).__mro__:
                if vars(cls).get("__init__") is __init__:
                    cls.__init__ = fast  # type: ignore[misc]
        for one, value in zip(by_place, given, strict=False):
            put(self, one.name, value)
        for one in (*by_place[len(given) :], *by_name):
            if one.alias in named:
                put(self, one.name, named.pop(one.alias))
            elif one.default is _ABSENT:
                raise TypeError(f"{name}.__init__() missing a required argument: {one.alias!r}")
            else:
                put(self, one.name, one.value())
        if named or len(given) > len(by_place):
            raise TypeError(f"{name}.__init__() got an unexpected argument: {named or given}")
        for one in others:
            put(self, one.name, one.value())
        for one in checked:
            assert one.validator is not None
            one.validator(self, one, getattr(self, one.name))
        if post:
            getattr(self, _POST)()
        if isinstance(self, BaseException):
            BaseException.__init__(self, *(getattr(self, one.name) for one in every if one.init))

    return __init__


def _compiled(every: Sequence[Attribute], *, frozen: bool, post: bool) -> Callable[..., None]:
    """Return the method `__init__` as attrs writes it."""
    names: dict[str, object] = {
        "put": object.__setattr__,
        "ABSENT": _ABSENT,
        "base": BaseException,
    }
    places: list[str] = []
    keywords: list[str] = []
    lines: list[str] = []
    checks: list[str] = []
    for number, one in enumerate(every):
        value, default = str(one.alias), ""
        if type(one.default) is Factory:
            names[f"make_{number}"] = one.default.make
            default = "=ABSENT"
            made = f"make_{number}()"
            value = f"{made} if {value} is ABSENT else {value}" if one.init else made
        elif one.default is not _ABSENT:
            names[f"default_{number}"] = one.default
            default = f"=default_{number}"
            value = value if one.init else f"default_{number}"
        elif not one.init:
            continue
        if one.init:
            (keywords if one.kw_only else places).append(f"{one.alias}{default}")
        lines.append(
            f"put(self, {one.name!r}, {value})" if frozen else f"self.{one.name} = {value}"
        )
        if one.validator is not None:
            names |= {f"check_{number}": one.validator, f"attribute_{number}": one}
            checks.append(f"check_{number}(self, attribute_{number}, self.{one.name})")
    lines += [*checks, *[f"self.{_POST}()"] * post]
    taken = ", ".join(f"self.{one.name}" for one in every if one.init)
    lines.append(f"if isinstance(self, base): base.__init__(self, {taken})")
    arguments = ", ".join(["self", *places, *["*"] * bool(keywords), *keywords])
    text = "\n    ".join([f"def __init__({arguments}):", *lines])
    exec(text, names)  # of names in a class's source, as attrs does
    made_init: Callable[..., None] = names["__init__"]  # type: ignore[assignment]
    return made_init


def _repr(shown: Sequence[Attribute]) -> object:
    """Return the method `__repr__`."""

    @recursive_repr("...")
    def __repr__(self: object) -> str:
        texts = []
        for one in shown:
            value = getattr(self, one.name, _ABSENT)
            how = repr if one.repr is True else one.repr
            assert callable(how)
            texts.append(f"{one.name}={'NOTHING' if value is _ABSENT else how(value)}")
        return f"{type(self).__qualname__.rsplit('>.', 1)[-1]}({', '.join(texts)})"

    return __repr__


def _equal(names: Sequence[str]) -> tuple[object, object]:
    """Return the methods `__eq__` and `__ne__`."""

    def __eq__(self: object, other: object) -> object:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __ne__(self: object, other: object) -> object:
        equal = __eq__(self, other)
        return equal if equal is NotImplemented else not equal

    return __eq__, __ne__


def _compared(name: str, names: Sequence[str]) -> object:
    """Return one of the methods that compare."""
    compare: Callable[[object, object], object] = getattr(operator, name)

    def method(self: object, other: object) -> object:
        if other.__class__ is not self.__class__:
            return NotImplemented
        one, two = (tuple(getattr(it, name) for name in names) for it in (self, other))
        return compare(one, two)

    return method


def _hash(kind: str, names: Sequence[str]) -> object:
    """Return the method `__hash__`."""

    def __hash__(self: object) -> int:
        return hash((kind, *(getattr(self, name) for name in names)))

    return __hash__


def _refuse(self: object, name: str, *_: object) -> None:
    raise FrozenInstanceError(f"{type(self).__qualname__}.{name}")
