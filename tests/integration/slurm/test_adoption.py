"""Containers outlive their supervisor: another one adopts them (docs/decisions/adoption.md)."""

import json
import os
import random
import signal
import socket
import subprocess
import termios
import threading
import time

import pytest

from tests.conftest import MakeSite
from tests.harness.adoption import (
    COUNT,
    UNTIL_TOLD,
    adoptions,
    end,
    kill_now_and_then,
    kill_supervisor,
    numbers,
    output,
    told,
    written,
)
from tests.harness.nightly import often
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until

pytestmark = pytest.mark.by_shim


def test_the_first_one_of_a_supervisor_is_safe_when_it_was_created(make_site: MakeSite) -> None:
    """Its keeper was only about to be started when `create` was answered."""
    site = make_site("slurm-user")
    for _ in range(often(3, 12)):
        life = site.shell("exit 7")
        wait_until("its job", site.jobs, 20)  # before, it may still become a daemon
        [supervisor] = site.supervisors()
        life.created(60)
        os.kill(supervisor, signal.SIGKILL)
        life.start(60)
        assert life.wait(30) == 7
        end(life)
        site.kill_supervisors()


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_a_slow_reader_gets_all(make_site: MakeSite, kind: str) -> None:
    """What nobody has read yet is in pipes, and on the node."""
    site = make_site("slurm-user")
    if kind == "pipe":
        readable, writable = os.pipe()
    else:
        readable, writable = (one.detach() for one in socket.socketpair())
    life = site.shell(COUNT.format(400_000), stdout=writable).created(60).start(60)
    os.close(writable)
    time.sleep(2)
    kill_supervisor(site)
    time.sleep(1)
    kill_supervisor(site)
    with open(readable, "rb") as pipe:
        assert pipe.read() == numbers(400_000)
    assert life.wait(30) == 7
    end(life)


def test_all_that_ask_at_once_get_an_answer(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    lives = [site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30) for _ in range(3)]
    kill_supervisor(site)
    asking = [site.popen("state", life.id) for life in lives for _ in range(3)]
    telling = [site.popen("kill", life.id, "USR1", stdio=subprocess.DEVNULL) for life in lives]
    for process in asking:
        answer, _ = process.communicate(timeout=60)
        assert json.loads(answer)["status"] in ("running", "stopped")
    assert [process.wait(60) for process in telling] == [0, 0, 0]
    assert [life.wait(30) for life in lives] == [7, 7, 7]
    end(*lives)


def test_the_keeper_may_die_first(make_site: MakeSite) -> None:
    """There is another one a moment later."""
    site = make_site("slurm-user")
    life = site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)

    def keepers() -> list[int]:
        return [one.pid for one in site.processes() if "scrun-keeper" in one.argv]

    [keeper] = wait_until("the keeper", keepers)
    os.kill(keeper, signal.SIGKILL)
    wait_until("another keeper", lambda: keepers() not in ([], [keeper]), 20)
    kill_supervisor(site)
    told(life)


def test_what_was_typed_before_it_died_is_there(make_site: MakeSite) -> None:
    """Nobody reads it before; and the end of the input, which nobody tells again."""
    site = make_site("slurm-user")
    script = "echo up; until [ -e /gate ]; do sleep 0.01; done; cat; exit 7"
    life = site.shell(script, stdin="pipe").created(60).start(60).says("up", 30)
    os.write(life.stdin, b"before\n")
    time.sleep(0.5)
    kill_supervisor(site)
    os.write(life.stdin, b"between\n")
    wait_until("it is adopted", lambda: adoptions(life), 20)
    os.write(life.stdin, b"after\n")
    life.close_stdin()
    time.sleep(0.5)
    kill_supervisor(site)
    wait_until("it is adopted again", lambda: adoptions(life) == 2, 20)
    (site.rootfs / "gate").touch()
    assert life.wait(30) == 7
    assert output(life) == b"up\nbefore\nbetween\nafter\n"
    end(life)


def test_a_writer_sees_that_the_container_has_closed_its_input(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    script = "read line; exec <&-; echo $line; trap 'exit 7' USR1; while :; do sleep 0.05; done"
    life = site.shell(script, stdin="pipe").created(60).start(60)
    kill_supervisor(site)
    os.write(life.stdin, b"up\n")
    life.says("up", 30)

    def is_closed() -> bool:
        try:
            os.write(life.stdin, b"more\n")
        except BrokenPipeError:
            return True
        return False

    wait_until("nobody reads it", is_closed, 20)
    kill_supervisor(site)
    told(life)


_ECHO = "stty -echo -onlcr; echo up; while read n && [ $n != end ]; do echo $n; done; exit 7"


def test_a_terminal_however_often_it_dies(make_site: MakeSite, dice: random.Random) -> None:
    """What is typed and shown, to the byte."""
    site = make_site("slurm-user")
    life = site.shell(_ECHO, terminal=True).created(60)
    terminal = life.terminal()
    life.start(60)
    terminal.read_until("up\n", 30)
    data = numbers(60_000)
    killing = threading.Thread(target=kill_now_and_then, args=(site, dice, 6))
    with written(os.dup(terminal.master), data + b"end\n"):
        killing.start()
        shown = terminal.read_all(60)
    killing.join(30)
    assert life.wait(60) == 7
    assert shown == data.decode()
    assert adoptions(life)
    terminal.close()
    end(life)


_SIZES = "trap 'stty size' WINCH; trap 'exit 7' HUP; echo up; while :; do sleep 0.05; done"


def test_the_size_and_the_end_of_a_terminal(make_site: MakeSite) -> None:
    """Also if nobody was there to notice."""
    site = make_site("slurm-user")
    life = site.shell(_SIZES, terminal=True).created(60)
    terminal = life.terminal()
    terminal.resize(24, 80)
    life.start(60)
    terminal.read_until("up", 30)
    supervisor = site.stopped_supervisor()
    terminal.resize(31, 101)
    time.sleep(0.5)
    os.kill(supervisor, signal.SIGKILL)
    terminal.read_until("31 101", 30)
    terminal.resize(32, 102)
    terminal.read_until("32 102", 30)
    kill_supervisor(site)
    terminal.close()
    assert life.wait(30) in (7, 129)
    end(life)


def test_a_run_at_a_terminal(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    bundle = site.bundle_of("sh", "-c", _ECHO, terminal=True)
    terminal, own = open_terminal()
    os.fchown(own, site.user.uid, -1)  # who may not open it copies by a process that dies
    before = termios.tcgetattr(own)
    process = site.popen("run", "--bundle", bundle, "one", stdio=own)
    terminal.read_until("up\n", 60)
    for number in range(3):
        kill_supervisor(site)
        terminal.write(f"{number}\n")
        assert terminal.read_until(f"{number}\n", 30) == f"{number}\n"
    terminal.write("end\n")
    assert process.wait(60) == 7
    assert termios.tcgetattr(own) == before
    os.close(own)
    terminal.close()
    site.settle(20)
