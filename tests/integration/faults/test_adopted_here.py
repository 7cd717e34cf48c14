"""Containers on this machine outlive their supervisor (docs/decisions/adoption.md)."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.adoption import (
    UNTIL_TOLD,
    adopted,
    end,
    kill_supervisor,
    told,
)
from tests.harness.nightly import nightly
from tests.harness.site import Site
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until, wait_while

# no trap for WINCH: after that, `read` of busybox 1.38 never ends
_ANSWERS = """
stty size
while read line; do
    echo got $line
    [ $line = end ] && exit 7
    [ $line = size ] && until [ "$(stty size)" = "60 120" ]; do sleep 0.1; done && stty size
done
"""

PLACES = pytest.mark.parametrize("place", ["local-root", "local-user"])


def one_is_adopted(site: Site) -> bool:
    return "this one goes on" in site.run("logs", "--messages", "one").stdout


@PLACES
def test_what_it_was_made_of_is_gone(make_site: MakeSite, place: str) -> None:
    """Its config.json and the settings: what is adopted is as it was."""
    site = make_site(place)
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    settings, config = site.base / "scrun.toml", life.bundle / "config.json"
    text = settings.read_text()
    config.unlink()
    settings.write_text("no = TOML")
    kill_supervisor(site)
    adopted(life)
    settings.write_text(text)
    assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    told(life)


@PLACES
@pytest.mark.parametrize("how", ["create", nightly("run")])
def test_one_that_ends_meanwhile_has_its_status(make_site: MakeSite, place: str, how: str) -> None:
    """Nobody was there to hear of it."""
    site = make_site(place)
    script = "echo up; until [ -e /gate ]; do sleep 0.01; done; echo bye; exit 9"
    if how == "create":
        life = site.shell(script).created().start().says("up")
    else:
        running = site.popen("run", "--keep", "--bundle", site.bundle_of("sh", "-c", script), "c")
        assert running.stdout
        assert running.stdout.readline() == b"up\n"
    supervisor = site.stopped_supervisor()
    (site.rootfs / "gate").touch()
    time.sleep(0.5)
    os.kill(supervisor, signal.SIGKILL)
    if how == "create":
        assert life.wait(30) == 9
        assert life.output() == "up\nbye\n"
        wait_until("it is known", lambda: life.status == "stopped")
        assert life.state()["annotations"]["org.scrun.exit_status"] == "9"
        life.delete(60)
    else:
        assert running.wait(30) == 9
        assert running.communicate() == (b"bye\n", b"")
        assert '"org.scrun.exit_status": "9"' in site.must("state", "c")
        site.must("delete", "--force", "c")
    site.settle(20)


def test_a_signal_for_run_in_the_foreground(make_site: MakeSite) -> None:
    site = make_site("local-user")
    script = "trap 'echo got; exit 9' INT; echo up; while :; do sleep 0.05; done"
    running = site.popen("run", "--bundle", site.bundle_of("sh", "-c", script), "one")
    assert running.stdout
    assert running.stdout.readline() == b"up\n"
    kill_supervisor(site)
    running.send_signal(signal.SIGINT)
    assert running.wait(30) == 9
    assert running.stdout.read() == b"got\n"
    running.communicate()
    site.settle(20)


@PLACES
def test_a_terminal_of_an_engine(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    life = site.shell(_ANSWERS, terminal=True).created()
    terminal = life.terminal()
    terminal.resize(50, 100)
    life.start()
    terminal.read_until("50 100")
    kill_supervisor(site)
    terminal.says_got()
    terminal.resize(60, 120)
    terminal.write("size\n")
    terminal.read_until("60 120")
    terminal.write("end\n")
    assert life.wait(20) == 7
    terminal.close()
    end(life)


@PLACES
def test_a_terminal_of_run(make_site: MakeSite, place: str) -> None:
    """The reaper carries it, which lives on."""
    site = make_site(place)
    screen, slave = open_terminal()
    bundle = site.bundle_of("sh", "-c", _ANSWERS, terminal=True)
    running = site.popen("run", "--bundle", bundle, "one", stdio=slave)
    screen.read_until("43 143")
    kill_supervisor(site)
    screen.says_got()
    wait_until("it is adopted", lambda: one_is_adopted(site), 20)
    screen.resize(60, 120)
    running.send_signal(signal.SIGWINCH)
    screen.write("size\n")
    screen.read_until("60 120")
    screen.write("end\n")
    assert running.wait(30) == 7
    os.close(slave)
    screen.close()
    site.settle(20)


@PLACES
@pytest.mark.parametrize("how", ["create", nightly("run")])
def test_both_are_killed(make_site: MakeSite, place: str, how: str) -> None:
    """Supervisor and keeper at once: all ends with them."""
    site = make_site(place)
    if how == "create":
        life = site.shell(UNTIL_TOLD).created().start().says("up")
        site.kill_supervisors()
        assert life.wait(20) == 137
        assert life.status == "stopped"
        life.delete(60)
    else:
        words = ("run", "--keep", "--bundle", site.bundle_of("sh", "-c", UNTIL_TOLD), "one")
        running = site.popen(*words)
        assert running.stdout
        assert running.stdout.readline() == b"up\n"
        site.kill_supervisors()
        assert running.wait(20) == 125
        running.communicate()
        for command in ("attach", "pause", "resume"):
            assert "its supervisor is gone" in site.fails(command, "one")
        site.must("delete", "--force", "one")
    site.settle(20)


@pytest.mark.parametrize("how", ["create", nightly("run")])
def test_its_keepalive_is_killed_meanwhile(make_site: MakeSite, how: str) -> None:
    """That is as if the job had been cancelled."""
    site = make_site("local-user")
    running = None
    if how == "create":
        life = site.shell(UNTIL_TOLD).created().start().says("up")
        container = life.id
    else:
        container = "one"
        bundle = site.bundle_of("sh", "-c", UNTIL_TOLD)
        running = site.popen("run", "--keep", "--bundle", bundle, container)
        assert running.stdout
        assert running.stdout.readline() == b"up\n"
    [keepalive] = [one for one in site.processes() if "text=$line" in " ".join(one.argv)]
    supervisor = site.stopped_supervisor()
    os.kill(keepalive.pid, signal.SIGKILL)
    os.kill(supervisor, signal.SIGKILL)
    if running:
        assert running.wait(30) == 122
        running.communicate()
    else:
        assert life.wait(30) == 137
    wait_until("its end", lambda: '"stopped"' in site.must("state", container))
    assert '"org.scrun.reason": "cancelled"' in site.must("state", container)
    site.must("delete", "--force", container)
    site.settle(20)


def test_its_reaper_is_killed_after_it(make_site: MakeSite) -> None:
    site = make_site("local-user")
    running = site.popen("run", "--bundle", site.bundle_of("sh", "-c", UNTIL_TOLD), "one")
    assert running.stdout
    assert running.stdout.readline() == b"up\n"
    kill_supervisor(site)
    wait_until("it is adopted", lambda: one_is_adopted(site), 20)
    [reaper] = [one.pid for one in site.processes() if "reapers/runtime.py" in " ".join(one.argv)]
    os.kill(reaper, signal.SIGKILL)
    assert running.wait(30) == 125
    assert b"its reaper ended first" in running.communicate()[1]
    site.settle(20)


def test_a_program_of_exec_at_a_terminal_goes_on(make_site: MakeSite) -> None:
    site = make_site("local-user")
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    terminal, own = open_terminal()
    script = "stty -echo; echo in; while read n && [ $n != end ]; do stty size; done; exit 9"
    program = site.popen("exec", "--tty", life.id, "sh", "-c", script, stdio=own)
    os.close(own)
    terminal.read_until("in", 30)
    for number in range(2):
        [supervisor] = wait_until("one supervisor", site.supervisors, 20)
        os.kill(supervisor, signal.SIGSTOP)
        terminal.resize(30 + number, 100)
        time.sleep(0.3)
        os.kill(supervisor, signal.SIGKILL)
        wait_until("another", lambda: {*site.supervisors()} - {supervisor}, 20)  # noqa: B023
        site.must("exec", life.id, "true")
        terminal.write("size\n")
        terminal.read_until(f"{30 + number} 100", 30)
    terminal.write("end\n")
    assert program.wait(30) == 9
    terminal.close()
    told(life)


def test_a_program_whose_errors_are_read_first_ends_with_the_supervisor(
    make_site: MakeSite,
) -> None:
    """Nobody can know whether it is in the container. Nothing of it stays there."""
    site = make_site("local-user")
    life = site.shell(UNTIL_TOLD).created().start().says("up")
    unknown = "/proc/1/root/bin/sh"
    deaf = site.popen("exec", life.id, unknown, "-c", "trap '' TERM; echo up; exec sleep 611")
    assert deaf.stdout
    assert deaf.stdout.readline() == b"up\n"
    kill_supervisor(site)
    assert deaf.wait(20) == 125
    deaf.communicate()
    adopted(life)
    wait_while("the program", lambda: "sleep 611" in site.must("exec", life.id, "ps"), 20)
    told(life)


def test_many_with_one_supervisor(make_site: MakeSite) -> None:
    site = make_site("local-user")
    lives = [site.shell(UNTIL_TOLD).created().start().says("up") for _ in range(8)]
    kill_supervisor(site)
    telling = [site.popen("kill", life.id, "USR1", stdio=subprocess.DEVNULL) for life in lives]
    assert [process.wait(60) for process in telling] == [0] * 8
    assert [life.wait(30) for life in lives] == [7] * 8
    for life in lives:
        life.delete(60)
    site.settle(20)


def test_no_descriptor_stays_in_the_successor(make_site: MakeSite) -> None:
    site = make_site("local-user")

    def descriptors(pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    life = site.shell(UNTIL_TOLD).created().start().says("up")
    kill_supervisor(site)
    adopted(life)
    counts = []
    for _ in range(2):
        lives = [site.shell(UNTIL_TOLD).created().start().says("up") for _ in range(3)]
        kill_supervisor(site)
        for one in lives:
            one.kill("USR1")
            one.ends(7, 60)
        [supervisor] = wait_until("one supervisor", site.supervisors, 20)
        wait_until("all is undone", lambda: not _records(site) - {life.id}, 20)
        counts.append(descriptors(supervisor))
    # one may be open for a moment
    wait_until("no more of them", lambda: descriptors(supervisor) <= counts[0], 20)
    told(life)


def _records(site: Site) -> set[str]:
    return {path.name for path in Path(site.root).iterdir() if path.name[0] != "@"}
