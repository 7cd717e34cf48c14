"""pyxis' options, turned into those of `scrun run`."""

import pytest

from scrun.core.errors import UsageError
from scrun.pull.container import namespaces
from scrun.pull.pyxis import (
    HELP,
    appends,
    batch_options,
    batch_script,
    exported,
    image_of,
    known,
    of_the_job,
    options_of,
    read,
    requests_of,
    streams_of,
    understand,
)

IMAGE = {"container-image": "box"}


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("ubuntu", "docker://ubuntu"),
        ("ubuntu:22.04", "docker://ubuntu:22.04"),
        ("nvcr.io#nvidia/pytorch:24.01-py3", "docker://nvcr.io/nvidia/pytorch:24.01-py3"),
        ("me@reg:5000#a/b:1", "docker://reg:5000/a/b:1"),
        ("me@a/b", "docker://a/b"),
        ("a@sha256:12", "docker://a@sha256:12"),
        ("docker://ubuntu", "docker://ubuntu"),
        ("docker://me@reg#a/b", "docker://reg/a/b"),
        ("podman://box", "containers-storage:box"),
        ("/a/b.sqsh", "/a/b.sqsh"),
        ("./b", "./b"),
        ("../b.img", "../b.img"),
        ("b.sqsh", "./b.sqsh"),
    ],
)
def test_images(text: str, image: str) -> None:
    assert image_of(text) == image


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({}, ["--user", "5:6", "--no-entrypoint"]),
        ({"container-remap-root": ""}, ["--user", "0:0", "--no-entrypoint"]),
        ({"container-entrypoint": ""}, ["--user", "5:6"]),
        ({"container-readonly": ""}, ["--user", "5:6", "--no-entrypoint", "--read-only"]),
        ({"container-writable": ""}, ["--user", "5:6", "--no-entrypoint"]),
        ({"container-mount-home": ""}, ["--user", "5:6", "--no-entrypoint", "--home"]),
        (
            {"container-mounts": "/a:/b,/c:/d:ro+nodev"},
            ["--user", "5:6", "--no-entrypoint", "--mount", "/a:/b", "--mount", "/c:/d:ro+nodev"],
        ),
        (
            {"container-name": "n", "container-save": "/s", "container-workdir": "/w"},
            ["--user", "5:6", "--no-entrypoint", "--writable", "--name", "n", "--workdir", "/w",
             "--save", "/s"],
        ),
        (
            {"container-env": "A,B"},
            ["--user", "5:6", "--no-entrypoint", "--env", "A", "--env", "B"],
        ),
    ],
)  # fmt: skip
def test_options(container: dict[str, str], words: list[str]) -> None:
    assert options_of({**IMAGE, **container}, (5, 6)) == (["--all-env", *words], "docker://box")


def test_a_name_alone() -> None:
    assert options_of({"container-name": "n:create"}, (0, 0))[1] == "name:n"
    with pytest.raises(UsageError, match="--container-image is missing"):
        options_of({"container-env": "A"}, (0, 0))


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["-N2", "-n", "4", "a", "-N"], ["a", "-N"]),
        (["--nodes=2", "--ntasks", "4", "--pty", "a"], ["a"]),
        (["-lu", "--exclusive", "--", "-a"], ["-a"]),
        (["--container-readonly", "a"], ["a"]),
        (["--unknown", "x", "a"], ["a"]),
        ([], []),
        (["-"], ["-"]),
    ],
)
def test_where_the_command_begins(words: list[str], command: list[str]) -> None:
    assert read(words)[1] == command


def test_an_option_without_its_value() -> None:
    with pytest.raises(UsageError, match="option --nodes needs a value"):
        read(["--nodes"])


def test_waiting_is_another_option_of_sbatch() -> None:
    assert read(["-W", "a"], batch=True)[1] == ["a"]
    assert read(["-W", "5", "a"])[1] == ["a"]


def test_the_environment_counts_less() -> None:
    env = {
        "PYXIS_CONTAINER_IMAGE": "e", "PYXIS_CONTAINER_READONLY": "1", "PYXIS_CONTAINER_ENV": "A",
        "PYXIS_CONTAINER_MOUNT_HOME": "no",
    }  # fmt: skip
    call = understand(["--container-image=c", "--container-writable", "x"], env)
    assert call.container == {
        "container-image": "c", "container-writable": "", "container-env": "A",
    }  # fmt: skip
    assert call.command == ["x"]
    assert understand(["x"], env).container["container-readonly"] == ""


