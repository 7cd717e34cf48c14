"""Root file systems and names that somebody has made for harm."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.site import Site

pytestmark = pytest.mark.everywhere
ALL = pytest.mark.parametrize("site", ["local-user", "local-root", "slurm-user"], indirect=True)
EVIL = "\x1b]0;title\x07\x9b31m\x7f\u202e"
"""What sets a terminal's title, its colour, and the direction of writing."""


@pytest.fixture
def outside(site: Site) -> Path:
    """What is the host's, and not for containers."""
    path = site.base / "b" / "outside"
    path.mkdir()
    (path / "file").write_text("the host's")
    site.user.give(path)
    return path


def hostile(site: Site, outside: Path) -> Path:
    """A root file system with links that lead out, where mounts and programs are looked for."""
    rootfs = site.base / "b" / "rootfs"
    shutil.copytree(site.rootfs, rootfs, symlinks=True)
    up = "../" * 12
    for name, target in {
        "etc/hosts": f"{outside}/file",
        "etc/resolv.conf": f"{up}{outside}/file",
        "data": str(outside),
        "deep": f"{up}{outside}",
        "bin/outside": f"{outside}/program",
        "loop": "loop",
    }.items():
        (rootfs / name).unlink(missing_ok=True)
        (rootfs / name).symlink_to(target)
    site.user.give(rootfs)
    return rootfs


def bind(source: Path, destination: str) -> dict[str, Any]:
    return {"destination": destination, "type": "bind", "source": str(source), "options": ["bind"]}


@pytest.mark.covers("security links out of its root file system")
@pytest.mark.covers("security the root file system")
@ALL
def test_no_link_leads_a_mount_out(site: Site, outside: Path) -> None:
    given = site.base / "b" / "given"
    given.mkdir()
    (given / "file").write_text("given\n")
    config = site.config("sh", "-c", "cat /etc/hosts /etc/resolv.conf /data/file /deep/in/file")
    config["root"] = {"path": str(hostile(site, outside)), "readonly": False}
    config["mounts"] += [
        bind(given / "file", "/etc/hosts"),
        bind(given / "file", "/etc/resolv.conf"),
        bind(given, "/data"),
        bind(given, "/deep/in"),
    ]
    site.user.give(given)
    life = site.life(config=config).created().start()
    status = life.wait()
    assert (status, life.output()) == (0, "given\n" * 4), life.errors()
    life.delete()
    assert sorted(os.listdir(outside)) == ["file"]
    assert (outside / "file").read_text() == "the host's"


@pytest.mark.covers("security the root file system")
@ALL
def test_no_link_leads_to_a_program_of_the_host_s(site: Site, outside: Path) -> None:
    program = outside / "program"
    program.write_text("#!/bin/sh\necho the host\n")
    program.chmod(0o755)
    site.user.give(program)
    rootfs = hostile(site, outside)
    for args in (["outside"], ["/bin/outside"], ["/data/program"], ["/deep/program"], ["/loop"]):
        config = {**site.config(*args), "root": {"path": str(rootfs)}}
        life = site.life(config=config)
        assert life.create_status() == 1, args
        assert re.search("not found|no such file", life.errors()), args


@pytest.mark.covers("security names that move a terminal's cursor")
@pytest.mark.covers("security names and messages")
@ALL
def test_no_name_moves_a_cursor(site: Site) -> None:
    """Of a program, a bundle, an annotation; in errors, in `list` and in the log."""
    bundle = site.bundle(site.config("sleep", "600"))
    evil = bundle.with_name(f"x{EVIL}")
    bundle.rename(evil)
    life = site.life(bundle=evil).created()
    texts = [site.must("list"), site.must("logs", "--messages", life.id)]
    done = site.run("start", f"no-such-{EVIL}")
    texts.append(done.stderr)
    refused = site.life(f"program{EVIL}", options=("--log", f"{site.base}/b/log"))
    refused.create_status()
    texts += [refused.errors(), (site.base / "b" / "log").read_text()]
    missing = site.fails("create", "--bundle", f"{evil}/missing", "c9")
    texts.append(missing)
    life.delete()
    for text in texts:
        assert all(line.isprintable() for line in text.splitlines()), repr(text)
    assert "\\x1b" in texts[0]


@pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
def test_a_link_takes_the_bundle_s_place(site: Site, outside: Path) -> None:
    """After `create`, nothing of the submitted bundle is needed any more but the root's files."""
    life = site.shell("echo runs").created()
    shutil.rmtree(life.bundle)
    life.bundle.symlink_to(outside)
    life.start()
    life.ends(says="runs\n")
    life.bundle.unlink()
    assert (outside / "file").read_text() == "the host's"


@pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)
def test_the_root_file_system_is_gone_before_start(site: Site) -> None:
    rootfs = site.base / "b" / "rootfs"
    shutil.copytree(site.rootfs, rootfs, symlinks=True)
    site.user.give(rootfs)
    life = site.life(config={**site.config("true"), "root": {"path": str(rootfs)}}).created()
    shutil.rmtree(rootfs)
    life.start()
    assert life.wait() in (1, 125, 127), life.describe()
    life.delete()
    site.settle()


@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_a_hard_link_is_no_way_in(site: Site) -> None:
    """What replaces a file never writes into it: another name of the file keeps its content."""
    life = site.life("true").created()
    record = site.root / life.id
    os.link(record / "state.json", site.base / "b" / "another-name")
    before = (site.base / "b" / "another-name").read_text()
    life.start()
    assert life.wait() == 0
    assert (
        life.status == "stopped"
    )  # which waits for the record: its engine knows of the end first
    assert (site.base / "b" / "another-name").read_text() == before
    assert json.loads((record / "state.json").read_text())["status"] == "stopped"
    subprocess.run(["rm", site.base / "b" / "another-name"], check=True)
    life.delete()
