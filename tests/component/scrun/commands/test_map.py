"""`scrun map`, whose lines a shell runs here instead of `scrun run`."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import CHECKOUT
from tests.harness.disk import mounted
from tests.harness.program import run_program
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("scrun map")

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
sys.argv[0] = "./scrun"
from scrun.main import main
main()
"""
# after its own options, `run` and the image
_RUN = '#!/bin/sh\nwhile [ "$1" != run ]; do shift; done\nshift 2\nexec sh -c "$*"\n'


class Place:
    def __init__(self, base: Path) -> None:
        self.base = base
        (base / "scrun").write_text(_RUN)
        (base / "scrun").chmod(0o755)
        self.environment = {**os.environ, "SCRUN_ROOT": str(base / "r"), "HOME": str(base)}
        self._command = [sys.executable, "-I", "-c", _PROGRAM, str(CHECKOUT)]

    def write(self, *lines: str) -> None:
        (self.base / "work.txt").write_text("\n".join(map(shlex.quote, lines)))

    def words(self, *options: str) -> list[str]:
        return [*self._command, "map", "--image", "./box", *options, "work.txt"]

    def run(self, *options: str, **how: Any) -> "subprocess.CompletedProcess[str]":
        return run_program(self.words(*options), cwd=self.base, env=self.environment, **how)

    def popen(self, *options: str, **how: Any) -> "subprocess.Popen[bytes]":
        usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": self.base}
        return subprocess.Popen(self.words(*options), env=self.environment, **{**usual, **how})

    def read(self, name: str) -> str:
        return (self.base / "map-work.out" / name).read_text()

    def table(self, done: "subprocess.CompletedProcess[str]") -> list[list[str]]:
        head, *rows = [line.split() for line in done.stdout.splitlines()]
        assert head == ["STATUS", "COUNT", "LINES"]
        return rows

    def running(self) -> list[int]:
        """The lines that say with `echo $$` who they are, and still run."""
        found = [int(file.read_text() or 0) for file in self.base.glob("map-work.out/*.out")]
        return [pid for pid in found if pid and Path(f"/proc/{pid}/cwd").exists()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


_SLEEPS = "echo $$; exec sleep 30"


def test_all_is_well(place: Place) -> None:
    place.write("echo out; echo err >&2", "readlink /proc/self/fd/0", "ls /proc/self/fd")
    done = place.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert place.table(done) == [["0", "3", "1-3"]]
    assert (place.read("001.out"), place.read("001.err")) == ("out\n", "err\n")
    assert place.read("002.out") == "/dev/null\n"
    assert place.read("003.out") == "0\n1\n2\n3\n"  # the last one is that of ls


def test_some_at_once(place: Place) -> None:
    place.write(*["touch x$$; ls x* | wc -l; sleep 0.3; rm x$$"] * 9)
    assert place.run("--jobs", "3").returncode == 0
    assert max(int(place.read(f"00{number}.out")) for number in range(1, 10)) == 3


def test_statuses(place: Place) -> None:
    place.write("exit 3", "true", "kill -9 $$", "exit 3", "true", "true", "exit 3")
    done = place.run()
    assert (done.returncode, done.stderr) == (1, "")
    assert place.table(done) == [["0", "3", "2,5-6"], ["3", "3", "1,4,7"], ["137", "1", "3"]]


def test_again(place: Place) -> None:
    place.write("echo x >> n; wc -l < n; test $(wc -l < n) -gt 2", "echo x >> m; exit 7")
    done = place.run("--retry", "2", "--jobs", "1")
    assert place.table(done) == [["0", "1", "1"], ["7", "1", "2"]]
    assert place.read("001.out") == "3\n"
    assert (place.base / "m").read_text() == "x\n" * 3


def test_it_goes_on(place: Place) -> None:
    place.write("echo x >> n", "echo x >> n; test -e m", "echo x >> n")
    assert place.run().returncode == 1
    assert "has the output of a map: add --resume to go on with that" in place.run().stderr
    (place.base / "m").touch()
    done = place.run("--resume")
    assert (done.returncode, done.stderr) == (0, "")
    assert place.table(done) == [["0", "3", "1-3"]]
    assert (place.base / "n").read_text() == "x\n" * 4
    with (place.base / "map-work.out" / "statuses").open("a") as file:
        file.write("nonsense\n4 0 abc\n3 0")  # a part
    place.write("echo x >> n", "echo new", "echo x >> n")
    done = place.run("--resume")
    assert (
        done.stderr
        == "scrun: work.txt has changed: 2 lines that have run are others now, or gone\n"
    )
    assert place.read("002.out") == "new\n"
    assert (place.base / "n").read_text() == "x\n" * 4
    assert place.run("--resume").stderr.count("1 lines that") == 1


def test_nobody_elses_files(place: Place) -> None:
    place.write("true")
    (place.base / "other").mkdir()
    (place.base / "other" / "001.out").write_text("precious")
    done = place.run("--output", "other")
    assert done.returncode == 1
    assert "other: has files that are not of a map: use another --output" in done.stderr
    if os.geteuid() == 0:
        os.chown(place.base / "other", 1, 1)
        assert "other: belongs to uid 1: use another" in place.run("--output", "other").stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted(place: Place, number: int) -> None:
    place.write(*[_SLEEPS] * 10000)
    with place.popen("--jobs", "4") as process:
        wait_until("they run", lambda: len(place.running()) == 4)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert err == (
        b"scrun: no more lines are begun, and what runs is ended; once more ends it at once\n"
    )
    rows = [line.split() for line in out.decode().splitlines()]
    assert rows[1:] == [["143", "4", "1-4"], ["-", "9996", "5-10000"]]
    assert place.running() == []


def test_interrupted_while_it_begins(place: Place) -> None:
    place.write("kill -INT $PPID", *["true"] * 999)
    done = place.run("--jobs", "1000")
    assert (done.returncode, done.stderr.count("no more lines are begun")) == (130, 1)
    assert len([*place.base.glob("map-work.out/*.out")]) < 900


def test_interrupted_again(place: Place) -> None:
    place.write("trap 'trap - TERM; echo once' TERM; echo $$; while :; do sleep 0.1; done")
    with place.popen() as process:
        wait_until("it runs", lambda: place.running())
        process.send_signal(signal.SIGINT)
        wait_until("it is told", lambda: "once" in place.read("001.out"))
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_what_is_ignored_stays_so(place: Place) -> None:
    place.write("echo $$; sleep 1")
    with place.popen(preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
        wait_until("it runs", lambda: place.running())
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 0


def test_killed(place: Place) -> None:
    place.write(*[_SLEEPS] * 9)
    with place.popen("--jobs", "3") as process:
        wait_until("they run", lambda: len(place.running()) == 3)
        process.kill()
    wait_while("what it has begun", place.running)


def test_two_at_once(place: Place) -> None:
    place.write(_SLEEPS)
    with place.popen() as process:
        wait_until("it runs", lambda: place.running())
        done = place.run("--resume")
        assert done.returncode == 1
        assert "map-work.out: another map uses it: wait for its end, or use" in done.stderr
        process.terminate()
        process.wait(20)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_a_full_disk(place: Place) -> None:
    place.write("sleep 0.5", *["sleep 1.5"] * 29)  # some still run when the fifth cannot begin
    with mounted(str(place.base / "full"), 0, 0, "size=64k,nr_inodes=12"):
        done = place.run("--jobs", "4", "--output", "full/out")
        assert done.returncode == 1
        assert place.table(done)[0][:2] == ["0", "4"]
        assert re.fullmatch(
            r"scrun: full/out/005.err: No space left on device; make space there: no more lines "
            r"are begun\nscrun: full/out/005.err: No space left on device; make space there\n",
            done.stderr,
        )


def test_no_link_is_followed(place: Place) -> None:
    place.write("true", "true")
    (place.base / "map-work.out").mkdir()
    (place.base / "map-work.out" / "statuses").symlink_to("/dev/full")
    assert "Too many levels of symbolic links" in place.run().stderr


def test_at_a_terminal(place: Place) -> None:
    place.write("sleep 0.5", "exit 1", "sleep 0.5")
    terminal, slave = open_terminal()
    with place.popen("--jobs", "1", stdout=slave, stderr=slave) as process:
        os.close(slave)
        terminal.read_until("67% [#############.......] work.txt: 2 of 3 lines, 1 failed, 1 run")
        assert terminal.read_all().endswith(
            "\r\x1b[KSTATUS  COUNT  LINES\r\n0       2      1,3\r\n1       1      2\r\n"
        )
    terminal.close()
    assert process.returncode == 1


def test_from_standard_input(place: Place) -> None:
    words = [*place.words()[:-1], "-"]
    done = run_program(words, cwd=place.base, env=place.environment, input="echo one\n\necho two")
    assert done.returncode == 0
    assert (place.base / "map-stdin.out" / "003.out").read_text() == "two\n"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--jobs", "0"), "map: --jobs 0: a number from 1 to 10000 expected"),
        (("--retry", "x"), "map: --retry x: a number from 0 to 100 expected"),
        (("--pool", "none"), "there is no pool none: start it by 'scrun pool start none'"),
    ],
)
def test_refused(place: Place, options: tuple[str, ...], why: str) -> None:
    place.write("true")
    (place.base / "r").mkdir(0o700)
    done = place.run(*options)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"scrun: {why}\n"
    assert not (place.base / "map-work.out").exists()
