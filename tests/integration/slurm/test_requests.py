"""SCRUN_*: every request, given to the real tools and through scrun; and who may ask for what."""

import re
from typing import Any

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.slurm.requests import TABLE as ALL
from scrun.settings.slurm.requests import JobVariable, salloc_arguments, srun_arguments
from scrun.settings.slurm.versions import parse_version
from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.site import Site
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until

on_slurm = pytest.mark.parametrize("site", ["slurm-user"], indirect=True)

# Values, and the variables, without SCRUN_, to which they make sense.
SENSIBLE: dict[str, str] = {
    "someone": "ACCOUNT",
    "30": "ACCTG_FREQ",
    "x": "BURST_BUFFER CLUSTER_CONSTRAINT NETWORK WCKEY",
    "elsewhere": "CLUSTERS",
    "[(x&y)*1|z]": "CONSTRAINT",
    "1": (
        "CORE_SPEC CPUS_PER_GPU DELAY_BOOT GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK "
        "NCORES_PER_SOCKET NSOCKETS_PER_NODE NTASKS NTASKS_PER_CORE NTASKS_PER_GPU "
        "NTASKS_PER_NODE NTASKS_PER_TRES REQ_SWITCH THREAD_SPEC THREADS_PER_CORE WAIT4SWITCH"
    ),
    "none": "CPU_BIND GPU_BIND GRES MEM_BIND MPI_TYPE PROFILE",
    "low": "CPU_FREQ_REQ GPU_FREQ",
    "2": "CPUS_PER_TASK",
    "singleton": "DEPENDENCY",
    "cyclic": "DISTRIBUTION",
    "/bin/true": "EPILOG PROLOG TASK_EPILOG TASK_PROLOG",
    "yes": "EXACT LABELIO OVERCOMMIT OVERLAP SPREAD_JOB UNBUFFEREDIO USE_MIN_NODES",
    "user": "EXCLUSIVE",
    "enforce-binding": "GRES_FLAGS",
    "nomultithread": "HINT",
    "a name": "JOB_NAME",
    "node2": "JOB_NODELIST",
    "1-2": "JOB_NUM_NODES",
    "100M": "MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE",
    "append": "OPEN_MODE",
    "test": "PARTITION",
    "level": "POWER",
    "normal": "QOS",
    "/tmp": "REMOTE_CWD WORKING_DIR",
    "nobody": "RESERVATION",
    "USR1@60": "SIGNAL",
    "info": "SLURMD_DEBUG",
    "4": "THREADS",
    "5": "TIMELIMIT",
    "gres/gpu:none": "TRES_BIND",
    "cpu:1": "TRES_PER_TASK",
}
# What Slurm says where the test cluster does not grant that: it has no GPUs, no features, no
# reservations and no accounting.
REFUSED: dict[str, str] = {
    "scrun sends jobs only to": "CLUSTERS",
    "Invalid feature specification": "CONSTRAINT",
    "Invalid generic resource": (
        "CPUS_PER_GPU GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK MEM_PER_GPU NTASKS_PER_GPU "
        "NTASKS_PER_TRES"
    ),
    "Requested reservation is invalid": "RESERVATION",
}
VALUES = {name: value for value, names in SENSIBLE.items() for name in names.split()}
REFUSALS = {name: said for said, names in REFUSED.items() for name in names.split()}
# Slurm's tools have no option for a pool: tests/integration/slurm/test_pool.py
TABLE = {variable: request for variable, request in ALL.items() if variable != "SCRUN_POOL"}
UNKNOWN = ("unrecognized option", "unknown option", "invalid option", "Usage:")


@pytest.fixture(scope="module")
def version() -> tuple[int, int]:
    return parse_version(cluster.slurm("salloc", "--version")).release


def name_of(request: JobVariable) -> str:
    return request.variable.removeprefix("SCRUN_")


def test_every_request_has_a_value() -> None:
    assert sorted(VALUES) == sorted(name_of(request) for request in TABLE.values())


# The tools


LAST = "--no-such-option"
"""A tool stops at the first option that it does not know, before it asks for a job."""


def parsed(*words: str) -> tuple[bool, str]:
    """Whether salloc or srun reads all of its options; and what it says if not."""
    done = cluster.run(*words, LAST, "true")
    said = done.stdout + done.stderr
    # what is wrong with a value is said at once
    return LAST in said or not any(words in said for words in UNKNOWN), said


