"""`scrun report`: what records and an audit say."""

import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios
import time
from collections import Counter
from collections.abc import Iterator
from fcntl import ioctl
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scrun.cli.parse import parse
from scrun.commands import list as listing
from scrun.commands.report import HEAD, HEAD_OF_SUMS, run
from scrun.model.record import Record, read_record
from tests.harness.pages import HOWTO, blocks
from tests.harness.site import scrun_binary
from tests.unit.scrun.commands.test_listing import Root

pytestmark = pytest.mark.covers("scrun report")

MIB = 1 << 20
CREATED = "2026-11-21T13:00:00.000000Z"
USED = {
    "user": 3.0, "system": 1.0, "memory": 256 * MIB, "memory_of": "cgroup", "wall": 4.0,
    "cpus": 2, "limit": 512 * MIB,
}  # fmt: skip
ENDED = Record(
    "train", status="stopped", created=CREATED,
    annotations={
        "org.scrun.started": "2026-11-21T13:00:03.500000Z", "org.scrun.reason": "exited",
        "org.scrun.exit_status": "3", "org.scrun.usage": json.dumps(USED),
        "org.scrun.image.name": "docker.io/library/alpine:3", "org.scrun.pod_name": "web",
    },
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    root = Root(tmp_path / "r")
    yield root
    root.server.close()


def call(root: Root, *words: str) -> str:
    done = subprocess.run(
        [scrun_binary(), "--root", str(root.path), "report", *words],
        env={"PATH": "/usr/bin:/bin", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
        capture_output=True, timeout=20, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def told(root: Root, *words: str) -> dict[str, Any]:
    found = json.loads(call(root, "--format", "json", *words))
    assert isinstance(found, dict)
    return found


def test_nothing(root: Root) -> None:
    head, said = call(root).splitlines()
    assert tuple(head.split()) == HEAD
    assert said.startswith("0 containers: CPU - (0 known)")
    assert told(root, "--by", "day")["rows"] == []
    root.path = root.path / "none"
    assert told(root)["rows"] == []


def test_a_container(root: Root) -> None:
    root.add(ENDED)
    [row] = told(root)["rows"]
    expected = {
        "container": "train", "status": "stopped", "reason": "exited", "exit_status": 3,
        "waited_seconds": 3.5, "elapsed_seconds": 4.0, "cpu_seconds": 4.0, "cpu_percent": 50.0,
        "enough_cpus": 1, "memory_percent": 50.0, "enough_memory": 320 * MIB, "pod": "web",
    }  # fmt: skip
    assert expected.items() <= row.items()
    _, line, said = call(root).splitlines()
    assert line.split() == [
        "train", "stopped", "50.0", "50.0", "2", "1", "256.0MiB", "512.0MiB", "320.0MiB",
        "0:03.50", "0:04.00", "0:04.00", "exited", "3",
    ]  # fmt: skip
    assert "CPU 50.0% (1 known), memory 50.0% (1 known)" in said


def test_no_usage_is_a_dash(root: Root) -> None:
    root.add(ENDED)
    root.add(msgspec.structs.replace(ENDED, id="lost", annotations={}))
    least = json.dumps({**USED, "memory_of": "process"})
    root.add(msgspec.structs.replace(ENDED, id="part", annotations={"org.scrun.usage": least}))
    (root.path / "broken").mkdir()
    lines = {line.split()[0]: line.split() for line in call(root).splitlines()}
    assert lines["lost"] == ["lost", "stopped", *"-" * 11]
    assert lines["broken"][:3] == ["broken", "unknown", "-"]
    assert (lines["part"][3], lines["part"][6], lines["part"][8]) == ("-", ">=256.0MiB", "-")
    sums = told(root)["total"]
    assert (sums["cpu_percent"], sums["cpu_percent_of"], sums["containers"]) == (50, 2, 4)


def test_those_that_wait_and_run(root: Root) -> None:
    annotations = {"org.scrun.pending": "Resources", "org.scrun.exit_status": "9" * 5000}
    root.add(Record("waits", status="running", created=CREATED, annotations=annotations))
    annotations = {"org.scrun.started": "2026-11-21T13:00:09.000000Z"}
    root.add(Record("runs", status="running", created=CREATED, annotations=annotations))
    annotations = {"org.scrun.started": "2026-11-21T12:59:00.000000Z"}
    root.add(Record("differs", status="stopped", created=CREATED, annotations=annotations))
    rows = {row["container"]: row for row in told(root)["rows"]}
    passed = time.time() - 1795266000
    waits, runs, differs = rows["waits"], rows["runs"], rows["differs"]
    assert (waits["reason"], waits["elapsed_seconds"]) == ("Resources", None)
    assert waits["waited_seconds"] == pytest.approx(passed, abs=20)
    assert runs["elapsed_seconds"] == pytest.approx(passed - 9, abs=20)
    assert (runs["waited_seconds"], runs["cpu_percent"]) == (9, None)
    assert differs["waited_seconds"] is None


def test_sums(root: Root) -> None:
    root.add(ENDED)
    root.add(msgspec.structs.replace(ENDED, id="two", created="2026-11-22T13:00:00.000000Z"))
    root.add(Record("none", status="stopped", created="never"))
    [image, none] = told(root, "--by", "image")["rows"]
    assert (image["image"], image["containers"], image["cpu_seconds_had"]) == (
        "docker.io/library/alpine:3", 2, 16.0,
    )  # fmt: skip
    assert (none["image"], none["cpu_percent"], none["containers"]) == ("", None, 1)
    days = [row["day"] for row in told(root, "--by", "day")["rows"]]
    assert days == ["", "2026-11-21", "2026-11-22"]
    head, *lines = call(root, "--by", "pod").splitlines()
    assert head.split() == ["POD", *HEAD_OF_SUMS]
    assert [line.split()[:2] for line in lines[:2]] == [["web", "2"], ["-", "1"]]
    since = told(root, "--since", "2026-11-22")["rows"]
    assert [row["container"] for row in since] == ["two"]


def test_the_audit_has_those_without_a_record(root: Root, tmp_path: Path) -> None:
    root.add(ENDED)
    both = {"container": "train", "created": CREATED, "usage": None}
    gone = {"container": "gone", "created": "2026-11-21T14:00:00Z", "image": "busybox"}
    odd = {"container": "odd", "created": "2026-11-21T15:00:00Z"}
    lines = [
        {"event": "create", **both}, {"event": "end", **both},
        {"event": "create", "time": "2026-11-21T14:00:00Z", **gone},
        {"event": "start", "time": "2026-11-21T14:00:02Z", **gone},
        {"event": "exec", "time": "2026-11-21T14:00:03Z", **gone},
        {"event": "end", "time": "2026-11-21T14:00:08Z", "status": 1, "reason": "exited",
         "usage": {**USED, "wall": 6.0}, **gone},
        {"event": "create", "time": "2026-11-21T15:00:00Z", "nodes": "\udcff", **odd},
    ]  # fmt: skip
    bad = ({"usage": {"user": -1}}, {"usage": {"wall": 1e13}}, {"usage": 1}, {"name": "x" * 2000})
    lines += [{"event": "end", **gone, **one} for one in bad]
    lines.append({"event": "create", "created": "0001-01-01T00:00:00+23:00", "container": "a"})
    tiny = {"user": 1e12, "system": 1e12, "wall": 1e-320, "cpus": 1e-320, "memory": 0, "limit": 0}
    lines.append({"event": "end", "created": "999999999h", "container": "b", "usage": tiny})
    audit = tmp_path / "audit"
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    audit.write_text(f"{text}{{}}\nnonsense\n[[[\n{'[' * 100_000}\n")
    found = told(root, "--audit", str(audit))
    rows = {row["container"]: row for row in found["rows"]}
    assert len(found["rows"]) == len(rows) == 5
    train, gone, odd = (rows[name] for name in ("train", "gone", "odd"))
    assert (rows["a"]["status"], rows["b"]["day"]) == ("unknown", "")
    assert rows["b"]["cpu_percent"] is None
    assert train["cpu_percent"] == 50
    assert (gone["waited_seconds"], gone["elapsed_seconds"], gone["exit_status"]) == (2, 6, 1)
    assert (gone["image"], gone["cpu_percent"]) == ("busybox", 33.3)
    assert (odd["container"], odd["status"]) == ("odd", "unknown")
    assert found["notes"] == [f"{audit}: 8 lines are not those of an audit"]
    assert "8 lines" in call(root, "--audit", str(audit))


def test_names_move_no_cursor(root: Root) -> None:
    bad = {"org.scrun.image.name": "\x1b[2J<b>\u202e", "org.scrun.name": "a\nb"}
    root.add(msgspec.structs.replace(ENDED, annotations=bad))
    for by in ("image", "container"):
        for kind in ("table", "json"):
            text = call(root, "--by", by, "--format", kind)
            assert text.replace("\n", "").isprintable()
    assert len(call(root).splitlines()) == 3


def test_one_vanishes_while_it_is_read(
    root: Root, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("goes", "stays"):
        root.add(msgspec.structs.replace(ENDED, id=name))

    def read(directory: str) -> Record:
        if os.path.basename(directory) == "goes":
            shutil.rmtree(directory)
        return read_record(directory)

    monkeypatch.setattr(listing, "read_record", read)
    assert run(parse(["--root", str(root.path), "report", "--format", "json"])) == 0
    assert [row["container"] for row in json.loads(capfd.readouterr().out)["rows"]] == ["stays"]


def test_a_narrow_terminal(root: Root) -> None:
    root.add(ENDED)
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    command = [scrun_binary(), "--root", str(root.path), "report"]
    subprocess.run(command, stdout=slave, check=True, timeout=20)
    os.close(slave)
    head, line, *_ = os.read(master, 4096).decode().splitlines()
    os.close(master)
    assert (len(head), len(line)) == (20, 20)
    assert line.startswith("train")


def test_the_page_shows_what_it_prints(root: Root) -> None:
    used = {
        "user": 370.1, "system": 1.1, "memory": 1_290_000_000, "memory_of": "step", "wall": 94.1,
        "cpus": 8, "limit": 64 << 30,
    }  # fmt: skip
    told = {
        "org.scrun.started": "2026-11-21T13:00:03.410000Z", "org.scrun.reason": "exited",
        "org.scrun.exit_status": "0", "org.scrun.usage": json.dumps(used),
        "org.scrun.image.name": "docker.io/library/train:2",
    }  # fmt: skip
    root.add(Record("train", status="stopped", created=CREATED, annotations=told))
    del told["org.scrun.usage"]
    told |= {"org.scrun.reason": "scrun-failure", "org.scrun.exit_status": "125"}
    root.add(Record("train2", status="stopped", created=CREATED, annotations=told))
    for block in blocks(HOWTO / "report.md"):
        command, _, shown = block.text.partition("\n")
        assert call(root, *command.split()[3:]) == shown


def test_many_are_quick(root: Root) -> None:
    for number in range(1000):
        root.add(msgspec.structs.replace(ENDED, id=f"c{number}"))
    before = os.times()
    assert told(root, "--by", "image")["total"]["containers"] == 1000
    after = os.times()
    spent = sum(after[2:4]) - sum(before[2:4])  # others may use the processors meanwhile
    assert spent < 0.5


class Elements(HTMLParser):
    """What a page consists of; raises ValueError where elements do not fit."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()
        self.texts: list[str] = []
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self._open.pop() != tag:
            raise ValueError(f"{tag} is not open")

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


HOSTILE = (
    "</title></svg><script>alert(1)</script>", "\"'><img src=x onerror=alert(1)>", "&lt;b&gt;&#0;",
    "<!--", "]]><style>*{}", "a\x1b]0;x\x07\u202eb", "\udcff",
)  # fmt: skip


@pytest.mark.covers("security names that are markup")
@pytest.mark.parametrize("by", ["image", "pod", "container"])
def test_a_name_does_not_get_out_of_its_place(root: Root, by: str) -> None:
    root.add(ENDED)
    plain = Elements(call(root, "--by", by, "--format", "html"))
    for number, name in enumerate(HOSTILE):
        names = dict.fromkeys(("name", "image.name", "pod_name", "reason", "pending"), name)
        told = ENDED.annotations | {f"org.scrun.{key}": text for key, text in names.items()}
        root.add(msgspec.structs.replace(ENDED, id=f"h{number}", annotations=told))
    text = call(root, "--by", by, "--format", "html")
    page = Elements(text)
    assert text.replace("\n", "").isprintable()
    assert (page.names.keys(), page.attributes) == (plain.names.keys(), plain.attributes)
    assert not page.names.keys() & {"script", "img", "link", "iframe", "a"}
    assert page.names["tr"] == page.names["svg"] + len(HOSTILE)
    assert {*HOSTILE[:5], r"a\x1b]0;x\x07\u202eb", "?"} <= {*page.texts}
    assert "default-src 'none'" in text


def test_bars(root: Root) -> None:
    root.add(ENDED)
    root.add(Record("lost", status="stopped", created=CREATED))
    double = json.dumps({**USED, "user": 15.0})
    told = {"org.scrun.usage": double}
    root.add(msgspec.structs.replace(ENDED, id="twice", annotations=told))
    text = call(root, "--format", "html")
    widths = re.findall(r'<rect x="260" y="\d+" width="([0-9.]+)"', text)
    assert widths == ["200.0", "400.0", "200.0", "200.0"]
    assert Elements(text).texts.count("not known") == 2
    assert "200.0 %" in text
    for number in range(50):
        root.add(Record(f"n{number}", status="stopped", created=CREATED))
    text = call(root, "--format", "html")
    assert "The bars are of the 40 " in text
    assert re.findall(r'<rect x="260" y="\d+" width="([0-9.]+)"', text) == widths
    assert Elements(text).names["tr"] == 54


def test_an_empty_page(root: Root) -> None:
    page = Elements(call(root, "--format", "html", "--by", "day"))
    assert (page.names["svg"], page.names["tr"]) == (0, 1)
    assert any("0 containers" in text for text in page.texts)
