"""Where requests come from, and what of config.json counts."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.core.errors import SettingsError
from scrun.settings.slurm.request_sources import (
    Flags,
    Wanted,
    concerned,
    gather,
    names_of_requests,
    read_requests,
)
from scrun.settings.slurm.requests import TABLE, salloc_arguments, srun_arguments
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.staging.mounts import Plan
from scrun.supervisor.staging.policy import fit
from tests.harness.bundle import VOLUMES

SAFE = [variable for variable, request in TABLE.items() if request.safe]
UNSAFE = [variable for variable, request in TABLE.items() if not request.safe]


def test_config_json_s_own_order() -> None:
    env = ["PATH=/bin", "SCRUN_NTASKS=1", "SCRUN_NTASKS=2", "SCRUN_PARTITION=a", "SCRUN_GRES", "X"]
    assert read_requests({}, env) == {"SCRUN_NTASKS": "2", "SCRUN_PARTITION": "a"}
    annotations = {"SCRUN_PARTITION": "b", "scrun_qos": "x", "org.scrun.SCRUN_QOS": "x"}
    assert read_requests(annotations, env) == {"SCRUN_NTASKS": "2", "SCRUN_PARTITION": "b"}


def test_values_may_have_equals_signs() -> None:
    assert read_requests({}, ["SCRUN_DISTRIBUTION=plane=4"]) == {"SCRUN_DISTRIBUTION": "plane=4"}


@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: requests")
@pytest.mark.parametrize(
    ("environment", "asked", "defaults", "value"),
    [
        ({}, {}, {}, None),
        ({}, {}, {"SCRUN_PARTITION": "c"}, "c"),
        ({}, {"SCRUN_PARTITION": "b"}, {"SCRUN_PARTITION": "c"}, "b"),
        (
            {"SCRUN_PARTITION": "a"},
            {"SCRUN_PARTITION": "b"},
            {"SCRUN_PARTITION": "c"},
            "a",
        ),
        ({"SCRUN_PARTITION": ""}, {"SCRUN_PARTITION": "b"}, {"SCRUN_PARTITION": "c"}, ""),
        ({"SLURM_PARTITION": "a", "PARTITION": "a"}, {}, {}, None),
    ],
)
def test_order(
    environment: dict[str, str],
    asked: dict[str, str],
    defaults: dict[str, str],
    value: str | None,
) -> None:
    assert gather(environment, asked, defaults).requests.get("SCRUN_PARTITION") == value


def test_an_empty_value_takes_a_request_back() -> None:
    wanted = gather({"SCRUN_PARTITION": ""}, {}, {"SCRUN_PARTITION": "c"})
    assert salloc_arguments(wanted.requests, (22, 5)) == []


@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: requests")
@pytest.mark.parametrize("variable", UNSAFE)
def test_an_image_cannot_ask_for_what_is_not_safe(variable: str) -> None:
    key = variable.removeprefix("SCRUN_").lower()
    for annotations, env in (
        ({variable: "x"}, []),
        ({}, [f"{variable}=x"]),
        ({f"slurm.{key}": "x"}, []),
    ):
        with pytest.raises(SettingsError) as refused:
            gather({}, read_requests(annotations, env), {variable: "z"})
        said = str(refused.value)
        assert said.startswith(f"config.json: {variable}: an image could have set it: ")
        assert "environment of create" in said
        assert f'(allow = ["{key}"] in [slurm])' in said
        assert "\n" not in said


@pytest.mark.parametrize("variable", UNSAFE)
def test_what_is_allowed_counts(variable: str) -> None:
    asked = read_requests({variable: "x"}, [])
    assert gather({}, asked, {variable: "z"}, allowed=[variable]).requests == {variable: "x"}
    with pytest.raises(SettingsError, match="is not accepted from an image"):
        gather({}, {variable: "/x"}, {}, allowed=[variable])


@pytest.mark.parametrize("name", [*UNSAFE, "slurm.nope", "SCRUN_NOPE"])
def test_an_empty_annotation_takes_an_images_back(name: str) -> None:
    assert gather({}, read_requests({name: ""}, []), {"SCRUN_QOS": "z"}) == Wanted(
        {"SCRUN_QOS": "z"}
    )


@pytest.mark.parametrize(
    ("annotation", "hint"),
    [
        ("slurm.partitoin", " (is it slurm.partition?)"),
        ("slurm.tiem", " (is it slurm.time?)"),
        ("SCRUN_PARTITON", " (is it SCRUN_PARTITION?)"),
        ("slurm.xyzzy", ""),
        ("slurm.\n" + "x" * 99, ""),
    ],
)
def test_an_annotation_that_is_no_request(annotation: str, hint: str) -> None:
    with pytest.raises(SettingsError) as refused:
        gather({}, read_requests({annotation: "x", "org.other": "y"}, ["SCRUN_OTHER=1"]), {})
    said = str(refused.value)
    shown = ascii(annotation[:80])[1:-1]
    assert said == f"config.json: annotation {shown}: unknown request{hint}"


@pytest.mark.parametrize("variable", UNSAFE)
def test_the_caller_and_the_settings_can(variable: str) -> None:
    assert gather({variable: "/x"}, {}, {}) == Wanted({variable: "/x"})
    assert gather({}, {}, {variable: "/x"}) == Wanted({variable: "/x"})
    both = gather({variable: "/x"}, {variable: "/y"}, {variable: "/z"})
    assert both == Wanted({variable: "/x"})


BAD = [
    "/etc/passwd",
    "a,/etc/passwd",
    "../hosts",
    "%j",
    "a\nb",
    "a\0b",
    "a\rb",
    "\x1b[1m",
    "a'b",
    'a"b',
    "$(id)",
    "`id`",
    "a;b",
    "a\\b",
    "~root",
    "a<b",
    "a>b",
    "ä",
    "\u0661",
    "a b\u2028",
    "x" * 5000,
]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("variable", ["SCRUN_JOB_NODELIST", "SCRUN_JOB_NAME", "SCRUN_GRES"])
def test_values_that_are_not_plain(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"^config.json: {variable}=.*create$") as refused:
        gather({}, {variable: value}, {})
    assert len(str(refused.value)) < 400
    assert str(refused.value).isascii()


@pytest.mark.parametrize("variable", SAFE)
def test_no_safe_request_takes_any_bad_value(variable: str) -> None:
    for value in ("%j", "a\nb", "a'b", "ä", "a b\u2028"):
        with pytest.raises(SettingsError):
            gather({}, {variable: value}, {})


@pytest.mark.parametrize("value", BAD)
def test_a_value_that_does_not_count_is_no_error(value: str) -> None:
    wanted = gather({"SCRUN_JOB_NODELIST": "n1"}, {"SCRUN_JOB_NODELIST": value}, {})
    assert wanted == Wanted({"SCRUN_JOB_NODELIST": "n1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("JOB_NODELIST", "node[1-3,7],rack-2.x_y"),
        ("CONSTRAINT", "[(a&b)*2|c]"),
        ("GRES", "gpu:a100:2(S:0-1),mps"),
        ("TIMELIMIT", "1-02:03:04"),
        ("MEM_PER_NODE", "4G"),
        ("DISTRIBUTION", "*:cyclic:plane=4,NoPack"),
        ("GPU_BIND", "mask_gpu:0x3*4,0xc"),
        ("CPU_BIND", "verbose,map_cpu:0,1"),
        ("JOB_NUM_NODES", "2-4"),
        ("REQ_SWITCH", "1"),
        ("WAIT4SWITCH", "12:30"),
        ("JOB_NAME", "my job +1"),
        ("TRES_PER_TASK", "cpu:2,gres/gpu:a100:1"),
        ("TRES_BIND", "gres/gpu:map:0,1"),
        ("LABELIO", "yes"),
        ("LABELIO", ""),
    ],
)
def test_plain_values(name: str, value: str) -> None:
    wanted = gather({}, {f"SCRUN_{name}": value}, {})
    assert wanted.requests == {f"SCRUN_{name}": value}
    assert wanted.because == (f"SCRUN_{name}={value} from config.json" if value else "")


@given(st.dictionaries(st.sampled_from([*TABLE]), st.text(max_size=30)))
def test_whatever_an_image_says(asked: dict[str, str]) -> None:
    try:
        wanted = gather({}, asked, {})
        arguments = salloc_arguments(wanted.requests, (24, 11))
        arguments += srun_arguments(wanted.requests, (24, 11))
    except SettingsError:
        return
    options = {TABLE[variable].option for variable in SAFE}
    for argument in arguments:
        option, _, value = argument.partition("=")
        assert option in options
        assert "/" not in value or option.startswith("--tres")
        assert value.isprintable()
        assert value.isascii()


# Staging


def fitted(process: dict[str, Any], target: Target) -> Plan:
    config = {"ociVersion": "1.0.2", "process": process}
    return fit(
        config,
        bundle="/b",
        staged="/s",
        rootfs="/b/rootfs",
        place=VOLUMES,
        target=target,
        sources={},
    )


@pytest.mark.parametrize("engine", ["slurm", "local"])
def test_requests_do_not_stay_in_the_container(engine: Any) -> None:
    env = ["A=1", "SCRUN_NTASKS=2", "SCRUN_PROLOG=/x", "SCRUN_ROOT=/r", "SCRUN_NTASKS=3", "B"]
    assert names_of_requests(env) == ["SCRUN_NTASKS", "SCRUN_PROLOG"]
    target = Target(elsewhere=engine == "slurm", uid=1, gid=1, rootless=True)
    plan = fitted({"args": ["x"], "cwd": "/", "env": env}, target)
    assert plan.config["process"]["env"] == ["A=1", "SCRUN_ROOT=/r", "B"]
    assert [note for note in plan.notes if note.startswith("process.env without")] == [
        "process.env without SCRUN_NTASKS, SCRUN_PROLOG: they are requests for the job, for "
        "scrun alone"
    ]


@pytest.mark.parametrize("process", [{}, {"env": None}, {"env": []}, {"env": ["A=1"]}])
def test_an_environment_without_requests_stays(process: dict[str, Any]) -> None:
    plan = fitted(process, Target(elsewhere=False, uid=0, gid=0, rootless=False))
    assert plan.config["process"] == process
    assert plan.notes == ()


# The engine's flags

CPUS, MEMORY = "SCRUN_CPUS_PER_TASK", "SCRUN_MEM_PER_NODE"
FLAGS = Flags(
    {CPUS: "2", MEMORY: "100M"},
    {CPUS: "--cpus, linux.resources.cpu", MEMORY: "--memory, linux.resources.memory"},
    ("a note",),
)


def test_annotations_of_slurm_are_below_those_of_scrun() -> None:
    annotations = {"slurm.time": "1", "slurm.partition": "a"}
    assert read_requests(annotations, ["SCRUN_PARTITION=b"]) == {
        "SCRUN_TIMELIMIT": "1",
        "SCRUN_PARTITION": "b",
    }
    wanted = gather({}, read_requests(annotations, []), {})
    assert wanted.requests == {"SCRUN_TIMELIMIT": "1", "SCRUN_PARTITION": "a"}
    with pytest.raises(SettingsError, match="is not accepted from an image"):
        gather({}, read_requests({"slurm.nodelist": "/etc/passwd"}, []), {})


def test_flags_are_requests() -> None:
    wanted = gather({}, {}, {"SCRUN_PARTITION": "c"}, FLAGS)
    assert wanted.requests == {"SCRUN_PARTITION": "c", CPUS: "2", MEMORY: "100M"}
    assert wanted.notes == ("a note",)
    assert wanted.because == (
        f"{CPUS}=2 from --cpus, linux.resources.cpu, "
        f"{MEMORY}=100M from --memory, linux.resources.memory"
    )


@pytest.mark.parametrize(
    "named",
    [{MEMORY: "1G"}, {"SCRUN_MEM_PER_CPU": "1G"}, {"SCRUN_MEM_PER_GPU": "1G"}, {MEMORY: ""}],
)
def test_what_is_named_stands_above_flags(named: dict[str, str]) -> None:
    for environment, asked in ((named, {}), ({}, named)):
        wanted = gather(environment, asked, {}, FLAGS)
        assert wanted.requests == {CPUS: "2", **named}
        assert f"{MEMORY}=" not in wanted.because.replace(f"{MEMORY}=1G from config.json", "")


@pytest.mark.covers("scrun requests: annotations slurm.*, the engine's flags")
def test_flags_stand_above_defaults_of_their_kind() -> None:
    defaults = {"SCRUN_MEM_PER_CPU": "1G", CPUS: "8", "SCRUN_GPUS": "1"}
    wanted = gather({}, {}, defaults, FLAGS)
    assert wanted.requests == {"SCRUN_GPUS": "1", CPUS: "2", MEMORY: "100M"}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("Requested node configuration is not available", ["MEM", "GPUS", "PART"]),
        ("Invalid generic resource (gres) specification", ["GPUS"]),
        ("Invalid partition name specified", ["PART"]),
        ("Invalid account or account/partition combination specified", ["PART"]),
        ("Job violates accounting/QOS policy (job submit limit, …)", ["MEM", "GPUS", "PART"]),
        ("Invalid qos specification", []),
        ("Unable to contact slurm controller (connect failure)", []),
        ("Zero Bytes were transmitted or received", ["MEM", "GPUS", "PART"]),
    ],
)
def test_requests_that_a_refusal_may_be_about(reason: str, expected: list[str]) -> None:
    """Others have nothing to do with it."""
    each = {
        "MEM": "SCRUN_MEM_PER_NODE=1G from --memory, linux.resources.memory",
        "GPUS": "SCRUN_GPUS=2 from config.json",
        "PART": "SCRUN_PARTITION=a, b from config.json",
    }
    assert concerned(", ".join(each.values()), reason) == ", ".join(each[one] for one in expected)