def test_the_tools_know_what_the_table_says(version: tuple[int, int]) -> None:
    for request in TABLE.values():
        takes_none = request.argument != "required"
        option = request.option if takes_none else f"{request.option}={VALUES[name_of(request)]}"
        for name in ("salloc", "srun"):
            if name == "salloc" and request.variable == "SCRUN_THREADS":
                continue  # it takes it for an abbreviation of --threads-per-core
            knows, said = parsed(name, option)
            assert knows == request.accepted(name, version), said


def test_the_tools_take_what_is_made_of_a_request(version: tuple[int, int]) -> None:
    for request in TABLE.values():
        requests = {request.variable: VALUES[name_of(request)]}
        if request.variable == "SCRUN_WAIT4SWITCH":
            requests["SCRUN_REQ_SWITCH"] = "1"
        made = {"salloc": salloc_arguments, "srun": srun_arguments}
        if not request.known(version):
            for arguments_of in made.values():
                with pytest.raises(
                    SettingsError, match=f"^{request.variable}: Slurm .* has no --"
                ):
                    arguments_of(requests, version)
            continue
        assert any(arguments_of(requests, version) for arguments_of in made.values())
        for name, arguments_of in made.items():
            takes, said = parsed(name, *arguments_of(requests, version))
            assert takes, said
            assert "nvalid --" not in said


@pytest.mark.parametrize("name", ["salloc", "srun"])
def test_help_lists_nothing_that_the_table_does_not_know(
    name: Any, version: tuple[int, int]
) -> None:
    listed = set(re.findall(r"--[a-z][a-z-]*", cluster.slurm(name, "--help")))
    missing = [
        request.variable
        for request in TABLE.values()
        if request.option in listed and not request.accepted(name, version)
    ]
    assert tuple(missing) == slurm_version().only_in_help


# Through scrun


ALONE = [r for r in TABLE.values() if name_of(r) in REFUSALS or name_of(r) == "SLURMD_DEBUG"]
TOGETHER = [request for request in TABLE.values() if request not in ALONE]
BATCHES = 8
"""So many containers have all requests that the cluster grants; no two of a batch contradict."""


@pytest.mark.parametrize("number", range(BATCHES))
@on_slurm
def test_every_request_through_scrun(site: Site, number: int, version: tuple[int, int]) -> None:
    asked = [request for request in TOGETHER[number::BATCHES] if request.known(version)]
    environment = {request.variable: VALUES[name_of(request)] for request in asked}
    life = site.shell("exit 3", environment={"SCRUN_REQ_SWITCH": "1"} | environment)
    assert life.created().start().wait() == 3, life.errors()
    life.delete()


@pytest.mark.parametrize("request_", ALONE, ids=name_of)
@on_slurm
def test_what_is_not_granted(site: Site, request_: JobVariable, version: tuple[int, int]) -> None:
    refusal = REFUSALS.get(name_of(request_))
    life = site.shell("exit 3", environment={request_.variable: VALUES[name_of(request_)]})
    if not request_.known(version):
        assert unknown(request_, version) in life.refused()
    elif refusal is not None:
        assert refusal in life.refused()
    elif slurm_version().debug_is_roots:
        said = "allowed only for root"
        if site.by_shim:
            assert said in life.refused()
        else:
            assert life.created().start().wait() == 125
            assert said in life.errors()
            life.delete()
    else:
        assert life.created().start().wait() == 3
        life.delete()


@on_slurm
def test_what_this_version_does_not_know(site: Site, version: tuple[int, int]) -> None:
    for request in TABLE.values():
        if not request.known(version):
            environment = {request.variable: VALUES[name_of(request)]}
            said = site.shell("exit 3", environment=environment).refused()
            assert unknown(request, version) in said


def unknown(request: JobVariable, version: tuple[int, int]) -> str:
    release = f"{version[0]}.{version[1]:02}"
    return f"{request.variable}: Slurm {release} has no {request.option}"


