"""Those who watch a container go on when its supervisor is killed (docs/decisions/adoption.md)."""

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
    kill_all_supervisors,
    kill_now_and_then,
    kill_supervisor,
    numbers,
)
from tests.harness.life import Collector
from tests.harness.site import Site
from tests.harness.terminal import Terminal, open_terminal
from tests.harness.wait import wait_until

pytestmark = pytest.mark.by_shim

_ECHO = "stty -echo -onlcr; echo up; while read n && [ $n != end ]; do echo $n; done; exit 7"
_ENDS = "until [ -e /gate ]; do sleep 0.01; done; "


def detached(site: Site, script: str, *, terminal: bool = False) -> None:
    """Run the container `one`, whose output is kept."""
    bundle = site.bundle_of("sh", "-c", script, terminal=terminal)
    site.must("run", "--detach", "--bundle", bundle, "one", timeout=60)


def watching(site: Site, *words: str) -> "tuple[subprocess.Popen[bytes], Collector]":
    """Run a command that watches, and collect what it says."""
    process = site.popen(*words, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
    assert process.stdout
    with process.stdout as stdout:
        return process, Collector(os.dup(stdout.fileno()))


def attached(site: Site) -> "tuple[subprocess.Popen[bytes], Terminal]":
    terminal, own = open_terminal()
    os.fchown(own, site.user.uid, -1)
    process = site.popen("attach", "one", stdio=own)
    os.close(own)
    return process, terminal


def deleted(site: Site) -> None:
    """Delete the container, which was adopted, and hold that nothing is left."""
    assert "this one goes on" in site.must("logs", "--messages", "one")
    site.must("delete", "--force", "one")
    site.settle(20)


def test_no_byte_is_lost_or_doubled_for_who_follows(
    make_site: MakeSite, dice: random.Random
) -> None:
    site = make_site("slurm-user")
    detached(site, _ENDS + COUNT.format(150_000))
    followers = [watching(site, "logs", "--follow", "one") for _ in range(3)]
    messages = watching(site, "logs", "--follow", "--messages", "one")
    (site.rootfs / "gate").touch()
    kill_now_and_then(site, dice, 6)
    for process, output in followers:
        assert process.wait(90) == 0
        assert output.all() == numbers(150_000)
    assert messages[0].wait(30) == 0
    said = messages[1].all().decode()
    assert said == site.must("logs", "--messages", "one")
    deleted(site)


def test_one_that_begins_to_follow_while_there_is_nobody(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    detached(site, "echo up; " + _ENDS + "echo bye; exit 7")
    wait_until("it is up", lambda: site.must("logs", "one"), 30)
    kill_supervisor(site)
    process, output = watching(site, "logs", "--follow", "one")
    wait_until("it follows", lambda: output.so_far == b"up\n", 30)
    (site.rootfs / "gate").touch()
    assert process.wait(30) == 0
    assert output.all() == b"up\nbye\n"
    deleted(site)


@pytest.mark.parametrize("command", ["attach", "logs"])
def test_one_whose_supervisor_dies_before_it_answers(make_site: MakeSite, command: str) -> None:
    site = make_site("slurm-user")
    detached(site, "echo up; " + _ENDS + "echo bye; exit 7")
    wait_until("it is up", lambda: site.must("logs", "one"), 30)
    supervisor = site.stopped_supervisor()
    words = ("logs", "--follow", "one") if command == "logs" else ("attach", "one")
    process, output = watching(site, *words)
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    wait_until("it is adopted", lambda: "goes on" in site.must("logs", "--messages", "one"), 30)
    time.sleep(1)
    (site.rootfs / "gate").touch()
    assert process.wait(30) == (7 if command == "attach" else 0)
    assert output.all() == (b"bye\n" if command == "attach" else b"up\nbye\n")
    deleted(site)


def test_what_is_typed_and_shown(make_site: MakeSite, dice: random.Random) -> None:
    """Each line comes back once, also those that are typed while there is nobody."""
    site = make_site("slurm-user")
    detached(site, _ECHO, terminal=True)
    process, terminal = attached(site)
    time.sleep(1)
    terminal.write("first\n")
    terminal.read_until("first\n", 30)
    killing = threading.Thread(target=kill_now_and_then, args=(site, dice, 5))
    killing.start()
    for number in range(200):
        terminal.write(f"{number}\n")
        assert terminal.read_until(f"{number}\n", 60) == f"{number}\n"
    killing.join(30)
    terminal.write("end\n")
    assert process.wait(60) == 7
    terminal.close()
    assert site.must("logs", "one").split() == ["up", "first", *map(str, range(200))]
    deleted(site)


def test_output_of_many_bytes_at_a_terminal(make_site: MakeSite, dice: random.Random) -> None:
    site = make_site("slurm-user")
    detached(site, "stty -onlcr; read line; " + COUNT.format(400_000), terminal=True)
    process, terminal = attached(site)
    time.sleep(1)
    terminal.write("go\n")
    killing = threading.Thread(target=kill_now_and_then, args=(site, dice, 5))
    killing.start()
    shown = terminal.read_until("\n399999\n", 90)
    killing.join(30)
    assert process.wait(60) == 7
    assert shown.partition("go")[2].split() == numbers(400_000).decode().split()
    terminal.close()
    deleted(site)


def test_signals_and_the_size_wait_for_the_successor(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    sizes = "trap 'stty size' WINCH; trap 'echo got' USR1; trap 'exit 7' TERM; echo up; "
    detached(site, sizes + "while :; do sleep 0.05; done", terminal=True)
    process, terminal = attached(site)
    time.sleep(1)
    supervisor = site.stopped_supervisor()
    terminal.resize(31, 101)
    process.send_signal(signal.SIGWINCH)  # it is not its controlling terminal
    time.sleep(0.2)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)
    os.kill(supervisor, signal.SIGKILL)
    terminal.read_until("got", 30)
    assert "31 101" in site.must("logs", "one")
    kill_supervisor(site)
    process.terminate()
    assert process.wait(30) == 7
    terminal.close()
    deleted(site)


@pytest.mark.parametrize("command", ["attach", "logs"])
def test_it_ends_while_there_is_nobody(make_site: MakeSite, command: str) -> None:
    site = make_site("slurm-user")
    detached(site, "echo up; " + _ENDS + "echo bye; exit 7")
    wait_until("it is up", lambda: site.must("logs", "one"), 30)
    words = ("logs", "--follow", "one") if command == "logs" else ("attach", "one")
    process, output = watching(site, *words)
    time.sleep(1)
    supervisor = site.stopped_supervisor()
    (site.rootfs / "gate").touch()
    time.sleep(1)
    os.kill(supervisor, signal.SIGKILL)
    assert process.wait(30) == (7 if command == "attach" else 0)
    assert output.all() == (b"bye\n" if command == "attach" else b"up\nbye\n")
    deleted(site)


@pytest.mark.parametrize("command", ["attach", "logs"])
def test_nobody_comes(make_site: MakeSite, command: str) -> None:
    """One line says so."""
    site = make_site("slurm-user")
    detached(site, "echo up; " + _ENDS)
    wait_until("it is up", lambda: site.must("logs", "one"), 30)
    words = ("logs", "--follow", "one") if command == "logs" else ("attach", "one")
    process, output = watching(site, *words)
    time.sleep(1)
    site.kill_supervisors()
    assert process.wait(90) == (125 if command == "attach" else 1)
    said = output.all().decode().removeprefix("up\n")
    assert said == "scrun: container one is stopped: its supervisor is gone; delete it\n"
    site.must("delete", "--force", "one")
    site.settle(20)


def test_events_and_ps(make_site: MakeSite, dice: random.Random) -> None:
    site = make_site("slurm-user")
    detached(site, _ENDS + "exit 7")
    process, output = watching(site, "events", "--interval", "100ms", "one")
    asking = threading.Thread(target=kill_now_and_then, args=(site, dice, 2))
    asking.start()
    for _ in range(10):
        assert "sh" in site.must("ps", "one")
    asking.join(30)
    count = output.so_far.count(b"\n")
    kill_all_supervisors(site)
    wait_until("more", lambda: output.so_far.count(b"\n") > count + 3, 30)
    (site.rootfs / "gate").touch()
    assert process.wait(30) == 0
    assert b"scrun:" not in output.all()
    deleted(site)
