"""JSON by the parts of `json` that are written in C.

The package itself brings re, enum and collections, which take as long as the rest of the shim's
start. Where the parts are missing or different, it is used.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

IN_C: "Any" = None
try:
    import _json

    IN_C = _json
except ImportError:  # not CPython
    pass


class _Rules:
    """What the scanner asks for (`json.decoder.JSONDecoder`)."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float = parse_constant = float
    parse_int = int


def loads(text: str) -> "Any":  # noqa: ANN401 (JSON)
    """Return the value of a JSON text.

    Raises:
        ValueError: It is not JSON.
    """
    if IN_C is None:
        import json

        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("JSON that is nested too deeply") from None
    text = text.strip()
    try:
        value, end = IN_C.make_scanner(_Rules)(text, 0)
    except StopIteration as error:
        raise ValueError(f"invalid JSON at {error.value}") from None
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None
    if end != len(text):
        raise ValueError(f"more than JSON at {end}")
    return value


def dumps(value: object) -> str:
    """Return the JSON text of a value, in ASCII.

    Raises:
        TypeError: A part of it has none.
    """
    if IN_C is None:
        import json

        return json.dumps(value)
    quoted = IN_C.encode_basestring_ascii
    encoder = IN_C.make_encoder(None, _unknown, quoted, None, ":", ",", False, False, True)
    return "".join(encoder(value, 0))


def _unknown(value: object) -> None:
    raise TypeError(f"{type(value).__name__} is not JSON")
