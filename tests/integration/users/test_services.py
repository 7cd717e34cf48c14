"""The recipes of docs/howto/services.md, as they stand there, with the managers themselves.

What is replaced in a block is in `Desk.paths`: the paths of the page by those of the test, and the
hour of a crontab by every minute.
"""

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.nightly import nightly
from tests.harness.pages import HOWTO, blocks
from tests.harness.processes import signal_quietly
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.users import PATH
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("service recipes")

SERVICE = "echo up; while :; do sleep 0.1; done"
NOTICED = 2
"""Seconds until a manager has seen that it runs; monit goes on waiting if it ends before that."""
REPORT = "test -t 0 || echo no terminal"


class Desk:
    """A user's place with the service's bundle, and the directory of its manager."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.place = site.base / "b" / "manager"
        self.place.mkdir()
        scrun = self.place / "scrun"
        # no manager passes the variables on that lead to the test's cluster and settings
        variables = [f"{name}={site.environment[name]}" for name in site.environment]
        words = " ".join(["/usr/bin/env", *variables, *site.command])
        scrun.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        scrun.chmod(0o755)
        self.paths = {
            "/usr/bin/scrun": str(scrun),
            "/srv/web": site.bundle_of("sh", "-c", SERVICE),
            "/srv/report": site.bundle_of("sh", "-c", REPORT),
            "/run/web.pid": f"{self.place}/web.pid",
            "/var/log/": f"{self.place}/",
            "0 3 * * *": "* * * * *",
        }
        site.user.give(self.place)

    def recipe(self, section: str, number: int = 0) -> str:
        """Return a block of the page, with the paths of this place."""
        found = [block.text for block in blocks(HOWTO / "services.md") if block.section == section]
        text = found[number]
        for theirs, ours in self.paths.items():
            text = text.replace(theirs, ours)
        return text

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file for the manager."""
        path = self.place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        self.site.user.give(self.place)
        return path

    def pid(self) -> int:
        """The process that stands for the container if that runs, else 0."""
        done = self.site.run("state", "web")
        state = json.loads(done.stdout) if done.returncode == 0 else {"status": ""}
        return int(state["pid"]) if state["status"] == "running" else 0

    def runs_anew(self, *before: int) -> int:
        """Wait for a container that did not run before; return the process that stands for it."""

        def anew() -> int:
            found = self.pid()
            return 0 if found in before else found

        found = wait_until("a container", anew, 60)
        time.sleep(NOTICED)
        return found

    @contextlib.contextmanager
    def runs(self, *argv: str | Path, stop: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Run a manager in the foreground; then stop it, and hold that it has ended."""
        environment = {"PATH": PATH, "HOME": str(self.place)}
        with open(self.place / "manager.log", "w+b") as log:
            manager = subprocess.Popen(
                [*self.site.user.prefix, *argv],
                env=environment,
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                yield
                stop()
                manager.terminate()
                manager.wait(30)
            finally:
                if manager.poll() is None:
                    manager.kill()
                    manager.wait()
                log.seek(0)
                print(log.read().decode(errors="replace"))


def runit(desk: Desk) -> AbstractContextManager[None]:
    run = desk.write("web/run", desk.recipe("runit and s6"), 0o755)
    return desk.runs("runsv", run.parent)


def s6(desk: Desk) -> AbstractContextManager[None]:
    run = desk.write("web/run", desk.recipe("runit and s6"), 0o755)
    scan = desk.place / "scan"
    scan.mkdir()
    (scan / "web").symlink_to(run.parent)
    desk.site.user.give(desk.place)
    return desk.runs("s6-svscan", scan)


def supervisord(desk: Desk) -> AbstractContextManager[None]:
    head = f"[supervisord]\nlogfile={desk.place}/log\npidfile={desk.place}/pid\n"
    conf = desk.write("supervisord.conf", head + desk.recipe("supervisord"))
    return desk.runs("supervisord", "-n", "-c", conf)


def monit(desk: Desk) -> AbstractContextManager[None]:
    place = desk.place
    files = "".join(f"set {name}file {place}/{name}\n" for name in ("pid", "id", "state"))
    head = f"set daemon 1\n{files}set httpd unixsocket {place}/socket allow admin:monit\n"
    conf = desk.write("monitrc", head + desk.recipe("monit"), 0o600)

    def stop() -> None:
        words = [*desk.site.user.prefix, "monit", "-c", str(conf), "stop", "web"]
        done = run_program(words, env={"PATH": PATH, "HOME": str(place)})
        assert done.returncode == 0, done
        wait_while("the container", desk.pid, 60)

    return desk.runs("monit", "-I", "-c", conf, stop=stop)


MANAGED = [
    ("local-user", monit),
    ("slurm-user", runit),
    *(nightly("local-user", manager) for manager in (runit, s6, supervisord)),
    nightly("slurm-user", monit),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("where", "manager"), MANAGED)
def test_a_manager_keeps_it_running(
    make_site: MakeSite, where: str, manager: Callable[[Desk], AbstractContextManager[None]]
) -> None:
    site = make_site(where)
    desk = Desk(site)
    # what a boot leaves if the records are on a disk
    site.must("run", "--detach", "--bundle", site.bundle_of("sleep", "600"), "web")
    site.kill_supervisors()
    with manager(desk):
        first = desk.runs_anew()
        site.must("kill", "web", "KILL")
        second = desk.runs_anew(first)
        signal_quietly(second)
        third = desk.runs_anew(first, second)
        site.kill_supervisors()
        desk.runs_anew(first, second, third)
    assert site.must("list", "--quiet") == ""


CRON = """
set -e
for place in /run /var/spool/cron /etc/cron.d; do mount -t tmpfs tmpfs "$place"; done
mount --bind /dev/null /etc/crontab
mkdir -m 1730 /var/spool/cron/crontabs
chgrp crontab /var/spool/cron/crontabs
crontab -u "$1" "$2"
exec cron -f
"""


@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_cron(site: Site) -> None:
    """With crontabs of its own: what is on this machine does not begin."""
    desk = Desk(site)
    table = desk.write("crontab", desk.recipe("cron"))
    report = desk.place / "report.log"
    site.must("run", "--detach", "--bundle", site.bundle_of("sleep", "600"), "report")
    argv = ["unshare", "--mount", "sh", "-c", CRON, "sh", site.user.name, str(table)]
    with subprocess.Popen(argv, env={"PATH": PATH}, start_new_session=True) as cron:
        try:
            desk.runs_anew()
            wait_until("the report", lambda: report.exists() and report.read_text(), 90)
            assert report.read_text() == "no terminal\n"
        finally:
            cron.terminate()
    site.must("delete", "--force", "web")
    wait_until("the end of the report", lambda: site.must("list", "--quiet") == "")


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_the_units(site: Site, number: int) -> None:
    desk = Desk(site)
    unit = desk.write("web.service", desk.recipe("systemd", number))
    done = run_program(["systemd-analyze", "verify", "--man=no", unit])
    assert (done.returncode, done.stderr) == (0, "")
