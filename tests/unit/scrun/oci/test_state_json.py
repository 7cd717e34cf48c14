import json

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.model.record import render_state
from tests import CHECKOUT

SCHEMA = json.loads((CHECKOUT / "tests" / "data" / "schemas" / "state.json").read_text())


def test_bytes() -> None:
    rendered = render_state("1.0.2", "c1", "running", 42, "/b", {"a": "é"})
    assert rendered.decode() == (
        '{\n  "ociVersion": "1.0.2",\n  "id": "c1",\n  "status": "running",\n  "pid": 42,\n'
        '  "bundle": "/b",\n  "annotations": {\n    "a": "é"\n  }\n}\n'
    )


def test_nothing_moves_a_cursor() -> None:
    nasty = {"\x1b[2J": "\x9b31m\x7f\u202e\x85", "line": "a\nb"}
    rendered = render_state("1.0.2", "c", "running", 1, "/b\x9d", nasty)
    assert all(c.isprintable() or c == "\n" for c in rendered.decode())
    assert json.loads(rendered)["annotations"] == nasty


def test_no_pid_of_a_stopped_container() -> None:
    assert json.loads(render_state("1.0.2", "c", "stopped", 42, "/b", {}))["pid"] == 0


@pytest.mark.covers("scrun(1) SYNOPSIS: state")
@given(
    st.sampled_from(["creating", "created", "running", "stopped"]),
    st.integers(0, 2**22),
    st.text(st.characters(codec="utf-8")).map(lambda text: "/" + text),
    st.dictionaries(st.text(), st.text()),
)
def test_schema(status: str, pid: int, bundle: str, annotations: dict[str, str]) -> None:
    rendered = render_state("1.0.2", "id", status, pid, bundle, annotations)
    state = json.loads(rendered)
    jsonschema.validate(state, SCHEMA, jsonschema.Draft7Validator)
    assert list(state) == ["ociVersion", "id", "status", "pid", "bundle", "annotations"]
    assert state["bundle"] == bundle


def test_path_that_is_not_utf8_leaves_valid_json() -> None:
    json.loads(render_state("1.0.2", "c", "stopped", 0, "/b\udcff", {}))


@pytest.mark.parametrize(
    "wrong",
    [{"status": "dead"}, {"pid": -1}, {"pid": "1"}, {"bundle": "b"}, {"annotations": {"a": 1}}],
)
def test_the_schema_refuses(wrong: dict[str, object]) -> None:
    state = json.loads(render_state("1.0.2", "c", "running", 1, "/b", {}))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**state, **wrong}, SCHEMA, jsonschema.Draft7Validator)