@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ({}, {"NumNodes": "1", "NumTasks": "1", "Partition": "test", "Exclusive": "NO"}),
        (
            {"PARTITION": "test", "JOB_NAME": "some-name", "TIMELIMIT": "7", "ACCOUNT": "someone",
             "MEM_PER_NODE": "123M", "CPUS_PER_TASK": "3", "EXCLUSIVE": "user", "DELAY_BOOT": "3",
             "REQ_SWITCH": "1", "WAIT4SWITCH": "3", "NETWORK": "sn_single"},
            {"Partition": "test", "JobName": "some-name", "TimeLimit": "00:07:00",
             "Account": "someone", "MinMemoryNode": "123M", "CPUs/Task": "3", "NumCPUs": "3",
             "Exclusive": "USER", "DelayBoot": "00:03:00", "Switches": "1@00:03:00",
             "Network": "sn_single"},
        ),
        ({"JOB_NUM_NODES": "2"}, {"NumNodes": "2", "NumCPUs": "2"}),
        (
            {"JOB_NUM_NODES": "2", "NTASKS": "2", "TIMELIMIT": "1-2:3", "MEM_PER_CPU": "45M"},
            {"NumNodes": "2", "NumTasks": "2", "TimeLimit": "1-02:03:00", "MinMemoryCPU": "45M"},
        ),
        ({"EXCLUSIVE": "yes"}, {"Exclusive": "NODE", "NumCPUs": "64"}),
        (
            {"JOB_NODELIST": "node2", "NCORES_PER_SOCKET": "1"},
            {"NodeList": "node2", "NumNodes": "1", "ReqB:S:C:T": "0:0:1:*"},
        ),
        ({"JOB_NODELIST": "node[1-2]"}, {"NodeList": "node[1-2]", "NumNodes": "2"}),
        ({"NTASKS": "2", "NTASKS_PER_NODE": "1"}, {"NumNodes": "2", "NumTasks": "2"}),
    ],
)  # fmt: skip
@on_slurm
def test_the_job_has_what_was_asked_for(
    site: Site, requests: dict[str, str], expected: dict[str, str]
) -> None:
    environment = {f"SCRUN_{name}": value for name, value in requests.items()}
    life = site.life("true", environment=environment).created()
    job = cluster.job(life.job_id)
    # 26.05 has a field of its own for it
    job.setdefault("Exclusive", {"OK": "NO", "NO": "NODE", "USER": "USER"}[job["OverSubscribe"]])
    assert {key: job.get(key) for key in expected} == expected
    assert life.start().wait() == 0


@on_slurm
def test_a_dependency_is_waited_for(site: Site) -> None:
    first = site.life("sleep", "600").created()
    number = first.job_id
    second = site.life("true", environment={"SCRUN_DEPENDENCY": f"afterany:{number}"})
    second.wait_for("creating")
    wait_until("it has a job", lambda: "org.scrun.job_id" in second.state()["annotations"])
    job = cluster.job(second.job_id)
    assert (job["JobState"], job["Reason"]) == ("PENDING", "Dependency")
    first.kill("KILL")
    assert second.created().start().wait() == 0


# Who asks


@pytest.fixture
def with_defaults(make_site: MakeSite) -> Site:
    return make_site(
        "slurm-user", settings="idle_timeout = 20\n[slurm.defaults]\ntimelimit = 11\n"
    )


def test_sources_in_their_order(with_defaults: Site) -> None:
    site = with_defaults

    def limit(env: list[str], annotations: dict[str, str], environment: dict[str, str]) -> str:
        config = site.config("true")
        config["process"]["env"] += env
        config["annotations"] |= annotations
        life = site.life(config=config, environment=environment).created()
        found = cluster.job(life.job_id)["TimeLimit"]
        life.delete()
        return found

    env, annotations = ["SCRUN_TIMELIMIT=12"], {"SCRUN_TIMELIMIT": "13"}
    caller = {"SCRUN_TIMELIMIT": "14"}
    assert limit([], {}, {}) == "00:11:00"
    assert limit(env, {}, {}) == "00:12:00"
    assert limit(env, annotations, {}) == "00:13:00"
    assert limit(env, annotations, caller) == "00:14:00"
    # nothing instead of the default: the partition's own limit
    assert limit([], {}, {"SCRUN_TIMELIMIT": ""}) == "01:00:00"


def asking(site: Site, how: str, requests: dict[str, str], *args: str) -> dict[str, Any]:
    config = site.config(*args)
    if how == "annotations":
        config["annotations"] |= requests
    else:
        config["process"]["env"] += [f"{key}={value}" for key, value in requests.items()]
    return config


by_config = pytest.mark.parametrize("how", ["annotations", "process.env"])


@by_config
@on_slurm
def test_config_json_asks_for_two_nodes(site: Site, how: str) -> None:
    requests = {"SCRUN_JOB_NUM_NODES": "2", "SCRUN_NTASKS": "2", "SCRUN_LABELIO": "yes"}
    config = asking(site, how, requests, "env")
    life = site.life(config=config).created()
    assert cluster.job(life.job_id)["NumNodes"] == "2"
    assert life.start().wait() == 0
    lines = life.output().splitlines()
    assert {line[:3] for line in lines} == {"0: ", "1: "}
    assert not [line for line in lines if "SCRUN_" in line]


