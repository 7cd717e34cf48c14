"""`scrun top` at a real terminal."""

import contextlib
import glob
import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import MakeSite
from tests.harness.site import Site
from tests.harness.tmux import Tmux
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("scrun top")

_PLACES = pytest.mark.parametrize("place", ["local-root", "slurm-user"])
_COLOURS = re.compile("\x1b\\[([0-9]+;)*([349][0-7]|[34]8;)")

Open = Callable[..., Tmux]


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Iterator[Callable[[Site], Open]]:
    with contextlib.ExitStack() as stack:

        def of(site: Site) -> Open:
            def at(*words: str, **variables: str) -> Tmux:
                command = [*site.command, "top", "--interval", "0.3", *words]
                environment = {**site.environment, **variables}
                made = Tmux(site.base, site.user.prefix, command, environment)
                stack.callback(close_if_open, made)
                return made

            return at

        yield of


def close_if_open(screen: Tmux) -> None:
    with contextlib.suppress(AssertionError):
        screen.close()


def begun(site: Site) -> None:
    """Begin a container that is busy and keeps its output, and one that waits for its start."""
    script = "echo it is busy; while :; do :; done"
    words = ("run", "--detach", "--bundle", site.bundle_of("sh", "-c", script), "busy")
    site.must(*words)
    site.life("true", container="waits").created()


@_PLACES
def test_what_its_keys_do(make_site: MakeSite, place: str, opened: Callable[[Site], Open]) -> None:
    site = make_site(place)
    begun(site)
    screen = opened(site)()
    screen.shows("2 containers: ")
    row = r"\nbusy +running +[1-9]\d\.\d .*MiB"
    wait_until("it is busy", lambda: re.search(row, screen.screen()), 20)
    screen.press("l")
    screen.shows("it is busy")
    screen.press("C-c")
    screen.shows("any key")
    screen.press("Space")
    screen.shows("2 containers: ")
    screen.press("e")
    wait_while("the screen", lambda: "2 containers: " in screen.screen())
    screen.press("echo $((6 * 7))", "Enter")
    screen.shows("42")
    screen.press("exit", "Enter")
    screen.shows("any key")
    screen.press("Space")
    screen.shows("2 containers: ")
    screen.press("k")
    screen.shows("t: TERM")
    screen.press("k")
    screen.shows("KILL was sent")
    screen.shows("1 stopped")
    assert re.search(r"\nbusy +stopped", screen.screen())
    screen.press("q")
    assert "containers" not in screen.shows("status 0")
    site.must("delete", "busy")


@_PLACES
def test_nothing_is_left_when_its_terminal_is_closed(
    make_site: MakeSite, place: str, opened: Callable[[Site], Open]
) -> None:
    site = make_site(place)
    begun(site)
    for keys, text in (((), "busy"), (("l",), "it is busy")):
        screen = opened(site)()
        screen.shows("2 containers: ")
        screen.press(*keys)
        screen.shows(text)
        screen.close()
        wait_while("top", lambda: [one for one in site.processes() if "top" in one.argv], 10)
    site.must("delete", "--force", "busy")


@pytest.mark.parametrize("before", [[], ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]])
def test_a_terminal_that_is_gone_without_a_signal(make_site: MakeSite, before: list[str]) -> None:
    """Nobody's controlling terminal: the kernel sends nobody SIGHUP."""
    site = make_site("local-root")
    master, slave = pty.openpty()
    command = [*before, *site.command, "top", "--interval", "0.5"]
    environment = {**site.environment, "TERM": "xterm"}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    ) as process:
        os.close(slave)
        seen = b""
        while b"0 containers" not in seen:
            try:
                seen += os.read(master, 65536)
            except OSError:
                raise AssertionError(seen.decode()) from None
        os.close(master)
        assert process.wait(10) in (128 + signal.SIGHUP, -signal.SIGHUP)


def test_a_signal_gives_the_terminal_back(
    make_site: MakeSite, opened: Callable[[Site], Open]
) -> None:
    site = make_site("local-root")
    screen = opened(site)()
    screen.shows("0 containers")
    [top] = [one for one in site.processes() if "top" in one.argv and "python" in one.argv[0]]
    os.kill(top.pid, signal.SIGTERM)
    assert "containers" not in screen.shows("status 0")


def test_terminals_that_cannot_do_much(
    make_site: MakeSite, opened: Callable[[Site], Open]
) -> None:
    site = make_site("local-root")
    life = site.shell("sleep 1000", container="one").created().start()
    screen = opened(site)()
    screen.shows("1 containers: 1 run")
    assert _COLOURS.search(screen.screen("-e"))
    screen.close()
    screen = opened(site)(NO_COLOR="1")
    screen.shows("1 containers: 1 run")
    assert not _COLOURS.search(screen.screen("-e"))
    assert re.search("\x1b\\[([0-9]+;)*7m", screen.screen("-e"))  # the cursor
    screen.close()
    # tmux sets TERM for what it runs
    screen = Tmux(site.base, site.user.prefix,
                  ["env", "TERM=dumb", *site.command, "top", "--interval", "0.3"],
                  site.environment)  # fmt: skip
    text = screen.shows("status 0")
    assert "CONTAINER" in text
    assert "1 containers" not in text
    screen.close()
    life.kill("KILL")
    assert life.wait() == 128 + signal.SIGKILL


def test_nobody_is_woken_when_nobody_looks(
    make_site: MakeSite, opened: Callable[[Site], Open]
) -> None:
    site = make_site("slurm-user")
    life = site.shell("sleep 1000", container="one").created().start()
    screen = opened(site)()
    screen.shows("MiB")
    screen.press("q")
    screen.shows("status 0")
    screen.close()
    shims = [one.pid for one in site.processes() if one.has_shim or one.is_supervisor]
    assert shims
    # a thread that a call has used ends ten seconds after it
    wait_until("three seconds without a wake-up", lambda: woken(shims, 3) == 0, 30)
    life.kill("KILL")
    assert life.wait() == 128 + signal.SIGKILL


def woken(pids: list[int], seconds: float) -> int:
    """Count which threads of processes are woken, begin or end."""

    def switches() -> dict[str, int]:
        found = {}
        for path in (path for pid in pids for path in glob.glob(f"/proc/{pid}/task/*/status")):
            with contextlib.suppress(OSError), open(path) as lines:
                told = [int(line.split()[1]) for line in lines if "ctxt_switches" in line]
                found[path] = sum(told)
        return found

    before = switches()
    time.sleep(seconds)
    after = switches()
    return sum(before.get(path) != after.get(path) for path in before.keys() | after.keys())
