"""`scrun spec`: a config.json that is valid, and that runs."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from scrun.cli.parse import parse
from scrun.commands.spec import run, spec
from scrun.core.errors import StateError
from scrun.oci.config import load_bundle
from tests import CHECKOUT
from tests.harness.program import run_program
from tests.harness.site import Site, scrun_binary
from tests.harness.users import User, ordinary

SCHEMA = json.loads((CHECKOUT / "tests" / "data" / "schemas" / "config.json").read_text())
KINDS = pytest.mark.parametrize("ids", [None, (1000, 1001)], ids=["plain", "rootless"])


def written(path: Path, *options: str) -> dict[str, Any]:
    assert run(parse(["spec", *options, "--bundle", str(path)])) == 0
    config: dict[str, Any] = json.loads((path / "config.json").read_text())
    return config


@pytest.mark.covers("scrun spec")
@KINDS
def test_the_form(ids: tuple[int, int] | None) -> None:
    jsonschema.validate(spec(ids), SCHEMA)


def test_the_schema_finds_faults() -> None:
    faults: tuple[dict[str, Any], ...] = (
        {"ociVersion": "1"},
        {"process": {"args": ["sh"]}},
        {"linux": {"seccomp": {}}},
    )
    for fault in faults:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**spec(), **fault}, SCHEMA)


def test_scrun_reads_it(tmp_path: Path) -> None:
    (tmp_path / "rootfs").mkdir()
    config = written(tmp_path)
    bundle = load_bundle(str(tmp_path))
    assert bundle.raw == config == spec()
    assert bundle.config.process.terminal
    assert bundle.rootfs == str(tmp_path / "rootfs")
    assert list(tmp_path.glob(".*")) == []


@KINDS
def test_what_a_container_on_a_node_can_have(ids: tuple[int, int] | None) -> None:
    config = spec(ids)
    kinds = {namespace["type"] for namespace in config["linux"]["namespaces"]}
    assert kinds == {"pid", "ipc", "uts", "mount"} | ({"user"} if ids else set())
    assert "rlimits" not in config["process"]
    assert "resources" not in config["linux"]
    assert config["process"]["noNewPrivileges"]
    assert {mount["destination"] for mount in config["mounts"]} == {
        "/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys",
    }  # fmt: skip


def test_rootless_maps_the_caller(tmp_path: Path) -> None:
    linux = written(tmp_path, "--rootless")["linux"]
    assert linux["uidMappings"] == [{"containerID": 0, "hostID": os.geteuid(), "size": 1}]
    assert linux["gidMappings"] == [{"containerID": 0, "hostID": os.getegid(), "size": 1}]


@pytest.mark.covers("scrun spec")
def test_nothing_is_overwritten(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("mine")
    with pytest.raises(StateError, match=r"config\.json exists: remove it first"):
        written(tmp_path)
    assert config.read_text() == "mine"
    config.unlink()
    config.symlink_to("elsewhere")  # of somebody who may make one here
    with pytest.raises(StateError):
        written(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_no_such_directory(tmp_path: Path) -> None:
    done = run_program([scrun_binary(), "spec", "--bundle", tmp_path / "none"])
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"scrun: {tmp_path}/none/config.json: No such file or directory\n"


def test_the_other_file_name_of_crun(tmp_path: Path) -> None:
    assert run(parse(["spec", "-b", str(tmp_path), "--file", "other.json"])) == 0
    assert json.loads((tmp_path / "other.json").read_text()) == spec()


# --- it runs --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    made = Site("local", ordinary())
    yield made
    made.close()


def bundle(site: Site, name: str, *options: str) -> Path:
    """Make a bundle with the command, in the working directory as people do it."""
    path = site.base / "b" / name
    path.mkdir()
    site.user.give(path)
    done = site.run("spec", *options, cwd=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    config = json.loads((path / "config.json").read_text())
    config["root"]["path"] = str(site.rootfs)
    config["process"].update(
        terminal=False,
        args=["sh", "-c", "id -u; hostname; ls -d /dev/shm/. /sys/class; echo $$"],
    )
    (path / "config.json").write_text(json.dumps(config))
    return path


EXPECTED = "0\nscrun\n/dev/shm/.\n/sys/class\n1\n"


@pytest.mark.covers("scrun spec")
@pytest.mark.parametrize("options", [(), ("--rootless",)], ids=["plain", "rootless"])
def test_scrun_runs_it(site: Site, options: tuple[str, ...]) -> None:
    name = "-".join(("scrun", *options))
    life = site.life(bundle=bundle(site, name, *options)).created().start()
    assert life.wait() == 0, life.describe()
    assert life.output() == EXPECTED
    life.delete()
    site.clear()


@pytest.mark.covers("scrun spec")
def test_runc_runs_the_rootless_one(site: Site) -> None:
    path = bundle(site, "runc", "--rootless")
    user: User = site.user
    runc = shutil.which("runc", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert runc, "runc is missing: tools/setup --test"
    state = site.base / "b" / "runc-root"
    done = run_program(
        [*user.prefix, runc, "--root", state, "run", site.base.name],
        env=site.environment,
        cwd=path,
    )
    assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr
