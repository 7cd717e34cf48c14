"""`scrun top`: what it says of containers, as a table and on a screen."""

import asyncio  # noqa: TID253  # Textual's
import contextlib
import json
import math
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest
from textual.pilot import Pilot

from scrun.cli.parse import parse
from scrun.commands import top
from scrun.commands.pool import HEAD as POOL_HEAD
from scrun.commands.top_rows import (
    HEAD,
    POD_HEAD,
    SPARK,
    Used,
    chosen,
    details,
    fit,
    line_of,
    pods_of,
    spark,
)
from scrun.commands.top_screen import Confirm, Rows, Top
from scrun.core.errors import StateError
from scrun.model.record import Record
from tests.harness.site import scrun_binary
from tests.harness.terminal import Terminal
from tests.unit.scrun.commands.test_listing import RUNNING, Root

pytestmark = pytest.mark.covers("scrun top")

MIB = 1 << 20
HOSTILE = "[red]x[/]\x1b[2J\x07\u202e"
"""Markup of Rich, what moves a cursor, and what turns text around."""


def named(name: str, status: str = "running", /, **told: str) -> Record:
    annotations = {f"org.scrun.{key}": text for key, text in told.items()}
    return msgspec.structs.replace(RUNNING, id=name, status=status, annotations=annotations)