def test_requests() -> None:
    words = read(["-N", "2", "-c4", "-t5", "--mem=1G", "-u", "--exclusive", "--pty", "-J", "j"])[0]
    assert requests_of(words, {}) == {
        "SCRUN_JOB_NUM_NODES": "2", "SCRUN_CPUS_PER_TASK": "4", "SCRUN_TIMELIMIT": "5",
        "SCRUN_MEM_PER_NODE": "1G", "SCRUN_UNBUFFEREDIO": "yes", "SCRUN_EXCLUSIVE": "yes",
        "SCRUN_JOB_NAME": "j",
    }  # fmt: skip
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3", "SLURM_NTASKS": "6"}
    assert requests_of([], job) == {"SCRUN_JOB_NUM_NODES": "3", "SCRUN_NTASKS": "6"}
    assert requests_of(read(["-n1"])[0], job) == {"SCRUN_NTASKS": "1"}
    first = {"SLURM_NTASKS_HET_GROUP_0": "1", "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1"}
    several = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "3", **first}
    assert requests_of([], several) == {"SCRUN_JOB_NUM_NODES": "1", "SCRUN_NTASKS": "1"}
    with pytest.raises(UsageError, match=r"srun -x: does not go with --container-image"):
        requests_of(read(["-x", "n1"])[0], {})


HELP_OF_SRUN = """Usage: srun [OPTIONS(0)... [executable(0) [args(0)...]]]

Parallel run options:
  -A, --account=name          charge job to specified account
      --bcast=<dest_path>     Copy executable file to compute nodes
      --container             Path to OCI container bundle
  -I, --immediate[=secs]      exit if resources not available in "secs"
      --nice[=value]          decrease scheduling priority by value
  -s, --oversubscribe         over-subscribe resources with other jobs
  -x, --exclude=hosts...      exclude a specific list of hosts
  -B  --extra-node-info=S[:C[:T]]  combine request of sockets per node,
      --mem-per-cpu=MB        maximum amount of real memory per allocated
                              --mem >= --mem-per-cpu if --mem is specified.
  -J, --new-option=x          of a later version
      --wrap[=command string] wrap command string in a sh script and submit
"""


def test_options_that_a_tool_lists() -> None:
    listed = known(HELP_OF_SRUN)
    assert listed == {
        "account": ("A", True), "bcast": ("", True), "container": ("", True),
        "immediate": ("I", False), "nice": ("", False), "oversubscribe": ("s", False),
        "exclude": ("x", True), "extra-node-info": ("B", True), "mem-per-cpu": ("", True),
        "new-option": ("J", True), "wrap": ("", True),
    }  # fmt: skip
    line = ["-s", "--imm", "--nice", "--over", "-I5", "-J", "a", "--bcast=x", "-x", "n1", "true"]
    words, command = read(line, listed=listed)
    assert command == ["true"]
    assert [(word.name, word.value) for word in words] == [
        ("oversubscribe", None), ("immediate", None), ("nice", None), ("oversubscribe", None),
        ("immediate", "5"), ("new-option", "a"), ("bcast", "x"), ("exclude", "n1"),
    ]  # fmt: skip


def test_options_of_a_job_alone() -> None:
    salloc = known(HELP_OF_SRUN)
    words = read(["-s", "-x", "n1", "-N", "2", "--bcast=x", "-o", "f", "--exact"])[0]
    assert [word.name for word in of_the_job(words, salloc)] == ["oversubscribe", "exclude"]
    job = {"SLURM_JOB_ID": "7"}
    assert "SCRUN_NTASKS" not in requests_of(read(["-s", "--nice"])[0], job, salloc)
    with pytest.raises(UsageError, match="srun -x: does not go with"):
        requests_of(read(["-x", "n1"])[0], job, salloc)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("container-mounts", "/tmp:"),
        ("container-mounts", "/a:/b,"),
        ("container-mounts", ""),
        ("container-env", "FOO,"),
        ("container-env", ",FOO"),
        ("container-unshare", "net,"),
        ("container-unshare", ""),
    ],
)
def test_empty_parts_are_refused(option: str, value: str) -> None:
    with pytest.raises(UsageError, match="has an empty part"):
        options_of({**IMAGE, option: value}, (5, 6))


