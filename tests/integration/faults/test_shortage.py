"""A supervisor that may have no more processes, or no more descriptors."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conftest import MakeSite
from tests.harness.site import Site


@contextmanager
def limited(site: Site, what: str) -> Iterator[None]:
    """Lower a soft limit of the site's supervisor for a while: to a connection, or to nothing."""
    [pid] = site.supervisors()
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
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
    life = site.shell("echo up; read line; exit 7", stdin="pipe").created().start()
    life.says("up")
    bundle = str(site.bundle(site.config("true")))
    with limited(site, what):
        for command in (
            ("create", "--bundle", bundle, "other"),
            ("exec", life.id, "true"),
            ("kill", life.id, "USR1"),
        ):
            said = site.fails(*command)
            assert f"ulimit -{(what[1] == 'o' and 'n') or 'u'}" in said
        assert life.status == "running"
    assert site.must("list", "--quiet") == f"{life.id}\n"
    life.close_stdin()
    assert life.wait() == 7