class Answering(Root):
    """A root directory whose supervisor says what containers use, and notes who is asked."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.asked: list[str] = []
        self.silent: set[str] = set()
        self.wave = 0.0  # what they use goes up and down, by so much of a second
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock = self.server.accept()[0]
                threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL))
            words = sock.recv(size, socket.MSG_WAITALL).decode().split("\0") if size else [""]
            if words[0] == "events":
                self.asked.append(words[1])
                while words[1] in self.silent:
                    time.sleep(0.05)
                sock.sendall(self.event(words[1]))

    def event(self, name: str) -> bytes:
        """One that has used as many seconds as its number says, since the start of time."""
        number = int("".join(filter(str.isdigit, name)) or "0")
        if name.startswith("fresh"):
            return b"\1container fresh: is being started"
        now = time.monotonic()
        used = now * (number % 100) / 100 + self.wave * number / 100 * math.sin(3 * now + number)
        memory = {"usage": {"usage": number * MIB, "limit": 200 * MIB}}
        data = {"cpu": {"usage": {"total": used * 1e9}}, "memory": memory, "pids": {"current": 2}}
        return b"\0" + json.dumps({"uptime": now, "data": data}).encode()


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Answering]:
    made = Answering(tmp_path / "r")
    yield made
    made.silent.clear()
    made.server.close()


RECORDS = [
    named("c50", name="train", pod_name="web", job_id="42", nodes="n1"),
    named("c25", pod_name="web", job_id="42", nodes="n1"),
    named("w1", "created", pending="Resources", job_id="43"),
    named("fresh"),
    named("end", "stopped", reason="exited", exit_status="3"),
]
PICTURED = [
    named("c98", name="train-large", job_id="4711", nodes="gpu-3"),
    named("c61", name="web", pod_name="shop", job_id="4712", nodes="n17"),
    named("c24", name="db", pod_name="shop", job_id="4712", nodes="n17"),
    named("c7", name="notebook", job_id="4690", nodes="n2"),
    named("w1", "created", name="solver-a", job_id="4713", pending="Resources"),
    named("w2", "created", name="solver-b", job_id="4714", pending="Priority"),
    named("e1", "stopped", name="prepare", job_id="4702", reason="exited", exit_status="0"),
    named("e2", "stopped", name="import", job_id="4703", reason="oom", exit_status="137"),
]


def call(root: Root, *words: str) -> str:
    done = subprocess.run(
        [scrun_binary(), "--root", str(root.path), "top", "--interval", "0.2", *words],
        env={"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
        capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


# --- once


@pytest.mark.parametrize("words", [("--once",), ()])
def test_a_table(root: Answering, words: tuple[str, ...]) -> None:
    for record in RECORDS:
        root.add(record)
    first, second = call(root, *words).split("\n\n")
    head, *lines = first.splitlines()
    assert tuple(head.split()) == HEAD
    cells = [line.split(maxsplit=len(HEAD) - 1) for line in lines]
    assert [row[:3] for row in cells] == [
        ["train", "web", "running"], ["c25", "web", "running"], ["fresh", "-", "running"],
        ["w1", "-", "created"], ["end", "-", "stopped"],
    ]  # fmt: skip
    assert float(cells[0][3]) == pytest.approx(50, abs=2)
    assert cells[0][4:9] == ["50.0MiB", "25.0", "2", "42", "n1"]
    assert cells[2][3:7] == ["-"] * 4
    assert cells[3][10] == "pending: Resources"
    assert cells[4][10] == "exited 3"
    pods = second.splitlines()
    assert len(pods) == 2
    assert pods[1].split()[:3] == ["web", "2", "2"]
    assert float(pods[1].split()[3]) == pytest.approx(75, abs=3)
    assert pods[1].split()[4] == "75.0MiB"


def test_for_programs(root: Answering) -> None:
    for record in RECORDS:
        root.add(record)
    told = json.loads(call(root, "--format", "json", "--sort", "name", "--filter", "W"))
    assert [row["name"] for row in told["containers"]] == ["c25", "train", "w1"]  # `web`, `w1`
    assert told["containers"][2]["waits"] == "Resources"
    assert told["containers"][2]["memory"] is None
    assert told["containers"][1]["limit"] == 200 * MIB
    assert [(pod["name"], pod["memory"]) for pod in told["pods"]] == [("web", 75 * MIB)]
    assert told["pools"] == []
    assert sorted(set(root.asked)) == ["c25", "c50", "fresh"]


def test_nothing(root: Answering) -> None:
    assert tuple(call(root).split()) == HEAD
    root.path = root.path / "none"
    assert json.loads(call(root, "--format", "json")) == {
        "containers": [], "pods": [], "pools": [],
    }  # fmt: skip


def test_without_textual(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "is_screen", lambda: True)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    monkeypatch.delitem(sys.modules, "scrun.commands.top_screen", raising=False)
    with pytest.raises(StateError, match=r"pip install 'scrun\[top\]'.*--once"):
        top.run(parse(["--root", str(root.path), "top"]))


def test_nobody_is_asked_after_the_end(root: Answering) -> None:
    usage = top.Usage(str(root.path))
    usage.keep({"c1"})
    usage.close()
    usage.ask(["c1"], others=True)  # a look that was on its way
    assert root.asked == []


# --- what it says


def test_what_has_changed_is_looked_at_again(root: Answering) -> None:
    for name in ("c1", "c2"):
        root.add(named(name))
    look = top.Look(str(root.path))
    first = look.containers()
    look.usage.known["c2"] = Used(50.0)
    assert look.containers() == [first[0], first[1]._replace(used=Used(50.0))]
    assert look.containers()[0] is first[0]
    shutil.rmtree(root.path / "c1")
    root.add(named("c1", "stopped", reason="exited", exit_status="3"))
    changed = look.containers()
    assert [(line.status, line.info) for line in changed] == [
        ("stopped", "exited 3"),
        ("running", ""),
    ]
    look.usage.close()


def test_sorts() -> None:
    rows = [
        {"id": name, "status": "running", "created": f"2026-11-21T13:00:0{at}Z",
         "annotations": {}} for at, name in enumerate(["b", "a", "c"])
    ]  # fmt: skip
    used = {"a": Used(1.0, 30), "b": Used(None, 20), "c": Used(2.0, None)}
    lines = [line_of(row, used) for row in rows]

    def order(sort: str, *, backwards: bool = False) -> str:
        return "".join(line.id for line in chosen(lines, sort, backwards=backwards))

    assert order("cpu") == "cab"  # what is not known comes last
    assert order("memory") == "abc"
    assert order("name") == "abc"
    assert order("age") == "bac"
    assert order("age", backwards=True) == "cab"


def test_what_has_ended_uses_nothing() -> None:
    row = {"id": "a", "status": "stopped", "created": "", "annotations": {}}
    line = line_of(row, {"a": Used(5.0, 1)})
    assert line.used == Used()
    assert line.created is None
    assert pods_of([line]) == []


def test_why_one_waits() -> None:
    told = {"org.scrun.pending": "Resources", "org.scrun.name": "train"}
    row = {"id": "a" * 64, "status": "created", "created": "", "annotations": told}
    said = details(line_of(row, {}))
    assert said == f"train ({'a' * 64}) | pending: Resources (the nodes are busy)"


@pytest.mark.parametrize(
    ("values", "full", "text"),
    [
        ((), 100, " " * 8),
        ((None, 0, 50, 100), 100, "     ▁▅█"),
        ((400, 100), 100, "      █▃"),
        ((0, 0), 0, "      ▁▁"),
        (range(12), 0, "▄▄▅▅▆▇▇█"),
    ],
)
def test_sparklines(values: tuple[float | None, ...], full: float, text: str) -> None:
    assert spark(tuple(values), full) == text


def test_columns_of_a_screen() -> None:
    assert fit([12, 6, 9], 100, [0, 2, 1]) == [0, 1, 2]
    assert fit([12, 6, 9], 23, [0, 2, 1]) == [0, 2]
    assert fit([12, 6, 9], 22, [0, 2, 1]) == [0, 1]
    assert fit([12, 6, 9], 5, [0, 2, 1]) == [0]


# --- the screen

Scenario = Callable[[Top, Pilot[int]], Awaitable[None]]


def app_of(root: Root, *, pause: float = 0.1, sort: str = "cpu", words: str = "true") -> Top:
    return Top(top.Look(str(root.path)), [words], pause, sort, "")


def in_loop(app: Top, scenario: Scenario, size: tuple[int, int] = (120, 14)) -> None:
    """Run a scenario at a screen, in an event loop of asyncio: Textual has no other."""

    async def at_the_screen() -> None:
        async with app.run_test(size=size) as pilot:
            await scenario(app, pilot)

    asyncio.run(at_the_screen())


def shown(app: Top) -> list[str]:
    """The lines of the screen."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips(app.size)]


