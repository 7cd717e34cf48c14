"""A supervisor that may have no more processes, or no more descriptors."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scrun.core.paths import LOOKED
from tests.conftest import MakeSite
from tests.harness.site import Site
from tests.harness.wait import wait_until


def descriptors(site: Site, pid: int) -> set[int]:
    """Wait until a new supervisor has nothing to do, and return the descriptors that it keeps.

    It looks for what dead supervisors left, in steps; and it may still have the connection of the
    last command.
    """

    def kept() -> set[int]:
        return {int(name) for name in os.listdir(f"/proc/{pid}/fd")}

    def quiet() -> set[int]:
        used = kept()
        time.sleep(0.5)
        return used if used == kept() else set()

    wait_until("it has looked", (site.root / LOOKED).exists, 30)
    return wait_until("it is quiet", quiet)


@contextmanager
def limited(site: Site, what: str) -> Iterator[None]:
    """Lower a soft limit of the site's supervisor for a while: to a connection, or to nothing."""
    [pid] = site.supervisors()
    used = descriptors(site, pid)
    free = min(set(range(len(used) + 1)) - used)
    few = free + 1 if what == "nofile" else 1

    def prlimit(*words: str) -> str:
        command = [*site.user.prefix, "prlimit", f"--pid={pid}", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    before = prlimit(f"--{what}", "--noheadings", "--raw", "--output=SOFT").strip()
    prlimit(f"--{what}={few}:")
    try:
        yield
    finally:
        prlimit(f"--{what}={before}:")


@pytest.mark.parametrize("what", ["nofile", "nproc"])
@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_what_needs_more_is_refused_in_one_line(
    make_site: MakeSite, place: str, what: str
) -> None:
    site = make_site(place)
    life = site.shell("echo up; read line; exit 7", stdin="pipe").created().start().says("up")
    bundle = site.bundle_of("true")
    create: tuple[str, ...] = ("create", "--bundle", bundle, "other")
    program: tuple[str, ...] = ("exec", life.id, "true")
    kill: tuple[str, ...] = ("kill", life.id, "USR1")
    needs_more = [create, program, kill]
    if life.state()["annotations"].get("org.scrun.launch") == "shim":
        # messages to it: only the streams of a program take something, descriptors
        needs_more = [create, program] if what == "nofile" else [create]
    with limited(site, what):
        for command in [program, kill]:
            if command not in needs_more:
                site.must(*command)
        for command in needs_more:
            said = site.fails(*command)
            assert f"ulimit -{(what[1] == 'o' and 'n') or 'u'}" in said
        assert life.status == "running"
    assert site.must("list", "--quiet") == f"{life.id}\n"
    life.close_stdin()
    assert life.wait() == 7
