"""The example scripts of scrun.lua(5) at work: the installed one, and the one in the page."""

import itertools
import json
import textwrap
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.conftest import MakeSite
from tests.harness.nightly import nightly
from tests.harness.podman import Podman
from tests.harness.site import Site

pytestmark = pytest.mark.shares_sites

DOCS = CHECKOUT / "docs"
INSTALLED = (DOCS / "examples" / "scrun.lua").read_text()
PLACES = ["local-user", "slurm-user"]
SETTINGS = "idle_timeout = 5\n"


def with_script(site: Site, source: str, changes: dict[str, str], version: str = "5.4") -> None:
    """Give a site a script, in which settings are changed."""
    for text, other in changes.items():
        assert source.count(text) == 1, text
        source = source.replace(text, other)
    script = site.base / "scrun.lua"
    script.write_text(source)
    site.user.give(script)
    with (site.base / "scrun.toml").open("a") as settings:
        settings.write(f'[lua]\nscript = "{script}"\nversion = "{version}"\n')


def with_installed(
    site: Site, *shared: str, version: str = "5.4", changes: dict[str, str] | None = None
) -> Path:
    """Give a site the installed script; returns the scratch directory.

    Args:
        site: The site.
        shared: The directories in it that the script takes for shared.
        version: Of Lua.
        changes: What else to change in the script.
    """
    scratch = site.base / "scratch"
    listed = ", ".join(f'"{site.base / name}"' for name in shared)
    own = {
        '{ "/home", "/shared", "/software" }': f"{{ {listed} }}",
        'scratch = "/shared/scrun"': f'scratch = "{scratch}"',
    }
    with_script(site, INSTALLED, own | (changes or {}), version)
    return scratch


@pytest.mark.parametrize("place", PLACES)
def test_what_is_not_shared_is_copied_and_comes_back(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings=SETTINGS)
    scratch = with_installed(site)
    data = site.base / "it's data"
    data.mkdir()
    (data / "old").write_text("old\n")
    (data / "known").write_text("known\n")
    secret = site.base / "secret"
    secret.write_text("secret\n")
    (site.rootfs / "here").mkdir()
    site.user.give(site.rootfs / "here")
    site.user.give(data)
    config = site.config(
        "sh",
        "-c",
        "cat /data/known /etc/secret && echo written >/root/new && rmdir /here"
        " && rm /data/old && echo new >/data/new",
    )
    config["root"]["readonly"] = False
    config["process"]["env"] += ["SCRUN_PARTITION=test", "KEPT=yes"]
    config["hooks"] = {"poststop": [{"path": "/no/such/hook"}]}
    config["linux"]["cgroupsPath"] = "/nobody/has/this"
    config["process"]["user"]["additionalGids"] = [4, 5]
    config["mounts"] += [
        {"destination": "/data", "type": "bind", "source": str(data), "options": ["rbind"]},
        {"destination": "/etc/secret", "source": str(secret), "options": ["bind", "ro"]},
    ]
    life = site.life(config=config).created()

    (staged,) = scratch.iterdir()
    assert staged.stat().st_mode & 0o777 == 0o700
    fitted = json.loads((staged / "config.json").read_text())
    assert fitted["root"]["path"] == str(staged / "rootfs")
    assert fitted["mounts"][0] == config["mounts"][0], "what needs no change is as it was"
    assert not {"hooks", "rlimits"} & {*fitted, *fitted["process"]}
    assert "cgroupsPath" not in fitted["linux"]
    assert "additionalGids" not in fitted["process"]["user"]
    assert fitted["linux"]["uidMappings"][0]["hostID"] == site.user.uid
    environment = fitted["process"]["env"]
    assert "KEPT=yes" in environment
    assert not any(entry.startswith("SCRUN_") for entry in environment)
    if site.engine == "slurm":
        assert any(entry.startswith("SLURM_JOB_ID=") for entry in environment)

    life.start()
    assert life.wait() == 0, life.describe()
    assert life.output() == "known\nsecret\n"
    assert (site.rootfs / "root" / "new").read_text() == "written\n"
    assert not (site.rootfs / "here").exists()
    assert not (data / "old").exists()
    assert (data / "new").read_text() == "new\n"
    life.delete()
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("place", PLACES)
def test_what_is_shared_is_used_in_place(make_site: MakeSite, place: str) -> None:
    site = make_site(place, settings=SETTINGS)
    scratch = with_installed(site, "rootfs", "shared")
    shared = site.base / "shared"
    shared.mkdir()
    site.user.give(shared)
    config = site.config("sh", "-c", "echo here >/shared/file && echo here >/root/file")
    config["root"]["readonly"] = False
    config["mounts"].append(
        {"destination": "/shared", "type": "bind", "source": str(shared), "options": ["rbind"]}
    )
    life = site.life(config=config).created()
    (staged,) = scratch.iterdir()
    assert not (staged / "rootfs").is_dir() or (staged / "rootfs").is_symlink()
    assert not list(staged.glob("mount-*"))
    life.start()
    # no copy: it is there at once
    assert life.wait() == 0, life.describe()
    assert (shared / "file").read_text() == "here\n"
    assert (site.rootfs / "root" / "file").read_text() == "here\n"
    life.delete()
    assert list(scratch.iterdir()) == []