def names(app: Top) -> list[str]:
    """What is in the first column."""
    lines = shown(app)[2 : 1 + app.query_one(Rows).size.height]
    return [line.split()[0] for line in lines if line]


async def until(pilot: Pilot[int], holds: Callable[[], object], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert isinstance(pilot.app, Top)
        assert time.monotonic() < end, "\n".join(shown(pilot.app))
        await pilot.pause(0.05)


def test_the_screen(root: Answering) -> None:
    for record in RECORDS:
        root.add(record)

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "▅▅" in shown(app)[2])
        lines = shown(app)
        assert "5 containers: 3 run, 1 wait, 1 stopped | CPU 7" in lines[0]
        assert lines[1].split()[:4] == ["CONTAINER", "POD", "STATUS", "CPU%*"]
        assert re.match(r"train +web +running +(49|50)\.\d .*▅▅ +50\.0MiB", lines[2])
        assert names(app) == ["train", "c25", "fresh", "w1", "end"]
        assert lines[5].endswith("pending: Resources")
        await pilot.press("end", "up")
        assert "(the nodes are busy)" in shown(app)[-2]
        await pilot.press("s", "s")
        assert names(app) == ["c25", "end", "fresh", "train", "w1"]
        assert "CONTAINER*" in shown(app)[1]
        await pilot.press("r")
        assert names(app) == ["w1", "train", "fresh", "end", "c25"]
        assert "(the nodes are busy)" in shown(app)[-2]  # the cursor went along
        await pilot.press("slash", *"exi")
        assert names(app) == ["end"]
        await pilot.press("enter", "escape")
        assert len(names(app)) == 5
        await pilot.press("tab")
        assert shown(app)[1].split() == [*POD_HEAD]
        assert names(app) == ["web"]
        await pilot.press("tab")
        assert shown(app)[1].split() == [*POOL_HEAD]
        await pilot.press("tab", "q")
        assert app.return_value == 0

    in_loop(app_of(root), scenario)


def test_all_keys_have_room_in_80_columns(root: Answering) -> None:
    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "Kill" in shown(app)[-1])

    in_loop(app_of(root), scenario, (80, 24))


def test_a_screen_of_20_columns(root: Answering) -> None:
    for record in RECORDS:
        root.add(record)

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: re.match(r"train +(49|50)\.\d", shown(app)[2]))
        await pilot.press("k")
        await until(pilot, lambda: "TERM" in "\n".join(shown(app)))
        assert all(len(line) <= 20 for line in shown(app))
        await pilot.press("escape")
        await pilot.resize_terminal(5, 3)
        await pilot.press("down", "s", "tab", "k", "slash", "escape")
        await pilot.resize_terminal(120, 14)
        await pilot.press("tab", "tab")
        await until(pilot, lambda: "train" in "\n".join(shown(app)))

    in_loop(app_of(root), scenario, (20, 10))


