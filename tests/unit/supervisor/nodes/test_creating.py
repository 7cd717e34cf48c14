"""Which containers of a node have their seccomp rules compiled once, and which each for itself."""

from typing import Any, cast

import pytest
import trio

from scrun.supervisor.nodes import connection
from scrun.supervisor.nodes.connection import Shim
from scrun.supervisor.nodes.messages import Hello

RULES = {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["a"]}]}
NOTIFIES = {**RULES, "listenerPath": "/run/listener"}


class FakeShim:
    """Takes calls, and has compiled a filter for each number of them."""

    def __init__(
        self, place: str = "n1", runtime: str = "/usr/bin/crun", *, says: str = ""
    ) -> None:
        self.place = place
        self._hello = Hello(1, says or place, 2, runtime=runtime)
        self.filters: list[object] = []

    async def hello(self) -> Hello:
        return self._hello

    async def call(self, verb: str, **fields: object) -> dict[str, Any]:
        assert verb == "create"
        known = fields.get("filter")
        self.filters.append(known)
        return {"filter": f"of call {len(self.filters)}"} if known == "" else {}


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    connection._filters.clear()


def create(shim: FakeShim, config: dict[str, Any], **fields: object) -> object:
    trio.run(lambda: connection.create(cast(Shim, shim), config, **fields))
    return shim.filters[-1]


@pytest.mark.parametrize(
    ("first", "second", "asked", "given"),
    [
        ({}, {}, None, None),
        ({"linux": {}}, {"linux": {}}, None, None),
        ({"linux": {"seccomp": RULES}}, {"linux": {"seccomp": RULES}}, "", "of call 1"),
        ({"linux": {"seccomp": RULES}}, {"linux": {"seccomp": {**RULES, "flags": []}}}, "", ""),
        ({"linux": {"seccomp": NOTIFIES}}, {"linux": {"seccomp": NOTIFIES}}, None, None),
        ({"linux": {"seccomp": RULES}, "annotations": {"a": "1"}},
         {"linux": {"seccomp": RULES}, "annotations": {"a": "2"}}, "", "of call 1"),
        ({"linux": {"seccomp": RULES}},
         {"linux": {"seccomp": RULES},
          "annotations": {"run.oci.seccomp_fail_unknown_syscall": "1"}}, "", ""),
    ],
)  # fmt: skip
def test_the_same_rules(
    first: dict[str, Any], second: dict[str, Any], asked: object, given: object
) -> None:
    shim = FakeShim()
    assert create(shim, first) == asked
    assert create(shim, second) == given


def test_another_node_or_runtime_or_an_oci_conf() -> None:
    config = {"linux": {"seccomp": RULES}}
    assert create(FakeShim(), config) == ""
    assert create(FakeShim("n2"), config) == ""
    assert create(FakeShim(runtime="/opt/crun"), config) == ""
    assert create(FakeShim(), config, site={}) is None
    assert create(FakeShim(), config) == "of call 1"


@pytest.mark.covers("security say what is true of another node")
@pytest.mark.parametrize("place", ["n2", ""])
def test_a_node_that_lies_gives_others_no_filter(place: str) -> None:
    """It says that it is another one, whose containers would have its filter."""
    config = {"linux": {"seccomp": RULES}}
    create(FakeShim(place, says="n1"), config)
    assert create(FakeShim("n1"), config) == ""


def test_what_is_known_has_an_end() -> None:
    shim = FakeShim()
    many = [{"linux": {"seccomp": {"number": n}}} for n in range(20)]
    for config in many:
        create(shim, config)
        create(shim, many[0])
    assert len(connection._filters) == connection._MOST_FILTERS
    assert create(shim, many[0]) == "of call 1"
    assert create(shim, many[1]) == ""


@pytest.mark.parametrize("told", [None, 7, "", "x" * (1 << 18)])
def test_what_no_filter_is(told: object, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = FakeShim()

    async def call(verb: str, **fields: object) -> dict[str, Any]:
        return {} if told is None else {"filter": told}

    monkeypatch.setattr(shim, "call", call)
    trio.run(lambda: connection.create(cast(Shim, shim), {"linux": {"seccomp": RULES}}))
    assert not connection._filters
