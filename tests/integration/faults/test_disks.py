"""Disks that are full or read-only: what is refused leaves nothing, and what runs goes on."""

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from scrun.core.paths import LOOKED, OWN_LOG
from tests.conftest import MakeSite
from tests.harness.life import Life
from tests.harness.places import mounted
from tests.harness.processes import run
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

PAGE = 4096
FULL = "No space left on device"
_OF_ALL = {LOOKED, OWN_LOG}
"""What supervisors leave in a root directory for the next ones, and for people."""
_OF_RUNC = "unable to store init state"  # of 1.1.5, which does not say why
READ_ONLY = "Read-only file system"


@contextmanager
def small(site: Site, path: Path, *, pages: int = 0, inodes: int = 0) -> Iterator[Path]:
    """A file system of this user's with so much space left; yields what fills the rest."""
    options = [f"size={128 * PAGE}", f"uid={site.user.uid}", f"gid={site.user.gid}", "mode=700"]
    with mounted(path, "-o", ",".join([*options, *([f"nr_inodes={inodes}"] if inodes else [])])):
        filler = path / "@filler"
        filler.write_bytes(b"x" * (128 - pages) * PAGE if not inodes else b"")
        yield filler


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """Have a directory that nothing can be written to, by nobody."""
    run("mount", "--bind", str(path), str(path))
    try:
        run("mount", "-o", "remount,bind,ro", str(path))
        yield
    finally:
        run("umount", "--lazy", str(path))


def stage_elsewhere(site: Site) -> Path:
    """Have bundles staged where the nodes see them: they do not see what a test has mounted."""
    scratch = site.base / "b" / "scratch"
    with (site.base / "scrun.toml").open("a") as settings:
        settings.write(f'[staging]\nscratch = "{scratch}"\n')
    return scratch


def fill(filler: Path) -> None:
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * PAGE):
            pass


def waiting(site: Site) -> Life:
    """A container that runs, and ends with 7 when it gets a line."""
    life = (
        site.shell("echo ready; read line; exit 7", stdin="pipe").created().start().says("ready")
    )
    return life


