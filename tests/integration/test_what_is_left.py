"""What could not be given back stays in the record, and the next `delete` gives it back."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import MakeSite
from tests.harness.processes import descendants, run
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while
from tests.integration.test_after_the_dead import staging_in
from tests.integration.test_shortage import limited


def record(site: Site, container: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.root / container / "state.json").read_bytes())
    return found


def holder(site: Site) -> int:
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


def test_a_job_that_no_process_could_give_back(make_site: MakeSite) -> None:
    """Its holder is killed, and the supervisor can fork none that removes the container."""
    site = make_site("local-user")
    life = site.shell("echo up; exec sleep 600").created().start()
    life.says("up")
    runtime = site.root / "@runtime"
    with limited(site, "nproc", 1):
        os.kill(holder(site), signal.SIGKILL)
        life.wait_for("stopped")
        wait_until("it is said", lambda: "(ulimit -u)" in site.must("logs", "--messages", life.id))
        found = record(site, life.id)
        assert (found["status"], found["owns_job"]) == ("stopped", True)
        assert list(runtime.iterdir()) != []
    life.delete(30)
    assert not runtime.exists() or list(runtime.iterdir()) == []


def test_a_job_whose_holder_is_killed(make_site: MakeSite) -> None:
    site = make_site("local-user")
    life = site.shell("echo up; exec sleep 600").created().start()
    life.says("up")
    os.kill(holder(site), signal.SIGKILL)
    life.wait_for("stopped")
    runtime = site.root / "@runtime"
    wait_while("what the runtime knows", lambda: runtime.exists() and list(runtime.iterdir()))
    wait_while("the job", lambda: record(site, life.id)["owns_job"])
    life.delete()


def test_a_staged_bundle_that_could_not_be_removed(make_site: MakeSite) -> None:
    site = make_site("local-user")
    scratch = staging_in(site)
    life = site.shell("echo up; read line", stdin="pipe").created().start()
    life.says("up")
    [staged] = scratch.iterdir()
    with in_use(staged / "config.json"):
        life.close_stdin()
        life.wait_for("stopped")
        wait_until(
            "it is said", lambda: "is not removed yet" in site.must("logs", "--messages", life.id)
        )
        found = record(site, life.id)
        assert (found["staged"], found["stager"]) == (str(staged), "builtin")
        assert found["owns_job"] is False
        assert "busy" in site.fails("delete", life.id)
        assert record(site, life.id)["staged"] == str(staged)
    life.delete()
    assert list(scratch.iterdir()) == []
