"""Whatever a supervisor sends: each call has one answer, or the shim ends, and nothing is left.

The other end of the same protocol is a surface of `tests/stress/fuzz`.
"""

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.wire.frames import CALL, CLOSED, CREDIT, DATA, END, LONGEST
from tests.component.supervisor.shim.conftest import MakeShim
from tests.harness import users
from tests.harness.bundle import make_config, map_user
from tests.harness.processes import descendants
from tests.harness.shim import Shim
from tests.harness.wait import wait_while

ROUNDS = int(os.environ.get("SCRUN_ROUNDS", "6"))
CALLS = 120
NO_ID: list[Any] = [None, -1, 1 << 40, 0.5, [], {}, [[]]]
"""What is neither an id nor the number of a stream: a supervisor uses none of these twice."""
ODD: list[Any] = [
    *(*NO_ID, True, 0, 7, "", "a", "x" * 300, "../../up", "a\0b", "\ud800", [1, 2], {"a": None}),
    *([["/bin", "/mnt"]], ["/", "/", "lowerdir=/"]),
]
UNIQUE = ("id", "stdin", "stdout", "stderr", "terminal")
SELDOM = 0.2


class Sender:
    """Makes calls that are nearly right, from a seed."""

    def __init__(self, shim: Shim, seed: int) -> None:
        self._shim = shim
        self._random = random.Random(seed)
        self._stream = self._last_id = 0
        self._verbs: list[Callable[[], dict[str, Any]]] = [
            self._create, self._create, self._exec, self._start, self._start, self._delete,
            self._signal, self._resize, self._script, self._mount, self._unmount, self._fetch,
            self._wait, self._leave, self._serve, self._receive, self._unknown,
        ]  # fmt: skip

    def calls(self) -> Iterator[dict[str, Any]]:
        for _ in range(CALLS):
            yield self._damaged(self._random.choice(self._verbs)())

    @property
    def ids(self) -> list[str]:
        return [f"c{number}" for number in range(self._last_id + 1)]

    def frame(self) -> tuple[int, int, bytes]:
        """A frame of a stream that is there, was, or never is."""
        kind = self._random.choice([DATA, CREDIT, END, CLOSED])
        payload = {DATA: b"some bytes", CREDIT: b"\0\0\1\0"}.get(kind, b"")
        return kind, self._random.randrange(self._stream + 3), payload

    def _id(self) -> str:
        return f"c{self._random.randrange(self._last_id + 1)}"

    def _new(self) -> str:
        self._last_id += 1
        return f"c{self._last_id}"

    def _streams(self) -> dict[str, int]:
        names = self._random.choice([(), ("stdin",), ("stdin", "stdout", "stderr"), ("terminal",)])
        found = {}
        for name in names:
            self._stream += 1
            found[name] = self._stream
        return found

    def _create(self) -> dict[str, Any]:
        streams = self._streams()
        words = self._random.choice([["true"], ["sleep", "1000"], ["cat"], ["no-such-program"]])
        config = make_config(words, str(self._shim.rootfs), terminal="terminal" in streams)
        if self._shim.user.uid:
            map_user(config, self._shim.user)
        joins = self._random.choice([{}, {}, {"ipc": self._id()}])
        name = self._new()
        more = {"images": self._id()} if self._random.random() < SELDOM else {}
        return {
            "verb": "create", "id": name, "name": f"name-{name}", "config": config,
            "streams": streams, "joins": joins, "filter": "", **more,
        }  # fmt: skip

    def _exec(self) -> dict[str, Any]:
        streams = self._streams()
        process = make_config(["true"], terminal="terminal" in streams)["process"]
        words = {"id": self._new(), "container": self._id(), "process": process}
        return {"verb": "exec", **words, "streams": streams}

    def _start(self) -> dict[str, Any]:
        return {"verb": "start", "id": self._id()}

    def _delete(self) -> dict[str, Any]:
        return {"verb": "delete", "id": self._id()}

    def _signal(self) -> dict[str, Any]:
        number = self._random.choice([*signal.valid_signals()])
        return {"verb": "signal", "id": self._id(), "number": int(number), "all": False}

    def _resize(self) -> dict[str, Any]:
        return {"verb": "resize", "id": self._id(), "rows": 5, "columns": 70000}

    def _script(self) -> dict[str, Any]:
        return {"verb": "script", "script": "echo said"}

    def _mount(self) -> dict[str, Any]:
        files = self._random.choice([[], [["/no/such/image", "/no/such/place"]]])
        root = self._random.choice([None, ["/no/such/place", "/", "lowerdir=/no:/such"]])
        looks = self._random.choice([[], [["/", 2, None]]])
        return {
            "verb": "mount", "id": self._new(), "files": files, "maps": None, "root": root,
            "by_fuse": False, "mine": False, "known": [], "looks": looks, "beside": "",
            "users": self._random.choice([False, True]),
        }  # fmt: skip

    def _unmount(self) -> dict[str, Any]:
        return {"verb": "unmount", "id": self._id()}

    def _fetch(self) -> dict[str, Any]:
        return {"verb": "fetch", "id": self._id(), "name": f"n{self._id()}", "size": 5, "limit": 0}

    def _wait(self) -> dict[str, Any]:
        return {"verb": "wait", "id": self._id()}

    def _leave(self) -> dict[str, Any]:
        return {"verb": "leave", "id": self._id()}

    def _serve(self) -> dict[str, Any]:
        return {"verb": "serve", "id": self._id(), "secret": "00", "peers": 1}

    def _receive(self) -> dict[str, Any]:
        addresses = {"addresses": [["127.0.0.1", 1]], "secret": "00", "patience": 0.1}
        return {"verb": "receive", "id": self._id(), **addresses}

    def _unknown(self) -> dict[str, Any]:
        return {"verb": self._random.choice(["nothing", "begin", "_ready", None, 5])}

    def _damaged(self, call: dict[str, Any]) -> dict[str, Any]:
        """Take something away, or put something odd in its place, perhaps deep inside."""
        if self._random.random() < 0.5:
            return call
        inner: Any = call
        while isinstance(inner, dict) and inner:
            key = self._random.choice([*inner])
            if key in ("args", "script"):  # nothing else is run
                return call
            deeper = inner[key]
            if not (isinstance(deeper, dict) and deeper and self._random.random() < 0.7):
                if self._random.random() < SELDOM:
                    del inner[key]
                else:
                    inner[key] = self._random.choice(NO_ID if key in UNIQUE else ODD)
                return call
            inner = deeper
        return call