def test_hostile_names(root: Answering) -> None:
    told = dict.fromkeys(("name", "pod_name", "job_id", "nodes", "image.name"), HOSTILE)
    root.add(named("c1", "created", pending=HOSTILE, **told))
    root.add(named("c2", "\x1b[2J", **told))
    escaped = r"[red]x[/]\x1b[2J\x07\u202e"

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: len(names(app)) == 2)
        for keys in ((), ("end",), ("tab",), ("tab", "tab", "k")):
            await pilot.press(*keys)
            text = "".join(shown(app))
            assert escaped in text
            assert text.isprintable()
        await pilot.press("escape", "slash", *"[red]x[/]")
        assert len(names(app)) == 2
        assert "with '[red]x[/]'" in shown(app)[0]
        await pilot.press(*"y")
        assert names(app) == []

    in_loop(app_of(root), scenario, (240, 14))


def test_what_vanishes_while_it_is_drawn(root: Answering) -> None:
    for number in range(30):
        root.add(named(f"c{number:02}"))

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: len(names(app)) > 5)
        await pilot.press("end")
        for number in range(25, 30):
            shutil.rmtree(root.path / f"c{number}")
        await until(pilot, lambda: shown(app)[-2] == "c24")
        for number in range(25):
            shutil.rmtree(root.path / f"c{number:02}")
        await until(pilot, lambda: not names(app))
        await pilot.press("down", "l", "e", "k", "m")
        root.add(named("c99"))
        await until(pilot, lambda: names(app) == ["c99"])
        root.path.rename(root.path.parent / "away")
        root.path.touch()
        await until(pilot, lambda: "Not a directory" in shown(app)[-2])
        assert names(app) == ["c99"]

    in_loop(app_of(root, sort="name"), scenario)


def test_only_those_that_are_seen_are_asked(root: Answering) -> None:
    for number in range(300):
        root.add(named(f"c{number:03}"))

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: len(root.asked) > 50)
        first = {f"c{number:03}" for number in range(10)}
        assert set(root.asked) == first
        await pilot.press("end")
        await until(pilot, lambda: "c299" in root.asked)
        assert set(root.asked) - first == {f"c{number}" for number in range(290, 300)}
        await pilot.press("tab", "tab", "s", "s", "s")
        await pilot.pause(0.3)
        root.asked.clear()
        await pilot.pause(0.5)  # nobody sees what they use
        assert root.asked == []
        await pilot.press("tab")  # they are sorted by processors, so all have to be asked
        await until(pilot, lambda: len(set(root.asked)) == 300)

    in_loop(app_of(root, sort="name"), scenario)
    time.sleep(0.3)  # those that were on their way
    root.asked.clear()
    time.sleep(0.5)
    assert root.asked == []


def test_one_that_does_not_answer_keeps_nobody_waiting(root: Answering) -> None:
    root.silent.add("c10")
    for name in ("c10", "c20"):
        root.add(named(name))

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: "▂▂▂" in shown(app)[2])
        assert names(app) == ["c20", "c10"]
        assert root.asked.count("c10") == 1
        assert shown(app)[3].split()[:2] == ["c10", "running"]
        root.silent.clear()
        await until(pilot, lambda: "10.0MiB" in shown(app)[3])

    in_loop(app_of(root), scenario)


