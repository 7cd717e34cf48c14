"""What is written for a task before the site's OCI runtime is called, as slurmstepd does it."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from scrun.core.errors import SettingsError, StagingError
from scrun.settings.oci_conf.commands import Task
from scrun.settings.oci_conf.parse import OciConf
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.engines.local.runtime_config import changed_config
from scrun.supervisor.engines.local.site_commands import write_task

CONFIG: dict[str, Any] = {
    "ociVersion": "1.0.2",
    "process": {"args": ["old"], "env": ["A=1", "SLURM_CONF=/c"], "cwd": "/", "terminal": True},
    "root": {"path": "rootfs", "readonly": True},
    "hooks": {"prestart": [{"path": "/p"}], "poststop": [{"path": "/q"}]},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/x", "type": "bind", "source": "files/0"},
        {"destination": "/y", "options": ["ro", "bind"], "source": "/abs"},
    ],
    "annotations": {"kept": "yes"},
}
TASK = Task(job="7", node="n1", user="me", uid=9, spool="/spool", directory="/home/me")


def changed(conf: OciConf, mount: tuple[str, str] | None = None) -> dict[str, Any]:
    return changed_config(
        CONFIG, conf, arguments=["new", "it's"], environment={"A": "1"}, bundle="/b", mount=mount
    )


def test_config_json() -> None:
    config = changed(OciConf(run_time_run="x"))
    assert config["process"] == {
        "args": ["new", "it's"], "env": ["A=1"], "cwd": "/", "terminal": True,
    }  # fmt: skip
    assert config["root"] == {"path": "/b/rootfs", "readonly": True}
    assert [mount["source"] for mount in config["mounts"]] == ["proc", "/b/files/0", "/abs"]
    assert config["hooks"] == CONFIG["hooks"]
    assert config["annotations"] == {"kept": "yes"}


@pytest.mark.covers("oci.conf DisableHooks")
def test_disabled_hooks() -> None:
    """oci.conf(5): DisableHooks."""
    config = changed(OciConf(disable_hooks=("prestart", "createRuntime")))
    assert config["hooks"] == {"poststop": [{"path": "/q"}]}
    assert "prestart" in CONFIG["hooks"]


def test_no_terminal_without_a_console_socket() -> None:
    assert changed(OciConf(run_time_create="x"))["process"]["terminal"] is False


@pytest.mark.covers("oci.conf MountSpoolDir")
def test_mounted_directory() -> None:
    """oci.conf(5): MountSpoolDir."""
    [*_, mount] = changed(OciConf(), ("/spool/oci-job7-0", "/in"))["mounts"]
    assert mount == {
        "destination": "/in", "type": "none", "source": "/spool/oci-job7-0", "options": ["bind"],
    }  # fmt: skip


@pytest.mark.covers("oci.conf ContainerPath")
@pytest.mark.parametrize(
    ("conf", "step", "task", "mount"),
    [
        (OciConf(), "/spool/oci-job7-0", "/spool/oci-job7-0/task-0", None),
        (
            OciConf(container_path="/x/%u-%U", mount_spool_dir="/m/%j/%n"),
            "/x/me-9/oci-job7-0",
            "/x/me-9/oci-job7-0/task-0",
            "/m/7/n1",
        ),
        (OciConf(mount_spool_dir="%m"), "/spool/oci-job7-0", "/spool/oci-job7-0/task-0",
         "/spool/oci-job7-0"),
    ],
)  # fmt: skip
def test_places(conf: OciConf, step: str, task: str, mount: str | None) -> None:
    """oci.conf(5): ContainerPath, MountSpoolDir."""
    assert TASK.step_directory(conf) == step
    assert TASK.task_directory(conf) == task
    assert TASK.mount_point(conf) == mount
    assert TASK.fill("%m %e %Z %p", conf) == f"{step} {task}/environment /home/me 4194305"


def test_where_a_pattern_means_itself() -> None:
    with pytest.raises(SettingsError, match="%m has no meaning here"):
        TASK.step_directory(OciConf(container_path="/x/%m"))


def test_no_arguments_are_false() -> None:
    assert TASK.fill("x %@", OciConf()) == "x '/bin/false'"


JOBS = {"SLURM_JOB_ID": "7", "A": "job's"}


def written(tmp_path: Path, conf: OciConf, variables: Mapping[str, str] = JOBS) -> tuple[str, str]:
    bundle = tmp_path / "bundle"
    bundle.mkdir(exist_ok=True)
    (bundle / "config.json").write_text(json.dumps(CONFIG))
    step = Step(str(bundle), ("new",), (0, 1, 2), False, "", True, lambda: None)
    task = msgspec.structs.replace(TASK, spool=str(tmp_path / "s"))
    return write_task(conf, task, step, variables)


@pytest.mark.covers("security the directory of a step")
def test_what_is_written(tmp_path: Path) -> None:
    """oci.conf(5): EnvExclude; config.json's own variables count more than the job's."""
    conf = OciConf(create_env_file="newline", env_exclude="^SLURM_CONF=")
    bundle, rootfs = written(tmp_path, conf)
    assert bundle == f"{tmp_path}/s/oci-job7-0/task-0"
    assert rootfs == f"{tmp_path}/bundle/rootfs"
    assert (Path(bundle) / "environment").read_text() == "SLURM_JOB_ID=7\nA=1\n"
    config = json.loads((Path(bundle) / "config.json").read_text())
    assert config["process"]["env"] == ["SLURM_JOB_ID=7", "A=1"]
    for path in (bundle, os.path.dirname(bundle)):
        assert os.stat(path).st_mode & 0o777 == 0o700
    for name in ("environment", "config.json"):
        assert os.stat(f"{bundle}/{name}").st_mode & 0o777 == 0o600
    # what DisableCleanup has left does not matter
    assert written(tmp_path, OciConf()) == (bundle, rootfs)
    assert os.listdir(bundle) == ["config.json"]


@pytest.mark.covers("oci.conf CreateEnvFile")
@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("null", b"B=x\ny\0C=\xff\0A=1\0SLURM_CONF=/c\0"),
        ("newline", b"C=\xff\nA=1\nSLURM_CONF=/c\n"),
    ],
)
def test_environment_files(
    tmp_path: Path, form: Literal["null", "newline"], content: bytes
) -> None:
    """oci.conf(5): CreateEnvFile; with newlines, variables that have one are dropped."""
    conf = OciConf(ignore_file_config_json=True, create_env_file=form)
    written(tmp_path, conf, {"B": "x\ny", "C": "\udcff"})
    file = tmp_path / "s" / "oci-job7-0" / "task-0" / "environment"
    assert file.read_bytes() == content


@pytest.mark.covers("oci.conf IgnoreFileConfigJson")
def test_config_json_that_is_ignored(tmp_path: Path) -> None:
    """oci.conf(5): IgnoreFileConfigJson."""
    conf = OciConf(ignore_file_config_json=True, create_env_file="null")
    assert written(tmp_path, conf) == (f"{tmp_path}/bundle", f"{tmp_path}/bundle/rootfs")
    assert os.listdir(tmp_path / "s" / "oci-job7-0" / "task-0") == ["environment"]


@pytest.mark.covers("guide the runtime's root directory is safe from others")
@pytest.mark.covers("security the directory of a step")
def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "theirs").symlink_to("/")
    with pytest.raises(StagingError, match="set ContainerPath"):
        written(tmp_path, OciConf(container_path=f"{tmp_path}/theirs/proc/1"))
    made = tmp_path / "s" / "oci-job7-0"
    made.parent.mkdir()
    made.symlink_to("/etc")
    with pytest.raises(StagingError, match="it belongs to somebody else"):
        written(tmp_path, OciConf())