def test_own_namespaces() -> None:
    found = options_of({**IMAGE, "container-unshare": "net,uts"}, (5, 6))[0]
    assert found[-2:] == ["--unshare", "net,uts"]
    call = understand(["true"], {"PYXIS_CONTAINER_UNSHARE": "ipc"})
    assert call.container == {"container-unshare": "ipc"}
    assert namespaces("net,ipc,net") == ("network", "ipc")
    with pytest.raises(UsageError, match=r"unknown namespace 'foo': only ipc, net, uts"):
        namespaces("net,foo")


def test_streams() -> None:
    assert streams_of(read(["-o", "a"])[0]) == {1: "a", 2: ""}
    assert streams_of(read(["-o", "a", "-e", "b", "-i", "none"])[0]) == {
        0: "/dev/null", 1: "a", 2: "b",
    }  # fmt: skip
    assert streams_of(read(["-o", "%j", "-o", "%x_%t.log"])[0]) == {1: "%x_%t.log", 2: ""}
    assert streams_of(read(["-o", "all", "-e", "0", "-i", "all"])[0]) == {}
    assert streams_of(read(["-o", "%j", "-e", "a7"])[0], 3) == {1: "%j", 2: "a7"}
    assert streams_of(read(["-o", "none"])[0], 3) == {1: "/dev/null", 2: ""}


@pytest.mark.parametrize("name", ["%t", "a.%N", "%3n", "1"])
def test_a_file_for_each_task(name: str) -> None:
    words = read(["-o", name])[0]
    streams_of(words)
    with pytest.raises(UsageError, match=r"cannot be a file for each of 2 tasks"):
        streams_of(words, 2)


def test_files_that_are_kept() -> None:
    assert appends(read(["--open-mode=append"])[0], {})
    assert appends([], {"SLURM_OPEN_MODE": "a"})
    assert not appends(read(["--open-mode=truncate"])[0], {"SLURM_OPEN_MODE": "a"})
    assert not appends([], {})


@pytest.mark.parametrize(
    ("words", "everything", "besides"),
    [
        ([], True, []),
        (["--export=ALL"], True, []),
        (["--export=NONE"], False, []),
        (["--export=A,B=1"], False, ["A", "B=1"]),
        (["--export", "ALL,A=1"], True, ["A=1"]),
    ],
)
def test_export(words: list[str], everything: bool, besides: list[str]) -> None:
    assert exported(read(words)[0]) == (everything, besides)


SCRIPT = """#!/usr/bin/env bash
#SBATCH -N 1 --container-image=a#b:1  # a comment
#SBATCH --container-readonly
#SBATCH -o "x y"
# words

echo 'it''s' $1
#SBATCH -n 7
"""


def test_batch_scripts() -> None:
    names = [(word.name, word.value) for word in batch_options(SCRIPT)]
    assert names == [
        ("nodes", "1"), ("container-image", "a#b:1"), ("container-readonly", None),
        ("output", "x y"),
    ]  # fmt: skip
    lines = batch_script(SCRIPT, "job", ["scrun", "run", "docker://a"], ["one two"]).splitlines()
    assert lines[:4] == ["#!/bin/sh", "#SBATCH -N 1", "#SBATCH -o 'x y'", "#SBATCH -n 7"]
    assert lines[5].startswith("exec scrun run docker://a bash -c '#!/usr/bin/env bash")
    assert lines[-1].endswith("' job 'one two'")


@pytest.mark.parametrize("first", ["", "echo", "#!", "#!/usr/bin/ruby"])
def test_scripts_that_cannot_be_handed_over(first: str) -> None:
    with pytest.raises(UsageError, match=r"^job: "):
        batch_script(f"{first}\n", "job", ["scrun"], [])


def test_help_has_each_option() -> None:
    assert HELP.count("[pyxis]") == 16
    assert all(len(line) <= 80 for line in HELP.splitlines())
