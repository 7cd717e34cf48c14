"""What could not be given back stays in the record, and the next `delete` gives it back."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness.processes import descendants, run
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while
from tests.integration.faults.test_after_the_dead import staging_in
from tests.integration.faults.test_shortage import limited


def record(site: Site, container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.root / container / "state.json").read_bytes())
    return found


def keepalive(site: Site) -> int:
    """The process that holds the job of the site's one container on this machine."""
    [supervisor] = site.supervisors()
    [pid] = [
        process for process in descendants(supervisor)
        if b'exec /bin/sh -c "$text"' in Path(f"/proc/{process}/cmdline").read_bytes()
    ]  # fmt: skip
    return pid


@contextmanager
def in_use(file: Path) -> Iterator[None]:
    """Have something mounted on a file, so that nobody can remove it."""
    run("mount", "--bind", "/dev/null", str(file))
    try:
        yield
    finally:
        run("umount", "--lazy", str(file))


@pytest.fixture
def by_oci_conf(make_site: MakeSite) -> tuple[Site, Path]:
    """A site whose oci.conf writes down that a container is removed, and where."""
    site = make_site("local-user")
    conf, done = site.base / "oci.conf", site.base / "done"
    conf.write_text(
        'RunTimeRun="exec sh -c \'echo up; exec sleep 600\'"\nRunTimeQuery="true"\n'
        f'RunTimeKill="kill -KILL %p"\nRunTimeDelete="echo %n >>{done}"\n'
    )
    done.touch()
    done.chmod(0o666)
    with (site.base / "scrun.toml").open("a") as settings:
        settings.write(f'[local]\noci_conf = "{conf}"\n')
    return site, done


def test_a_job_that_no_process_could_give_back(by_oci_conf: tuple[Site, Path]) -> None:
    """Its keepalive is killed, and the supervisor can fork none that removes the container."""
    site, done = by_oci_conf
    life = site.shell("true").created().start().says("up")
    with limited(site, "nproc"):
        os.kill(keepalive(site), signal.SIGKILL)
        wait_until(
            "it is said", lambda: "(ulimit -u)" in site.must("logs", "--messages", life.id), 20
        )
        life.wait_for("stopped")
        found = record(site, life.id)
        assert (found["owns_job"], found["until_delete"]) == (True, False)
    assert done.read_text() == ""
    life.delete()
    assert done.read_text() != ""


def test_a_job_whose_keepalive_is_killed(by_oci_conf: tuple[Site, Path]) -> None:
    """What it would have called is called in its place, though the container ends at once."""
    site, done = by_oci_conf
    life = site.shell("true").created().start().says("up")
    os.kill(keepalive(site), signal.SIGKILL)
    life.wait_for("stopped")
    wait_until("RunTimeDelete", done.read_text, 30)
    wait_while("the job", lambda: record(site, life.id)["owns_job"])
    life.delete()


def test_what_waits_for_delete_waits_although_the_keepalive_is_killed(make_site: MakeSite) -> None:
    """Hooks of poststop are called by `delete`."""
    site = make_site("local-user")
    life = site.shell("echo up; exec sleep 600").created().start().says("up")
    os.kill(keepalive(site), signal.SIGKILL)
    life.wait_for("stopped")
    wait_until("its end", lambda: record(site, life.id)["until_delete"])
    assert list((site.root / life.id / "runtime").iterdir()) != []
    with limited(site, "nproc"):
        assert "(ulimit -u)" in site.fails("delete", life.id)
        assert record(site, life.id)["owns_job"] is True
    life.delete()


def test_a_staged_bundle_that_could_not_be_removed(make_site: MakeSite) -> None:
    site = make_site("local-user")
    scratch = staging_in(site)
    life = site.shell("echo up; read line", stdin="pipe").created().start().says("up")
    [staged] = scratch.iterdir()
    with in_use(staged / "config.json"):
        life.close_stdin()
        life.wait_for("stopped")
        wait_until(
            "it is said",
            lambda: "could not be removed" in site.must("logs", "--messages", life.id),
        )
        found = record(site, life.id)
        assert (found["staged"], found["stager"]) == (str(staged), "builtin")
        assert "busy" in site.fails("delete", life.id)
        assert record(site, life.id)["staged"] == str(staged)
    life.delete()
    assert list(scratch.iterdir()) == []
