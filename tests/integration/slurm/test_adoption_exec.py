"""Programs of `exec` outlive the supervisor, with their container (docs/decisions/adoption.md)."""

import os
import random
import signal
import subprocess
import threading
import time

import pytest

from tests.conftest import MakeSite
from tests.harness.adoption import (
    COUNT,
    UNTIL_TOLD,
    adoptions,
    at,
    kill_all_supervisors,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    told,
    written,
)
from tests.harness.life import Collector, Life
from tests.harness.nightly import often
from tests.harness.site import Site
from tests.harness.terminal import Terminal, open_terminal
from tests.harness.wait import wait_until, wait_while

HERE_TOO = at("local-user", "shim")
SHIM = at("shim")


@pytest.fixture
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Site:
    return make_site("slurm-user" if request.param == "shim" else request.param)


def up(site: Site) -> Life:
    """Have a container that runs until it is told to end."""
    return site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)


def began(site: Site, life: Life, script: str) -> "subprocess.Popen[bytes]":
    """Run a program in it that has said `in`."""
    program = quiet(site, life, script)
    assert program.stdout
    assert program.stdout.readline() == b"in\n"
    return program


def quiet(site: Site, life: Life, script: str, **how: int) -> "subprocess.Popen[bytes]":
    """Run a program in it, without input and errors unless there is more to say."""
    usual = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return site.popen("exec", life.id, "sh", "-c", script, **{**usual, **how})


def collected(program: "subprocess.Popen[bytes]") -> Collector:
    """Collect its output from now on."""
    assert program.stdout
    with program.stdout as stdout:
        return Collector(os.dup(stdout.fileno()))


def at_terminal(site: Site, life: Life, script: str) -> "tuple[subprocess.Popen[bytes], Terminal]":
    """Run a program in it, at a terminal."""
    terminal, own = open_terminal()
    os.fchown(own, site.user.uid, -1)
    program = site.popen("exec", "--tty", life.id, "sh", "-c", script, stdio=own)
    os.close(own)
    return program, terminal


def is_there(site: Site, life: Life, words: str) -> bool:
    """Tell whether a program runs in the container, as far as is known."""
    done = site.run("exec", life.id, "ps")  # it may reach a supervisor that is being killed
    return done.returncode != 0 or words in done.stdout


def over(life: Life) -> None:
    """End the container, which was adopted."""
    wait_until("it is adopted", lambda: adoptions(life), 20)
    told(life)


@SHIM
def test_no_byte_of_its_output_is_lost_or_doubled(site: Site, dice: random.Random) -> None:
    life = up(site)
    program = quiet(site, life, f"echo in; {COUNT.format(300_000)}")
    output = collected(program)
    wait_until("it runs", lambda: output.so_far, 30)
    kill_now_and_then(site, dice, 6)
    assert program.wait(90) == 7
    assert output.all() == b"in\n" + numbers(300_000)
    over(life)


@pytest.mark.nightly
@HERE_TOO
def test_input_arrives_once(site: Site, dice: random.Random) -> None:
    life, data = up(site), numbers(150_000)
    stdin, to = os.pipe()
    script = "while read n; do echo $n; done; exit 9"
    program = quiet(site, life, script, stdin=stdin)
    os.close(stdin)
    output = collected(program)
    with written(to, data):
        wait_until("it runs", lambda: output.so_far, 30)
        kill_now_and_then(site, dice, 6)
        assert program.wait(90) == 9
    assert output.all() == data
    over(life)


@SHIM
def test_a_terminal(site: Site, dice: random.Random) -> None:
    """What is typed and shown, to the byte; and a size of it that nobody told."""
    life = up(site)
    script = "stty -echo -onlcr; echo up; while read n && [ $n != end ]; do echo $n; done; "
    program, terminal = at_terminal(site, life, script + "stty size; exit 9")
    terminal.read_until("up\n", 30)
    data = numbers(60_000)
    killing = threading.Thread(target=kill_now_and_then, args=(site, dice, 6))
    with written(os.dup(terminal.master), data):
        killing.start()
        shown = terminal.read_until("59999\n", 60)
    killing.join(30)
    assert shown == data.decode()
    [supervisor] = wait_until("one", site.supervisors, 20)
    os.kill(supervisor, signal.SIGSTOP)
    terminal.resize(31, 101)
    time.sleep(0.5)
    os.kill(supervisor, signal.SIGKILL)
    # the one that is killed may still get a call, and then that says so
    wait_until("it is adopted", lambda: site.run("exec", life.id, "true").returncode == 0, 20)
    terminal.write("end\n")
    terminal.read_until("31 101", 30)
    assert program.wait(30) == 9
    terminal.close()
    over(life)