def tries(site: Site, bundle: Path) -> str:
    """Try a whole life; how it was refused, or "" when it was not."""
    life = site.life(bundle=bundle)
    try:
        if life.create_status():
            said = life.errors()
            assert said.count("\n") == 1, said
            assert "internal error" not in said, said
            return said
        life.start()
        # the runtime, too, needs some space, and 1 is its own
        assert life.wait() in (0, 1, 125), life.describe()
        return ""
    finally:
        life.end()


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_root_directory_on_a_full_disk(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    stage_elsewhere(site)
    bundle = site.bundle(site.config("true"))
    refused = []
    with small(site, site.root) as filler:
        for pages in (0, 1, 3, 8):
            filler.write_bytes(b"x" * (128 - pages) * PAGE)
            refused.append(tries(site, bundle))
            wait_while("records", lambda: [e for e in os.listdir(site.root) if e[0] != "@"])
        filler.unlink()
        assert tries(site, bundle) == ""
        for pid in site.supervisors():
            os.kill(pid, 15)
        wait_while("supervisors", site.supervisors)
        assert [name for name in os.listdir(site.root) if name not in _OF_ALL] == []
    assert str(site.root) in refused[0]
    said_why = (FULL, _OF_RUNC)
    assert all(any(why in said for why in said_why) for said in refused if said), refused


def test_root_directory_without_a_file_left(make_site: MakeSite) -> None:
    site = make_site("local-user")
    bundle = site.bundle(site.config("true"))
    for inodes in (3, 6, 9):
        with small(site, site.root, inodes=inodes):
            said = tries(site, bundle)
            assert said == "" or (FULL in said and str(site.root) in said), said
            for pid in site.supervisors():
                os.kill(pid, 15)
            wait_while("supervisors", site.supervisors)


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_a_disk_that_fills_while_a_container_runs(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    stage_elsewhere(site)
    with small(site, site.root, pages=100) as filler:
        life = waiting(site)
        fill(filler)
        assert life.state()["status"] == "running"
        os.write(life.stdin, b"\n")
        assert life.wait() == 7
        assert life.state()["annotations"]["org.scrun.exit_status"] == "7"
        life.delete()
    site.settle()


def _mounts(options: str, path: Path) -> bool:
    return subprocess.run(["mount", "-o", options, path], check=False).returncode == 0


@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_pid_file_on_a_full_disk(site: Site) -> None:
    bundle = site.bundle(site.config("true"))
    with small(site, site.base / "b" / "full") as filler:
        for inodes in (False, True):
            if inodes:
                filler.unlink()
                # whoever ends meanwhile may have a removed file open still
                remount = partial(_mounts, "remount,nr_inodes=1", filler.parent)
                wait_until("it has one inode", remount)
            words = ("--pid-file", f"{filler.parent}/pid")
            said = site.fails("create", "--bundle", str(bundle), *words, "c1")
            assert said == f"scrun: --pid-file {filler.parent}/pid: {FULL}; make space there\n"
            assert os.listdir(filler.parent) == ([] if inodes else [filler.name])
    site.settle()


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_scratch_on_a_full_disk(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    scratch = stage_elsewhere(site)
    bundle = site.bundle(site.config("true"))
    with small(site, scratch) as filler:
        said = tries(site, bundle)
        assert f"staging in {scratch}/" in said
        assert FULL in said
        filler.unlink()
        assert tries(site, bundle) == ""
        assert os.listdir(scratch) == []


def test_read_only(make_site: MakeSite) -> None:
    """Before there is a supervisor, and while there is one."""
    site = make_site("local-user", settings="idle_timeout = 1\n")
    site.root.mkdir(mode=0o700)
    site.user.give(site.root)
    bundle = site.bundle_of("true")
    pid_file = str(site.root / "pid")
    with read_only(site.root):
        said = site.fails("create", "--bundle", bundle, "c1")
        assert re.search(rf"root directory {site.root}: .*{READ_ONLY}; name another", said)
        said = site.fails("create", "--bundle", bundle, "--pid-file", pid_file, "c1")
        assert said == f"scrun: --pid-file {pid_file}: {READ_ONLY}\n"
    life = waiting(site)
    with read_only(site.root):
        said = site.fails("create", "--bundle", bundle, "c2")
        assert f"root directory {site.root}: {READ_ONLY}" in said
        os.write(life.stdin, b"\n")
        assert life.wait() == 7
        assert life.state()["status"] == "stopped"
        assert READ_ONLY in site.fails("delete", life.id)
    life.delete()
    wait_while("supervisors", site.supervisors)
    assert {*os.listdir(site.root)} <= {"@jobs", *_OF_ALL}  # for the next one


def test_a_supervisor_that_can_remove_nothing_goes(make_site: MakeSite) -> None:
    site = make_site("local-user", settings="idle_timeout = 0.3\n")
    site.life("true").created().delete()
    with read_only(site.root):
        wait_while("supervisors", site.supervisors, 15)
        left = os.listdir(site.root)
    assert any(name.startswith("@user-") for name in left)
    site.life("true").created().delete()  # another one takes its place


@pytest.mark.parametrize("place", ["slurm-user"])
def test_output_on_a_full_disk(make_site: MakeSite, place: str) -> None:
    """The node's program has written it long ago, and cannot be told any more."""
    site = make_site(place)
    bundle = site.bundle(site.config("sh", "-c", "echo out; echo err >&2; sleep 1; exit 3"))
    with open("/dev/full", "wb") as full:
        done = site.run("run", "--bundle", str(bundle), "c1", stdout=full)
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert sorted(lines) == ["err", f"scrun: stdout: {FULL}; the rest of it is lost"]
    site.settle()


@pytest.mark.parametrize("place", ["slurm-user"])
def test_output_of_another_program_on_a_full_disk(make_site: MakeSite, place: str) -> None:
    site = make_site(place)
    life = site.life("sleep", "600").created()
    life.run("start")
    with open("/dev/full", "wb") as full:
        words = ("exec", life.id, "sh", "-c", "echo out; echo err >&2; sleep 1; exit 3")
        done = site.run(*words, stdout=full)
    assert done.returncode == 3
    lines = done.stderr.splitlines()
    assert sorted(lines) == ["err", f"scrun: stdout: {FULL}; the rest of it is lost"]
    life.delete()
