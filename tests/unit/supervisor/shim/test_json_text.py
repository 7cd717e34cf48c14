"""JSON by the parts of `json` in C, beside `json` itself."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.supervisor.shim import json_text
from scrun.supervisor.shim.json_text import dumps, loads

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.fixture(params=["in C", "without"])
def parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without":
        monkeypatch.setattr(json_text, "IN_C", None)


@given(VALUES)
def test_there_and_back(value: Any) -> None:
    assert loads(json.dumps(value)) == value
    assert json.loads(dumps(value)) == value


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("text", ["\ud800", '"\\\x00\n', "ä€😀", "x" * 100_000])
def test_texts(text: str) -> None:
    assert loads(dumps({text: [text]})) == {text: [text]}
    assert dumps(text).isascii()


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("text", ["", " ", "{", "[1,]", "nul", '{"a" 1}', "1 2", '"\n"', "{} x"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        loads(text)


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("text", [' {"a": [1, 2.5, true, null]}\n', "[]", "-1", "1e3"])
def test_what_is_one(text: str) -> None:
    assert loads(text) == json.loads(text)


@pytest.mark.usefixtures("parts")
def test_what_has_none() -> None:
    with pytest.raises(TypeError):
        dumps({"a": {1}})


@pytest.mark.usefixtures("parts")
def test_too_deep() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        loads("[" * (16 << 20))
