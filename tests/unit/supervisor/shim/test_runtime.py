"""What a shim tells the OCI runtime, and what it makes of its answers."""

import json
import os
from pathlib import Path

import pytest

from scrun.supervisor.shim.runtime import Runtime, installed, last_error, merged, read_log


@pytest.mark.parametrize(
    ("config", "own", "found"),
    [
        ([], {}, []),
        (["A=1", "B=2"], {"HOME": "/h", "PATH": "/p"}, ["A=1", "B=2"]),
        (["A=1", "SLURM_ID=3", "B=2"], {"SLURM_ID": "4"}, ["A=1", "SLURM_ID=4", "B=2"]),
        (["PMI_RANK=9", "PMI_RANK=8"], {"PMI_RANK": "0"}, ["PMI_RANK=0", "PMI_RANK=0"]),
        (["A=1"], {"PMIX_RANK": "0", "SLURMD_X": "n"}, ["A=1", "PMIX_RANK=0", "SLURMD_X=n"]),
        (["CUDA_VISIBLE_DEVICES=all"], {"CUDA_VISIBLE_DEVICES": "1"}, ["CUDA_VISIBLE_DEVICES=1"]),
        ([], {"CUDA_HOME": "/c", "ROCR_VISIBLE_DEVICES": "", "ZE_AFFINITY_MASK": "=2"},
         ["ROCR_VISIBLE_DEVICES=", "ZE_AFFINITY_MASK==2"]),
        (["SLURM_X=1", "odd"], {"GPU_DEVICE_ORDINAL": "0"},
         ["SLURM_X=1", "odd", "GPU_DEVICE_ORDINAL=0"]),
        (["SLURM_A=1"], {"SLURM_A": "x\udcff", "SLURM_B": "\udcff", "SLURM_C": "\xff"},
         ["SLURM_A=1", "SLURM_C=\xff"]),
    ],
)  # fmt: skip
def test_slurms_variables_are_added(
    config: list[str], own: dict[str, str], found: list[str]
) -> None:
    before = list(config)
    assert merged(config, own) == found
    assert config == before


def test_commands_of_crun() -> None:
    runtime = Runtime("/usr/bin/crun", "/tmp/dir")
    options = ["/usr/bin/crun", "--cgroup-manager=disabled", "--root", "/tmp/dir/crun"]
    log = ["--log", "/tmp/dir/1/log", "--log-format", "json"]
    assert runtime.options() == options
    assert runtime.command("/tmp/dir/1", "start", "--", "name") == [
        *options, *log, "start", "--", "name",
    ]  # fmt: skip
    create = ["create", "--bundle", "/tmp/dir/1", "--pid-file", "/tmp/dir/1/pid"]
    assert runtime.create("/tmp/dir/1", "name", False) == [*options, *log, *create, "--", "name"]
    console = ["--console-socket", "console"]
    assert runtime.create("/tmp/dir/1", "name", True) == [
        *options, *log, *create, *console, "--", "name",
    ]  # fmt: skip
    run = ["exec", "--detach", "--pid-file", "/tmp/dir/1/pid"]
    run += ["--process", "/tmp/dir/1/process.json"]
    assert runtime.exec("/tmp/dir/1", "name", False) == [*options, *log, *run, "--", "name"]
    assert runtime.exec("/tmp/dir/1", "name", True) == [
        *options, *log, *run, *console, "--", "name",
    ]  # fmt: skip


@pytest.mark.parametrize(("uid", "rootless"), [(0, "false"), (1000, "true")])
def test_options_of_runc(monkeypatch: pytest.MonkeyPatch, uid: int, rootless: str) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert Runtime("/usr/sbin/runc", "/d").options() == [
        "/usr/sbin/runc", f"--rootless={rootless}", "--root", "/d/runc",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("uid", "runtime", "linux", "found"),
    [
        (0, "runc", {}, {"cgroupsPath": "own"}),
        (0, "runc", {"cgroupsPath": ""}, {"cgroupsPath": "own"}),
        (0, "runc", {"cgroupsPath": "given"}, {"cgroupsPath": "given"}),
        (0, "crun", {}, {}),
        (0, "runc", None, None),
        (1000, "runc", {}, {}),
    ],
)
def test_cgroups_are_nobody_elses(
    monkeypatch: pytest.MonkeyPatch, uid: int, runtime: str, linux: object, found: object
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    config = {"linux": linux}
    Runtime(f"/usr/bin/{runtime}", "/d").separate(config, "own")
    assert config == {"linux": found}


@pytest.mark.parametrize(
    ("uid", "runtime", "groups", "left"),
    [
        (1000, "runc", [7, 5, 7], [5]),
        (1000, "runc", [], []),
        (1000, "crun", [7], [7]),
        (0, "runc", [7], [7]),
    ],
)
def test_a_group_that_it_has_anyway(
    monkeypatch: pytest.MonkeyPatch, uid: int, runtime: str, groups: list[int], left: list[int]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    process = {"user": {"uid": 7, "gid": 7, "additionalGids": groups}}
    Runtime(f"/usr/bin/{runtime}", "/d").fit(process)
    assert process["user"]["additionalGids"] == left
    Runtime(f"/usr/bin/{runtime}", "/d").fit({})


def test_path_comes_first(tmp_path: Path) -> None:
    for folder, name, mode in (("a", "runc", 0o755), ("b", "runc", 0o755), ("a", "crun", 0o644)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).touch(mode)
    found = list(installed(f"relative::{tmp_path}/none:{tmp_path}/a:{tmp_path}/b"))
    assert [path for path in found if path.endswith("runc")] == [f"{tmp_path}/a/runc"]
    assert f"{tmp_path}/a/crun" not in found


def entry(message: str, level: str = "error") -> str:
    return json.dumps({"level": level, "msg": message, "time": "now"})


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("", ""),
        ("noise\n{broken\n[1]\n", ""),
        (f"{entry('one')}\n{entry('two')}\n", "two"),
        (f"{entry('one')}\n{entry('two', 'warning')}\n", "one"),
        ('{\n "level": "error",\n "msg": "on several lines"\n}\n', "on several lines"),
        (f"last output{entry('no entry')}\n{entry('one')}", "one"),
        ('{"level": "error"}\n', ""),
        ("{" * 100_000, ""),
    ],
)
def test_the_last_error_of_a_log(log: str, error: str) -> None:
    assert last_error(log) == error


def test_words_without_a_log(tmp_path: Path) -> None:
    assert read_log(str(tmp_path), b"") == ("", "")
    assert read_log(str(tmp_path), b"first\nlast \xff\n\n") == ("last \ufffd", "")
    (tmp_path / "log").write_text(entry("one") + "\n")
    assert read_log(str(tmp_path), b"first\n") == ("one", entry("one") + "\n")
