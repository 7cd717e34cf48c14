"""What `scrun features` says: in the specification's form, and true."""

import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from scrun.cli.parse import parse
from scrun.commands import features
from scrun.commands.features import features as document_for
from scrun.oci import config
from scrun.settings.slurm.requests import TABLE
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.staging.policy import fit
from tests import CHECKOUT
from tests.harness.bundle import VOLUMES
from tests.harness.site import scrun_binary

SCHEMA = json.loads((CHECKOUT / "tests" / "data" / "schemas" / "features.json").read_text())
PLACES = [("slurm", False), ("slurm", True), ("local", False), ("local", True)]


def document(engine: str, privileged: bool = False) -> dict[str, Any]:
    return document_for(engine, privileged=privileged)


@pytest.mark.covers("scrun features")
@pytest.mark.parametrize(("engine", "privileged"), PLACES)
def test_the_form(engine: str, privileged: bool) -> None:
    jsonschema.validate(document(engine, privileged), SCHEMA)


def test_the_schema_finds_faults() -> None:
    for fault in (
        {"hooks": ["start"]},
        {"linux": {"cgroup": {"v3": True}}},
        {"ociVersionMin": "1"},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**document("slurm"), **fault}, SCHEMA)


@pytest.mark.parametrize("member", ["ociVersionMin", "ociVersionMax"])
def test_both_versions_are_accepted(member: str) -> None:
    text = {
        "ociVersion": document("slurm")[member],
        "process": {"args": ["true"], "cwd": "/"},
        "root": {"path": "rootfs"},
    }
    config.parse(json.dumps(text).encode())


@pytest.mark.covers("scrun features")
@pytest.mark.parametrize(("engine", "privileged"), PLACES)
def test_staging_does_what_is_said(engine: Any, privileged: bool) -> None:
    """What the document calls supported is what the policy leaves in config.json, no less."""
    asked: dict[str, Any] = {
        "process": {"apparmorProfile": "p", "selinuxLabel": "l"},
        "hooks": {"poststop": [{"path": "/bin/true"}]},
        "linux": {
            "resources": {"pids": {"limit": 9}},
            "intelRdt": {"closID": "a"},
            "seccomp": {"defaultAction": "SCMP_ACT_ALLOW"},
        },
    }
    target = Target(
        elsewhere=engine == "slurm",
        uid=0 if privileged else 1000,
        gid=0,
        rootless=not privileged,
        cgroups=engine == "local" and privileged,
    )
    plan = fit(
        asked, bundle="/b", staged="/s", rootfs="/r", place=VOLUMES, target=target, sources={}
    )
    left, told = plan.config, document(engine, privileged)
    assert ("hooks" in left) is bool(told["hooks"])
    linux = told["linux"]
    assert ("resources" in left["linux"]) is linux["cgroup"]["v1"] is linux["cgroup"]["v2"]
    assert ("intelRdt" in left["linux"]) is linux["intelRdt"]["enabled"]
    assert ("seccomp" in left["linux"]) is linux["seccomp"]["enabled"]
    assert ("apparmorProfile" in left["process"]) is linux["apparmor"]["enabled"]
    assert ("selinuxLabel" in left["process"]) is linux["selinux"]["enabled"]


def test_nothing_that_the_runtime_does_not_have() -> None:
    done = subprocess.run(["runc", "features"], capture_output=True, check=True, timeout=20)
    runc, ours = json.loads(done.stdout), document("local", True)
    assert {*ours["hooks"]} <= {*runc["hooks"]}
    assert {*ours["mountOptions"]} <= {*runc["mountOptions"]}
    for key in ("namespaces", "capabilities"):
        assert {*ours["linux"][key]} <= {*runc["linux"][key]}
    for key in ("actions", "operators", "archs"):
        assert {*ours["linux"]["seccomp"][key]} <= {*runc["linux"]["seccomp"][key]}


def test_annotations_that_change_the_job() -> None:
    unsafe = document("slurm")["potentiallyUnsafeConfigAnnotations"]
    assert "SCRUN_JOB_NUM_NODES" in unsafe
    assert "slurm." in unsafe
    assert "SCRUN_PROLOG" in TABLE
    assert "SCRUN_PROLOG" not in unsafe  # of config.json it is ignored


@pytest.mark.covers("scrun features")
@pytest.mark.parametrize(
    ("options", "environment", "engine"),
    [
        (["--engine", "local"], {}, "local"),
        (["--engine", "slurm"], {}, "slurm"),
        (["-f", "slurm.conf"], {}, "slurm"),
        ([], {"SCRUN_ENGINE": "local", "SLURM_CONF": "/s"}, "local"),
        ([], {"SLURM_CONF": "/s"}, "slurm"),
    ],
)
def test_it_is_about_the_engine_that_create_would_take(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: list[str],
    environment: dict[str, str],
    engine: str,
) -> None:
    for name in ("SCRUN_ENGINE", "SLURM_CONF"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "scrun.toml").touch()
    monkeypatch.setenv("SCRUN_CONFIG", str(tmp_path / "scrun.toml"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    written: list[bytes] = []
    monkeypatch.setattr(features, "write", written.append)
    assert features.run(parse([*options, "features"])) == 0
    assert json.loads(written[0])["annotations"]["org.scrun.engine"] == engine


def test_the_command() -> None:
    done = subprocess.run(
        [scrun_binary(), "--engine", "local", "features"],
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": "/nowhere"},
        capture_output=True,
        check=True,
        timeout=20,
    )
    assert done.stderr == b""
    jsonschema.validate(json.loads(done.stdout), SCHEMA)
