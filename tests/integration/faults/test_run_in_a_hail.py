"""`run` and `create` leave nothing of what they created, whenever their supervisor dies."""

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from functools import partial

import pytest

from tests.conftest import MakeSite
from tests.harness.nightly import often
from tests.harness.site import Site
from tests.harness.wait import wait_until

_TIMES = often(2, 8)
_MOMENT = 0.5
_KILLS = 3
PLACES = pytest.mark.parametrize("kind", ["slurm-user", "local-user"])


def records(site: Site) -> list[str]:
    return [name for name in os.listdir(site.root) if name[0] != "@"]


def is_under_way(site: Site, process: "subprocess.Popen[bytes]") -> bool:
    return bool(site.supervisors()) or process.poll() is not None


def kill(site: Site, *, with_keepers: bool) -> None:
    """Kill the supervisors; without their keepers, others may adopt what they had."""
    if with_keepers:
        site.kill_supervisors()
        return
    for pid in site.supervisors():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@PLACES
@pytest.mark.parametrize("operation", ["run", "create"])
def test_nothing_is_left(
    make_site: MakeSite, dice: random.Random, kind: str, operation: str
) -> None:
    """The supervisor is killed at its beginning, at the container's and at its end, and again."""
    site = make_site(kind)
    bundle = site.bundle_of("sleep", "0.1")
    left = []
    for number in range(_TIMES):
        process = site.popen(operation, "--bundle", bundle, f"c{number}", stdio=subprocess.DEVNULL)
        wait_until("the supervisor", partial(is_under_way, site, process))
        for _ in range(dice.randint(1, _KILLS)):
            time.sleep(dice.random() * _MOMENT)
            kill(site, with_keepers=dice.random() < 0.5)
        status = process.wait(100)
        if operation == "create" and status == 0:
            site.run("delete", "--force", f"c{number}")
        if records(site):
            left.append((number, status, records(site)))
            for record in records(site):
                site.run("delete", "--force", record)
    assert left == []