@pytest.fixture
def images(folder: Path) -> Iterator[None]:
    """What stays on a node."""
    yield
    for path in folder.glob("scrun-images-*"):
        shutil.rmtree(path)


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("who", ["root", "user"])
@pytest.mark.parametrize("seed", range(ROUNDS))
def test_each_call_is_answered_once(make_shim: MakeShim, who: str, seed: int) -> None:
    shim = make_shim(user=users.root() if who == "root" else users.ordinary())
    sender = Sender(shim, seed)
    asked: dict[int, dict[str, Any]] = {}
    for call in sender.calls():
        asked[shim.ask(call.pop("verb", None), **call)] = call
        shim.send(*sender.frame())
        shim.pump(0)
    ended = [
        shim.ask(verb, id=name) for name in sender.ids for verb in ("delete", "unmount", "leave")
    ]
    for number, call in asked.items():
        reply = shim.answer(number, 5)
        assert isinstance(reply.get("error", ""), str), (call, reply)
    assert all("error" not in shim.answer(number) for number in ended)
    left = lambda: descendants(shim.process.pid)  # noqa: E731
    wait_while("a process of what was made", left)
    names = {"lock", os.path.basename(shim.hello["runtime"]), "mounting"}
    assert set(os.listdir(shim.hello["directory"])) <= names
    assert shim.close()[1] == ""


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_what_is_no_call_ends_it(make_shim: MakeShim, seed: int) -> None:
    """Its containers and its directory go with it."""
    shim = make_shim()
    shim.run("a", "sleep", "1000")
    chance = random.Random(seed)
    good = json.dumps({"call": 1, "verb": "start", "id": "a"}).encode()
    at = chance.randrange(1, len(good))
    bad = [good[:at], good[:at] + b"\xff" + good[at + 1 :], b"[]", b"5", b'{"verb": "start"}']
    bad.append(b"[" * LONGEST)
    kind, payload = chance.choice([(CALL, one) for one in bad] + [(CREDIT, b"123"), (0, b"")])
    shim.send(kind, 1, payload)
    began = time.monotonic()
    status, words = shim.wait()
    assert time.monotonic() - began < 5
    assert status == 1
    assert re.fullmatch(r"srun's streams: .*\n", words)
    assert not os.path.exists(shim.hello["directory"])
