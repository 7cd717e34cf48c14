"""Input that is nearly right: documents with one thing wrong, and texts of the right pieces."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

Path = tuple[str | int, ...]

KINDS = (
    "other type", "dropped", "null", "nested", "deep", "twice", "huge integer", "surrogate", "NUL",
    "control characters", "long", "wide", "another member",
)  # fmt: skip


@dataclass(frozen=True)
class Raw:
    """Text of a document that json would not write."""

    text: str


@dataclass(frozen=True)
class Mutated:
    """A document with one thing wrong.

    Attributes:
        text: It.
        place: Where, as errors name it: `process.args[0]`.
        kind: What: one of `KINDS`.
    """

    text: bytes
    place: str
    kind: str

    def __repr__(self) -> str:
        return f"{self.kind} at {self.place}: {self.text[:1000]!r}"


def render(value: object) -> str:
    """Write JSON, with `Raw` parts as they are."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{render(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(render, value)) + "]"
    return json.dumps(value)


def paths(value: object, at: Path = ()) -> Iterator[Path]:
    """Every place in a document but its root."""
    inner: Iterator[tuple[str | int, object]] = iter(())
    if isinstance(value, dict):
        inner = iter(value.items())
    elif isinstance(value, list):
        inner = iter(enumerate(value))
    for key, part in inner:
        yield (*at, key)
        yield from paths(part, (*at, key))


def named(path: Path) -> str:
    """Name a place as errors do."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    return text.removeprefix(".")


def mutate(document: Any, path: Path, kind: str, other: object) -> Mutated:
    """Do one thing to a document.

    Args:
        document: It; not changed.
        path: The place.
        kind: One of `KINDS`.
        other: A value of another type, for "other type", "twice" and "another member".
    """
    changed = json.loads(json.dumps(document))
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    last, old = path[-1], parent[path[-1]]
    text = old if isinstance(old, str) else "x"
    values: dict[str, object] = {
        "other type": other,
        "null": None,
        "nested": {"x": [old]},
        "deep": Raw("[" * 500 + "]" * 500),
        "twice": Raw(f"{render(old)},{json.dumps(last)}:{render(other)}"),
        "huge integer": Raw("1" + "0" * 5000),
        "surrogate": Raw('"\\ud800"'),
        "NUL": text + "\0" + text,
        "control characters": f"\x1b[2J\n\r\x7f\u2028{text}",
        "long": text + "a" * 200_000,
        "wide": Raw("[" + "{}," * 200_000 + "{}]"),
    }
    if kind == "dropped":
        del parent[last]
    elif kind == "another member" and isinstance(old, dict):
        old["x"] = other
        path = (*path, "x")
    elif kind in ("twice", "another member") and isinstance(parent, list):
        parent.insert(int(last), other)
    elif kind == "another member":
        parent["x"] = other
        path = (*path[:-1], "x")
    else:
        parent[last] = values[kind]
    return Mutated(render(changed).encode(), named(path), kind)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from((-1, 2**31, 2**32, 2**63, 2**64, 10**30))
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def mutated(document: Any) -> st.SearchStrategy[Mutated]:
    """Documents with one thing wrong."""
    places = st.sampled_from([*paths(document)])
    return st.builds(mutate, st.just(document), places, st.sampled_from(KINDS), JSON)


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """A content with a piece cut out, put in, or written over."""
    place = st.integers(0, len(content))
    pieces = st.binary(max_size=6) | st.sampled_from(
        (b"\0", b"\n", b"\xff", b'"', b"{", b"[" * 2000, b"9" * 5000, b"\\", b"$(", b"=", b"%")
    )

    def put(start: int, length: int, piece: bytes) -> bytes:
        return content[:start] + piece + content[start + length :]

    return st.builds(put, place, st.integers(0, 8), pieces)


def of_pieces(*pieces: str, most: int = 30) -> st.SearchStrategy[bytes]:
    """Texts of the pieces of a syntax."""
    piece = st.sampled_from(pieces) | st.text(max_size=4)
    return st.lists(piece, max_size=most).map(
        lambda found: "".join(found).encode(errors="surrogatepass")
    )


def splits(content: bytes) -> st.SearchStrategy[list[bytes]]:
    """A stream of these bytes, as it may arrive."""
    places = st.lists(st.integers(0, len(content)), max_size=6).map(sorted)
    return places.map(
        lambda cuts: [
            content[start:end]
            for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)
        ]
    )