@HERE_TOO
def test_signals_and_its_status(site: Site) -> None:
    """Signals that come while there is nobody wait; others are forwarded afterwards."""
    life = up(site)
    trap = "trap 'echo got' USR1; trap 'exit 9' USR2; echo in; while :; do sleep 0.05; done"
    program = began(site, life, trap)
    supervisor = site.stopped_supervisor()
    program.send_signal(signal.SIGUSR1)
    time.sleep(0.3)
    os.kill(supervisor, signal.SIGKILL)
    assert program.stdout
    assert program.stdout.readline() == b"got\n"
    kill_supervisor(site)
    wait_until("it is adopted again", lambda: adoptions(life) == 2, 20)
    program.send_signal(signal.SIGUSR1)
    assert program.stdout.readline() == b"got\n"
    program.send_signal(signal.SIGUSR2)
    assert program.wait(30) == 9
    program.stdout.close()
    over(life)


@SHIM
def test_one_that_ends_meanwhile_has_its_status(site: Site) -> None:
    """Nobody was there to hear of it, twice."""
    life = up(site)
    program = began(
        site, life, "echo in; until [ -e /gate ]; do sleep 0.01; done; echo bye; exit 9"
    )
    kill_supervisor(site)
    wait_until("it is adopted", lambda: adoptions(life), 20)
    supervisor = site.stopped_supervisor()
    (site.rootfs / "gate").touch()
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    output, _ = program.communicate(timeout=30)
    assert (output, program.returncode) == (b"bye\n", 9)
    over(life)


@HERE_TOO
def test_it_ends_with_its_command(site: Site) -> None:
    """Also if that is killed while there is no supervisor."""
    life = up(site)
    program = began(site, life, "trap '' TERM; echo in; exec sleep 611")
    supervisor = site.stopped_supervisor()
    program.kill()
    program.wait(10)
    os.kill(supervisor, signal.SIGKILL)
    assert program.stdout
    assert program.stdout.read() == b""
    program.stdout.close()
    wait_while("the program", lambda: is_there(site, life, "sleep 611"), 30)
    over(life)


@HERE_TOO
def test_it_ends_with_its_container(site: Site) -> None:
    life = up(site)
    program = began(site, life, "echo in; exec sleep 611")
    kill_supervisor(site)
    over(life)
    program.communicate(timeout=30)
    assert program.returncode == 128 + signal.SIGKILL


@SHIM
def test_many_at_once(site: Site, dice: random.Random) -> None:
    """Each has its own output and status; nothing grows with those that have ended."""
    life = up(site)
    for _ in range(80):
        site.must("exec", life.id, "true")
    script = "echo in; until [ -e /gate ]; do sleep 0.05; done; echo {}; exit {}"
    programs = [began(site, life, script.format(n, n)) for n in range(20)]
    kill_now_and_then(site, dice, 3)
    (site.rootfs / "gate").touch()
    for number, program in enumerate(programs):
        output, _ = program.communicate(timeout=60)
        assert (output, program.returncode) == (b"%d\n" % number, number)
    over(life)


@SHIM
def test_it_is_killed_as_a_program_begins(site: Site, dice: random.Random) -> None:
    """The program runs, or its command says that it does not; nothing is half done."""
    life = up(site)
    pid_file, errors = (site.base / "l" / name for name in ("program.pid", "errors"))
    for number in range(700, 700 + often(4, 12)):
        words = ("--detach", "--pid-file", str(pid_file), life.id, "sleep", str(number))
        with errors.open("wb") as file:
            began = site.popen("exec", *words, stdio=subprocess.DEVNULL, stderr=file.fileno())
        time.sleep(dice.uniform(0.02, 0.2))
        kill_all_supervisors(site)
        runs, said = began.wait(60) == 0, errors.read_bytes()
        assert runs == (said == b"")
        assert runs or said.endswith(b"died before the program ran; try again\n")
        assert is_there(site, life, f"sleep {number}") == runs
        if runs:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
            pid_file.unlink()
            wait_while("it", lambda: is_there(site, life, f"sleep {number}"), 20)  # noqa: B023
    errors.unlink()
    over(life)


@SHIM
def test_a_restart_does_not_wait_for_it(site: Site) -> None:
    life = up(site)
    program = began(site, life, "echo in; until [ -e /gate ]; do sleep 0.05; done; exit 9")
    before = site.supervisors()
    assert "exec" not in site.must("supervisor", "restart")
    wait_until("another one alone", lambda: not {*before} & {*site.supervisors()}, 30)
    wait_until("it is adopted", lambda: adoptions(life), 20)
    (site.rootfs / "gate").touch()
    program.communicate(timeout=30)
    assert program.returncode == 9
    over(life)
