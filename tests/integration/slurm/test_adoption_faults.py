"""Containers are adopted while something else breaks, and many at once."""

import json
import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial

import pytest

from scrun.protocol import wire
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.adoption import (
    UNTIL_TOLD,
    adoptions,
    end,
    kill_supervisor,
)
from tests.harness.life import Life
from tests.harness.places import mounted
from tests.harness.site import Site
from tests.harness.wait import wait_until

pytestmark = pytest.mark.by_shim

_MANY = int(os.environ.get("SCRUN_ADOPTED", "8"))


def running(site: Site) -> Life:
    return site.shell(UNTIL_TOLD).created(60).start(60).says("up", 30)


def answers(life: Life) -> bool:
    """Whether its supervisor has it, and works with it; without the time that a command takes."""
    try:
        sock = wire.connect_supervisor(str(life.site.root / life.id), "supervisor")
    except OSError:
        return False
    with closing(sock), suppress(OSError):
        wire.send(sock, [b"kill", life.id.encode(), b"0"])
        return wire.receive(sock)[0] == 0
    return False


def told(*lives: Life) -> None:
    """They end as they are told, with their own status."""
    for life in lives:
        life.kill("USR1")
    assert [life.wait(60) for life in lives] == [7] * len(lives)
    end(*lives)


def test_the_record_directory_is_full(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    site.root.mkdir(mode=0o700)
    options = f"size=1m,uid={site.user.uid},gid={site.user.gid},mode=700"
    with mounted(site.root, "-o", options):
        life = running(site)
        filler = site.root / "@filler"
        with filler.open("ab", buffering=0) as file, suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        assert os.statvfs(site.root).f_bavail == 0
        kill_supervisor(site)
        wait_until("another", site.supervisors, 20)
        assert site.must("exec", life.id, "echo", "in it") == "in it\n"
        assert life.state()["status"] == "running"
        filler.unlink()
        life.kill("USR1")
        assert life.wait(30) == 7
        life.delete(60)
        site.must("supervisor", "stop", "--all")


def test_the_controller_is_away(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    life = running(site)
    with cluster.without_controller():
        kill_supervisor(site)
        wait_until("it is adopted", lambda: adoptions(life), 30)
        assert site.must("exec", life.id, "echo", "in it") == "in it\n"
        assert life.state()["status"] == "running"
    told(life)


def test_two_commands_find_it_dead(make_site: MakeSite) -> None:
    """And each of them is answered, by one supervisor."""
    site = make_site("slurm-user")
    created, life = site.shell(UNTIL_TOLD).created(60), running(site)
    kill_supervisor(site)
    commands = [
        site.popen("exec", life.id, "echo", "in it"),
        site.popen("start", created.id, stdio=subprocess.DEVNULL),
        site.popen("kill", life.id, "0", stdio=subprocess.DEVNULL),
    ]
    assert commands[0].communicate(timeout=60)[0] == b"in it\n"
    assert [command.wait(60) for command in commands] == [0, 0, 0]
    assert len(site.supervisors()) == 1
    created.says("up", 30)
    told(created, life)


@pytest.mark.timeout(400)
def test_many_at_once(make_site: MakeSite) -> None:
    """`state` is right at any moment; SCRUN_ADOPTED says how many, and -s shows how long."""
    site = make_site("slurm-user")
    with ThreadPoolExecutor(4) as threads:
        lives = list(threads.map(lambda _: running(site), range(_MANY)))
    for again in (1, 2):
        began = time.monotonic()
        kill_supervisor(site)
        assert lives[-1].state()["status"] == "running"
        rows = json.loads(site.must("list", "--format", "json"))
        assert [row["status"] for row in rows] == ["running"] * _MANY
        for life in lives:
            wait_until("an answer", partial(answers, life), 60)
        print(f"adoption {again} of {_MANY}: {time.monotonic() - began:.2f} s")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(adoptions, lives)) == [2] * _MANY
    told(*lives)