@pytest.mark.covers("security attempt: names that are markup")
def test_kill_asks_first(root: Answering, tmp_path: Path) -> None:
    root.add(named("c1", name=HOSTILE))
    script, called = tmp_path / "scrun", tmp_path / "called"
    script.write_text(
        f'#!/bin/sh\necho "$@" >>{called}\necho "scrun: no such thing" >&2\nexit 1\n'
    )
    script.chmod(0o755)

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: names(app))
        for key in ("escape", "n", "q"):
            await pilot.press("k")
            await until(pilot, lambda: isinstance(app.screen, Confirm))
            assert "Send [red]x[/]" in "\n".join(shown(app))
            await pilot.press(key)
            await until(pilot, lambda: not isinstance(app.screen, Confirm))
        await pilot.press("k", "k")
        await until(pilot, lambda: shown(app)[-2] == "scrun: no such thing")
        assert called.read_text() == "kill c1 KILL\n"
        await pilot.press("down")  # what it said is gone with the next key
        assert "c1" in shown(app)[-2]
        await pilot.press("k")
        shutil.rmtree(root.path / "c1")  # and another one takes its place
        root.add(msgspec.structs.replace(named("c1"), created="2026-11-22T00:00:00Z"))
        await pilot.press("t")
        await until(pilot, lambda: "another container by now" in shown(app)[-2])
        await pilot.press("k")
        shutil.rmtree(root.path / "c1")
        await pilot.press("t")
        await until(pilot, lambda: ": is gone: nothing was sent" in shown(app)[-2])
        assert called.read_text() == "kill c1 KILL\n"

    in_loop(app_of(root, words=str(script)), scenario)


def test_thousands(root: Answering) -> None:
    for number in range(4000):
        root.add(named(f"c{number:04}", "running" if number < 1000 else "stopped"))

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: len(app.query_one(Rows).items) == 4000)
        begin = time.process_time()
        for key in ("s", "end", "pageup", "r", "home", "pagedown"):
            await pilot.press(key)
        assert (time.process_time() - begin) / 6 < 0.5
        assert "4000 containers: 1000 run" in shown(app)[0]

    in_loop(app_of(root, pause=1), scenario, (120, 50))


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "most"), [(1000, 0.05), (4000, 0.1)])
def test_what_a_look_at_thousands_costs(root: Answering, number: int, most: float) -> None:
    """1,000 run: a share of a processor while nobody types, and the quickest redraw by a key."""
    for one in range(number):
        root.add(named(f"c{one:04}", "running" if one < 1000 else "stopped"))
    master, slave = pty.openpty()
    terminal = Terminal(master)
    terminal.resize(50, 120)
    command = [scrun_binary(), "--root", str(root.path), "top"]
    environment = {**os.environ, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as top_process:
        os.close(slave)
        terminal.read_until(f"{number} containers: 1000 run")
        terminal.pass_over(10)  # each of them has been asked once
        before = processor_time(top_process.pid)
        terminal.pass_over(20)
        share = (processor_time(top_process.pid) - before) / 20
        redraws = []
        for head in ("MEMORY*", "CONTAINER*", "AGE*", "STATUS*", "CPU%*") * 2:
            terminal.pass_over(0.5)
            began = time.monotonic()
            terminal.write("s")
            terminal.read_until(head)
            redraws.append(time.monotonic() - began)
        terminal.write("q")
        terminal.pass_over(20)
        assert top_process.wait(20) == 0
    terminal.close()
    print(f"{number}: {share:.1%} of a processor; redraws {[f'{one:.2f}' for one in redraws]} s")
    assert share <= most
    assert min(redraws) <= 0.5


def processor_time(pid: int) -> float:
    """Return what a process has used, in seconds: clock_getcpuclockid(3)."""
    return time.clock_gettime((~pid << 3) | 2)


def test_the_picture(root: Answering, tmp_path: Path) -> None:
    """SCRUN_PICTURE names a file that gets the picture of docs/howto/top.md."""
    for record in PICTURED:
        root.add(record)
    root.wave = 0.2
    drawn: list[str] = []

    async def scenario(app: Top, pilot: Pilot[int]) -> None:
        await until(pilot, lambda: len(app._look.usage.known.get("c7", Used()).cpus) == SPARK)
        await pilot.press(*["down"] * 4)
        drawn.append(app.export_screenshot(title="scrun top"))

    in_loop(app_of(root, pause=0.3), scenario, (132, 16))
    # fonts would be loaded from elsewhere
    svg = re.sub(r"@font-face *{[^}]*}\s*|<!--.*?-->\s*", "", drawn[0])
    assert "http" not in svg.replace('"http://www.w3.org/2000/svg"', "")
    said = "".join(ET.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "train-large" in said
    assert "the nodes are busy" in said
    Path(os.environ.get("SCRUN_PICTURE", tmp_path / "top.svg")).write_text(svg)