def test_nothing_stays_of_a_failed_stage_in(make_site: MakeSite) -> None:
    site = make_site("local-user", settings=SETTINGS)
    scratch = with_installed(site)
    config = site.config("true")
    config["mounts"].append(
        {"destination": "/data", "type": "bind", "source": "/no/such/place", "options": ["bind"]}
    )
    said = site.life(config=config).refused()
    assert "/no/such/place" in said
    assert list(scratch.iterdir()) == []
    site.settle()


@pytest.mark.parametrize("version", ["5.1", nightly("5.5")])
def test_without_rsync(make_site: MakeSite, version: str) -> None:
    site = make_site("local-user", settings=SETTINGS)
    without = {"command -v rsync": "exit 1"}
    scratch = with_installed(site, version=version, changes=without)
    data = site.base / "data"
    data.mkdir()
    (data / "file").write_text("old\n")
    (site.base / "alone").write_text("old\n")
    for path in (data, site.base / "alone"):
        site.user.give(path)
    config = site.config("sh", "-c", "cat /data/file; echo new | tee /data/file /alone /root/new")
    config["root"]["readonly"] = False
    config["mounts"] += [
        {"destination": "/data", "type": "bind", "source": str(data), "options": ["rbind"]},
        {"destination": "/alone", "source": str(site.base / "alone"), "options": ["bind"]},
    ]
    life = site.life(config=config).created().start()
    assert life.wait() == 0, life.describe()
    assert life.output() == "old\nnew\n"
    for path in (data / "file", site.base / "alone", site.rootfs / "root" / "new"):
        assert path.read_text() == "new\n"
    life.delete()
    assert list(scratch.iterdir()) == []


def test_what_cannot_come_back_stays_in_the_scratch_directory(make_site: MakeSite) -> None:
    site = make_site("local-user", settings=SETTINGS)
    scratch = with_installed(site)
    data = site.base / "data"
    data.mkdir()
    site.user.give(data)
    config = site.config("sh", "-c", "echo mine >/data/mine")
    config["mounts"].append(
        {"destination": "/data", "type": "bind", "source": str(data), "options": ["rbind"]}
    )
    life = site.life(config=config).created()
    data.rmdir()
    data.write_text("in the way")
    site.user.give(data)
    life.start()
    assert life.wait() == 125
    (staged,) = scratch.iterdir()
    (kept,) = staged.glob("mount-*/mine")
    assert kept.read_text() == "mine\n"
    assert str(kept.parent) in life.state()["annotations"]["org.scrun.message"]
    life.delete()


@pytest.mark.parametrize("place", ["local-root", "slurm-root"])
def test_the_example_in_the_page(make_site: MakeSite, place: str) -> None:
    page = (DOCS / "man" / "scrun.lua.5.rst").read_text()
    block = page[page.index("    local json = require") :]
    lines = itertools.takewhile(lambda line: line[:4] in ("    ", "\n"), block.splitlines(True))
    site = make_site(place, settings=SETTINGS)
    scratch = site.base / "scratch"
    scratch.mkdir()
    source = textwrap.dedent("".join(lines))
    assert source.rstrip().endswith("return slurm.SUCCESS")
    with_script(site, source, {"/shared/scrun": str(scratch)})
    config = site.config("sh", "-c", "echo written >/root/new")
    config["root"]["readonly"] = False
    life = site.life(config=config).created()
    assert len([*scratch.iterdir()]) == 1
    life.start()
    assert life.wait() == 0, life.describe()
    assert (site.rootfs / "root" / "new").read_text() == "written\n"
    life.delete()
    assert list(scratch.iterdir()) == []


def test_under_podman(make_site: MakeSite) -> None:
    site = make_site("slurm-user")
    scratch = with_installed(site, "shared")
    places = {name: site.base / name for name in ("shared", "it's own")}
    for path in places.values():
        path.mkdir()
        (path / "known").write_text("known\n")
        site.user.give(path)
    volumes = [f"--volume={path}:/{name[:2]}" for name, path in places.items()]
    script = 'test -n "$SLURM_JOB_ID" && cat /sh/known /it/known && rm /it/known'
    script += " && hostname >/root/new && cp /root/new /sh/new && cp /root/new /it/new"
    run = ["run", "--name", "x", "--network", "host", "--hostname", "here", *volumes]
    with Podman(site, f'[lua]\nscript = "{site.base / "scrun.lua"}"\n') as podman:
        said = podman.must(*run, "busybox", "sh", "-c", script)
        assert said == "known\nknown\n"
        for path in places.values():
            assert (path / "new").read_text() == "here\n"
        assert (places["shared"] / "known").exists()
        assert not (places["it's own"] / "known").exists()
        podman.must("cp", "x:/root/new", str(site.base / "b" / "new"))
        assert (site.base / "b" / "new").read_text() == "here\n"
        podman.must("rm", "x")
        assert list(scratch.iterdir()) == []
