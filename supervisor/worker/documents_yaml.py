"""YAML as a tree like JSON's, with PyYAML's scanner, parser and emitter, and different rules.

PyYAML resolves plain words as YAML 1.1: `no` is false, `0o17` a string, `1:30` a number of
seconds. This module uses the core schema of YAML 1.2, as Slurm's and Go's readers do. The reader
works on events, not on PyYAML's nodes. So it limits depth and aliases before they take memory, and
never constructs anything from a tag.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Protocol

import yaml

from scrun.supervisor.worker.documents import DocumentError
from scrun.supervisor.worker.values import MAX_DEPTH, Tree

if TYPE_CHECKING:
    from collections.abc import Iterator

# The number of values that aliases may stand for: nine lines of YAML can mean 9**9 of them.
MAX_ALIASED = 100_000

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_TAG = "tag:yaml.org,2002:"
_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLS = {
    "true": True, "True": True, "TRUE": True,
    "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"([-+]?)\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")

# libyaml's are ten times as fast; not every PyYAML is built with it
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BaseDumper: type = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def parse_yaml(text: str) -> Tree:
    """Parse one document, which has a form in JSON.

    Keys are strings, as in JSON: `1: a` has the key "1". Of equal keys, the last one counts.
    """
    try:
        return _Reader(yaml.parse(text, Loader=_Loader)).read()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "not understood"
        if "nesting depth" in problem:  # libyaml 0.2.6 counts as well, up to the same number
            problem = _TOO_DEEP
        raise DocumentError(_at(mark, problem)) from None
    except yaml.YAMLError as error:
        raise DocumentError(" ".join(str(error).split())) from None


def render_yaml(tree: Tree) -> bytes:
    """Write a document in block style."""
    try:
        text = yaml.dump(
            tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1 << 30,
            default_flow_style=False,
        )  # fmt: skip
        return str(text).encode()
    except UnicodeEncodeError:
        raise DocumentError("half of a surrogate pair cannot be written in YAML") from None


class _Mark(Protocol):
    """The common part of PyYAML's and libyaml's marks, which share no base class."""

    line: int
    column: int


class _Reader:
    """Builds a tree from events, as `yaml.parse` gives them."""

    def __init__(self, events: Iterator[yaml.Event]) -> None:
        self._events = events
        self._anchors: dict[str, tuple[Tree, int] | None] = {}  # the value and its size
        self._count = 0
        self._aliased = 0

    def read(self) -> Tree:
        tree: Tree = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise DocumentError(_at(event.start_mark, "a second document"))
                tree = self._node(next(self._events), 0)
        return tree

    def _node(self, event: yaml.Event, depth: int) -> Tree:
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        before = self._count
        self._count += 1
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        tree: Tree
        if isinstance(event, yaml.ScalarEvent):
            tree = _scalar(event)
            self._count += len(event.value) // 100  # long ones count for more
        elif depth == MAX_DEPTH:
            raise DocumentError(_at(event.start_mark, _TOO_DEEP))
        elif isinstance(event, yaml.SequenceStartEvent):
            _check_tag(event, "seq")
            tree = self._sequence(depth + 1)
        else:
            _check_tag(event, "map")
            tree = self._mapping(depth + 1)
        if event.anchor is not None:
            self._anchors[event.anchor] = tree, self._count - before
        return tree

    def _sequence(self, depth: int) -> list[Tree]:
        items: list[Tree] = []
        for event in self._events:
            if isinstance(event, yaml.SequenceEndEvent):
                break
            items.append(self._node(event, depth))
        return items

    def _mapping(self, depth: int) -> dict[str, Tree]:
        members: dict[str, Tree] = {}
        for event in self._events:
            if isinstance(event, yaml.MappingEndEvent):
                break
            if isinstance(event, yaml.AliasEvent):
                key = self._alias(event)
            elif isinstance(event, yaml.ScalarEvent):
                key = event.value
                if event.anchor is not None:
                    self._anchors[event.anchor] = key, 1
            else:
                key = None
            if not isinstance(key, str):
                raise DocumentError(_at(event.start_mark, "a key that is not a string"))
            members[key] = self._node(next(self._events), depth)
        return members

    def _alias(self, event: yaml.AliasEvent) -> Tree:
        if event.anchor not in self._anchors:
            raise DocumentError(_at(event.start_mark, f"no anchor {event.anchor}"))
        anchored = self._anchors[event.anchor]
        if anchored is None:
            raise DocumentError(_at(event.start_mark, f"{event.anchor} contains itself"))
        tree, size = anchored
        self._count += size
        self._aliased += size
        if self._aliased > MAX_ALIASED:
            problem = f"aliases for more than {MAX_ALIASED} values"
            raise DocumentError(_at(event.start_mark, problem))
        return tree


def _scalar(event: yaml.ScalarEvent) -> Tree:
    text: str = event.value
    if event.implicit[0]:
        return _plain(text)
    if event.implicit[1] or event.tag in (None, _TAG + "str"):
        return text
    value = _plain(text)
    for kind, types in (("null", type(None)), ("bool", bool), ("int", int), ("float", float)):
        if event.tag == _TAG + kind:
            if kind == "float" and type(value) is int:
                return float(value)
            if type(value) is types:
                return value
            raise DocumentError(_at(event.start_mark, f"{text} is not of type {kind}"))
    raise DocumentError(_at(event.start_mark, f"the tag {event.tag} is not known"))


def _plain(text: str) -> Tree:
    """Return the value of a word without quotes, by the core schema of YAML 1.2."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text)
    special = _NO_NUMBER.fullmatch(text)
    if special:
        return math.nan if special[1] is None else float(f"{special[1]}inf")
    return text


def _check_tag(event: yaml.CollectionStartEvent, kind: str) -> None:
    if event.tag not in (None, "!", _TAG + kind):
        raise DocumentError(_at(event.start_mark, f"the tag {event.tag} is not known"))


def _at(mark: _Mark | None, problem: str) -> str:
    if mark is None:
        return problem
    return f"line {mark.line + 1} column {mark.column + 1}: {problem}"


class _Dumper(_BaseDumper):  # type: ignore[misc]  # one of two classes, known at run time
    """Writes trees: no aliases, and quotes wherever YAML 1.1 or 1.2 needs them."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def write_string(self, text: str) -> yaml.ScalarNode:
        """Represent a string; PyYAML itself quotes the words of YAML 1.1."""
        text.encode()  # PyYAML's own emitter would write an escape that libyaml refuses to read
        style = None if isinstance(_plain(text), str) else "'"
        node: yaml.ScalarNode = self.represent_scalar(_TAG + "str", text, style=style)
        return node


_Dumper.add_representer(str, _Dumper.write_string)