@pytest.mark.covers("security requests for the job in annotations and variables")
@pytest.mark.covers("security config.json, annotations and process.env")
@by_config
@on_slurm
def test_an_image_cannot_ask_for_it(site: Site, how: str) -> None:
    """Nothing of it reaches Slurm, and whoever typed it is told."""
    unsafe = [variable for variable, request in ALL.items() if not request.safe]
    for variable in unsafe:
        config = asking(site, how, {variable: "/no/such/thing"}, "env")
        said = site.life(config=config).refused()
        assert f"config.json: {variable}: an image could have set it: " in said
    # what the environment of create says counts, and an image is taken back with an empty value
    life = site.life(config=asking(site, how, dict.fromkeys(unsafe, ""), "env")).created().start()
    assert life.wait() == 0
    assert "SCRUN_" not in life.output()


@pytest.mark.parametrize(
    "name", ["PROLOG", nightly("EPILOG"), nightly("TASK_PROLOG"), "TASK_EPILOG"]
)
@on_slurm
def test_programs_run_for_the_caller_and_not_for_an_image(site: Site, name: str) -> None:
    places = site.base / "b" / f"hook-{name}"
    places.mkdir()
    site.user.give(places)
    program, mark = places / "program", places / "mark"
    program.write_text(f"#!/bin/sh\necho ran >>{mark}\n")
    program.chmod(0o755)
    requests = {f"SCRUN_{name}": str(program)}
    for how in ("annotations", "process.env"):
        said = site.life(config=asking(site, how, requests, "true")).refused()
        assert f"SCRUN_{name}: an image could have set it" in said
    site.settle()
    assert not mark.exists()
    assert site.life("true", environment=requests).created().start().wait() == 0
    wait_until("the program ran", mark.exists)


@pytest.mark.covers("security config.json, annotations and process.env")
@by_config
@on_slurm
def test_an_image_cannot_have_a_file_read(site: Site, how: str) -> None:
    """salloc takes a node list with a slash for the name of a file, and reads it."""
    hosts = site.base / "b" / "hosts"
    hosts.write_text("node2\n")
    site.user.give(hosts)
    requests = {"SCRUN_JOB_NODELIST": str(hosts)}
    said = site.life(config=asking(site, how, requests, "true")).refused()
    assert f"SCRUN_JOB_NODELIST={hosts}: is not accepted from an image" in said
    life = site.life("true", environment=requests).created()
    assert cluster.job(life.job_id)["NodeList"] == "node2"


@pytest.mark.oci_conf
@pytest.mark.parametrize(
    ("launch", "reason", "remedy"),
    [
        ("auto", "the commands of the oci.conf do not pass its descriptor on", "leave it out"),
        ("container", "srun --container of Slurm 2", 'set launch = "shim" in the section [slurm]'),
    ],
)
def test_mpi_that_reaches_no_container(
    make_site: MakeSite, launch: str, reason: str, remedy: str
) -> None:
    """Measured: see docs/howto/mpi.md. By a shim that calls the runtime it does (`test_ranks`)."""
    site = make_site("slurm-user", settings=f'[slurm]\nlaunch = "{launch}"\n')
    said = site.life("true", environment={"SCRUN_MPI_TYPE": "pmi2"}).refused()
    assert f"SCRUN_MPI_TYPE=pmi2: cannot work: {reason}" in said
    assert remedy in said
    life = site.life("true", environment={"SCRUN_MPI_TYPE": "none"}).created().start()
    assert life.wait() == 0


@on_slurm
def test_a_question_is_no_request(site: Site) -> None:
    said = site.life("true", environment={"SCRUN_HINT": "help"}).refused()
    assert "SCRUN_HINT=help: asks for help" in said


@pytest.mark.parametrize("site", ["local-user"], indirect=True)
def test_this_machine_needs_no_requests(site: Site) -> None:
    requests = {"SCRUN_JOB_NUM_NODES": "2", "SCRUN_PROLOG": "/x", "SCRUN_TRES_BIND": "/x"}
    life = site.life(config=asking(site, "process.env", requests, "env")).created().start()
    assert life.wait() == 0
    assert "SCRUN_" not in life.output()
