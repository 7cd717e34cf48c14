"""scrun run --replace: a start script works again, whatever the last run has left."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("scrun run: --replace")

TWO = pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
AT_ONCE = 3


def sleeper(site: Site) -> str:
    return site.bundle_of("sh", "-c", "trap 'exit 143' TERM; echo up; sleep 600 & wait")


def begin(site: Site, *words: str) -> "subprocess.Popen[bytes]":
    """Run a container in the foreground, and wait until it runs."""
    process = site.popen("run", *words, "--bundle", sleeper(site), "one")
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def ids(site: Site) -> list[str]:
    return site.must("list", "--quiet").split()


def status(site: Site) -> str:
    return site.must("list").splitlines()[1].split()[2]


@TWO
def test_one_in_the_foreground(site: Site) -> None:
    """Its `run` deletes what it has run, and not what has the id by then."""
    with begin(site) as first:
        first.send_signal(signal.SIGSTOP)
        with begin(site, "--replace") as second:
            first.send_signal(signal.SIGCONT)
            assert first.wait(30) == 137
            assert (ids(site), second.poll(), status(site)) == (["one"], None, "running")
            second.terminate()
            assert second.wait(30) == 143
    assert ids(site) == []


@TWO
def test_a_wrong_option_deletes_nothing(site: Site) -> None:
    with begin(site) as first:
        for wrong in ("x", "3"):
            said = site.fails("run", "--replace", f"--preserve-fds={wrong}", "one")
            assert "--preserve-fds" in said
        assert (ids(site), first.poll(), status(site)) == (["one"], None, "running")
        first.terminate()
        assert first.wait(30) == 143


@TWO
def test_one_that_was_detached(site: Site) -> None:
    pid_file = site.base / "b" / "pid"
    words = ("run", "--detach", "--pid-file", str(pid_file), "--bundle", sleeper(site), "one")
    site.must(*words)
    first = int(pid_file.read_text())
    assert site.fails(*words) == (
        f"scrun: --pid-file {pid_file}: is locked: its process lives; end that, or name another "
        "file\n"
    )
    assert "already exists" in site.fails(*words[:2], *words[4:])
    assert Path(f"/proc/{first}").exists()
    site.must(*words, "--replace")
    wait_while("the first", Path(f"/proc/{first}").exists)
    second = int(pid_file.read_text())
    assert f'"pid": {second}' in site.must("state", "one")
    site.must("delete", "--force", "one")
    wait_while("the second", Path(f"/proc/{second}").exists)


@TWO
def test_one_whose_run_was_killed(site: Site) -> None:
    with begin(site) as first:
        first.kill()
    wait_until("its end", lambda: status(site) == "stopped")
    with begin(site, "--replace") as second:
        second.terminate()
        assert second.wait(30) == 143
    assert ids(site) == []


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_one_whose_supervisor_was_killed(make_site: MakeSite, place: str) -> None:
    """As after a boot, if the records are on a disk: `run` is gone, too, and deletes nothing."""
    site = make_site(place)
    with begin(site) as first:
        first.send_signal(signal.SIGSTOP)
        site.kill_supervisors()
        first.kill()
        first.wait(30)
    assert ids(site) == ["one"]
    with begin(site, "--replace") as second:
        assert status(site) == "running"
        second.terminate()
        assert second.wait(30) == 143
    assert ids(site) == []


@TWO
def test_none(site: Site) -> None:
    with begin(site, "--replace") as process:
        process.terminate()
        assert process.wait(30) == 143
    assert ids(site) == []


@TWO
def test_two_at_once(site: Site) -> None:
    """One container is there in the end, and its `run` goes on; the others have ended."""
    bundle = sleeper(site)
    started = [site.popen("run", "--replace", "--bundle", bundle, "one") for _ in range(AT_ONCE)]
    try:
        wait_until("one", lambda: sum(each.poll() is None for each in started) == 1, 60)
        [last] = [each for each in started if each.poll() is None]
        assert last.stdout is not None
        assert last.stdout.readline() == b"up\n"
        assert status(site) == "running"
        for each in started:
            if each is not last:
                assert each.stderr is not None
                assert each.stderr.read().count(b"\n") <= 1
        last.terminate()
        assert last.wait(30) == 143
    finally:
        for each in started:
            each.terminate()
            each.communicate(timeout=30)
    assert ids(site) == []


@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_what_is_no_container(site: Site) -> None:
    """It is not removed."""
    words = ("run", "--replace", "--bundle", sleeper(site), "one")
    place = site.root / "one"
    site.run("list")
    place.parent.mkdir(mode=0o700, exist_ok=True)
    place.mkdir()
    (place / "file").write_text("somebody's\n")
    site.user.give(site.root)
    try:
        assert "one" in site.fails(*words)
        assert (place / "file").exists()
    finally:
        (place / "file").unlink()
        place.rmdir()
