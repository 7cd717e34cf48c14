import pytest

from scrun.core.errors import SettingsError
from scrun.settings.slurm.requests import (
    TABLE,
    check_mpi,
    from_environment,
    salloc_arguments,
    srun_arguments,
)

OLD, NEW, NEWEST = (22, 5), (24, 11), (26, 5)

# srun(1): what only srun has
SRUN_ONLY = """
    CPU_BIND EPILOG EXACT LABELIO MPI_TYPE OPEN_MODE OVERLAP PROLOG SLURMD_DEBUG TASK_EPILOG
    TASK_PROLOG THREADS UNBUFFEREDIO
"""


@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: requests")
def test_the_manual_s_variables() -> None:
    assert len(TABLE) == 70 + 1  # and SCRUN_POOL
    assert list(TABLE) == [request.variable for request in TABLE.values()]
    assert all(variable.startswith("SCRUN_") for variable in TABLE)


@pytest.mark.parametrize("version", [OLD, NEW, NEWEST])
def test_who_accepts(version: tuple[int, int]) -> None:
    gone = {"TRES_BIND", "TRES_PER_TASK"} if version == OLD else {"POWER"}
    for variable, request in TABLE.items():
        name = variable.removeprefix("SCRUN_")
        ours = gone | {"POOL"}
        assert request.accepted("srun", version) == (name not in ours)
        assert request.accepted("salloc", version) == (name not in ours | set(SRUN_ONLY.split()))


@pytest.mark.covers("scrun(1) INPUT ENVIRONMENT VARIABLES: requests")
@pytest.mark.parametrize(
    ("requests", "salloc", "srun"),
    [
        ({}, [], []),
        ({"SCRUN_PARTITION": "x y"}, ["--partition=x y"], []),
        ({"SCRUN_PARTITION": ""}, [], []),
        ({"SCRUN_JOB_NUM_NODES": "2"}, ["--nodes=2"], ["--nodes=2"]),
        ({"SCRUN_LABELIO": ""}, [], ["--label"]),
        ({"SCRUN_LABELIO": "Yes"}, [], ["--label"]),
        ({"SCRUN_LABELIO": "0"}, [], []),
        ({"SCRUN_EXCLUSIVE": ""}, ["--exclusive"], []),
        ({"SCRUN_EXCLUSIVE": "user"}, ["--exclusive=user"], []),
        ({"SCRUN_EXCLUSIVE": "no"}, [], []),
        ({"SCRUN_REQ_SWITCH": "1"}, ["--switches=1"], []),
        ({"SCRUN_WAIT4SWITCH": "5", "SCRUN_REQ_SWITCH": "1"}, ["--switches=1@5"], []),
        ({"SCRUN_WAIT4SWITCH": "5"}, [], []),
        ({"SCRUN_JOB_NODELIST": "n[1-2]"}, ["--nodelist=n[1-2]"], []),
        ({"SCRUN_WCKEY": "--uid=0"}, ["--wckey=--uid=0"], []),
    ],
)
def test_arguments(requests: dict[str, str], salloc: list[str], srun: list[str]) -> None:
    assert salloc_arguments(requests, OLD) == salloc
    assert srun_arguments(requests, OLD) == srun


def test_every_request_goes_somewhere() -> None:
    for variable, request in TABLE.items():
        value = "1"
        requests = {"SCRUN_REQ_SWITCH": "1", variable: value}
        version = OLD if request.known(OLD) else NEW
        arguments = salloc_arguments(requests, version) + srun_arguments(requests, version)
        found = any(argument.split("=")[0] == request.option for argument in arguments)
        assert found is (request.scope != "scrun")


@pytest.mark.parametrize(
    ("requests", "version", "message"),
    [
        ({"SCRUN_TRES_BIND": "x"}, OLD, "SCRUN_TRES_BIND: Slurm 22.05 has no --tres-bind"),
        ({"SCRUN_POWER": "level"}, NEW, "SCRUN_POWER: Slurm 24.11 has no --power"),
        ({"SCRUN_OVERCOMMIT": "maybe"}, OLD, "SCRUN_OVERCOMMIT=maybe: yes or no"),
        ({"SCRUN_PARTITON": "x"}, OLD, "SCRUN_PARTITON: unknown request"),
        ({"SCRUN_JOB_NAME": "a\nb"}, OLD, r"SCRUN_JOB_NAME='a\\nb': has a control character"),
        ({"SCRUN_WCKEY": "\x1b[1m"}, OLD, "SCRUN_WCKEY=.*: has a control character"),
        ({"SCRUN_HINT": "help"}, OLD, "SCRUN_HINT=help: asks for help .* call srun --hint=help"),
        ({"SCRUN_CPU_BIND": "verbose,HELP"}, OLD, "SCRUN_CPU_BIND=verbose,HELP: asks for help"),
        ({"SCRUN_MPI_TYPE": "list"}, OLD, "call srun --mpi=list"),
    ],
)
def test_refused(requests: dict[str, str], version: tuple[int, int], message: str) -> None:
    for arguments in (salloc_arguments, srun_arguments):
        with pytest.raises(SettingsError, match=message):
            arguments(requests, version)


@pytest.mark.parametrize(
    ("kind", "version", "message"),
    [
        ("pmi2", OLD, "SCRUN_MPI_TYPE=pmi2: cannot work: srun --container of Slurm 22.05 passes"),
        ("pmix", OLD, "SCRUN_MPI_TYPE=pmix: cannot work: srun --container of Slurm 22.05 passes"),
        ("PMI2", NEW, 'of Slurm 24.11 does not pass its descriptor on: set launch = "shim" in'),
    ],
)
def test_mpi_that_srun_passes_to_no_container(
    kind: str, version: tuple[int, int], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_mpi({"SCRUN_MPI_TYPE": kind}, version)
    check_mpi({"SCRUN_MPI_TYPE": "None"}, version)
    check_mpi({"SCRUN_MPI_TYPE": "pmix"}, NEW)
    check_mpi({}, version)


def test_every_version_s_unknown_variables_are_named() -> None:
    for version in (OLD, NEW, NEWEST):
        for variable, request in TABLE.items():
            value = "1"
            requests = {variable: value, "SCRUN_REQ_SWITCH": "1"}
            if request.known(version):
                salloc_arguments(requests, version)
                continue
            release = f"{version[0]}.{version[1]:02}"
            message = f"^{variable}: Slurm {release} has no {request.option}$"
            with pytest.raises(SettingsError, match=message):
                salloc_arguments(requests, version)


def test_a_name_that_is_a_question_elsewhere_is_a_name() -> None:
    assert salloc_arguments({"SCRUN_JOB_NAME": "help"}, OLD) == ["--job-name=help"]


def test_from_environment() -> None:
    env = {"SCRUN_NTASKS": "2", "SCRUN_ROOT": "/x", "PATH": "/bin", "SLURM_NTASKS": "3"}
    assert from_environment(env) == {"SCRUN_NTASKS": "2"}


# Who names programs, files, plugins, other jobs, who pays; or changes how nodes and Slurm work.
UNSAFE = """
    ACCOUNT ACCTG_FREQ BURST_BUFFER CLUSTER_CONSTRAINT CLUSTERS CORE_SPEC CPU_FREQ_REQ DEPENDENCY
    EPILOG GPU_FREQ MPI_TYPE NETWORK OPEN_MODE POWER PROFILE PROLOG QOS REMOTE_CWD RESERVATION
    SIGNAL SLURMD_DEBUG TASK_EPILOG TASK_PROLOG THREADS THREAD_SPEC WCKEY WORKING_DIR
"""


def test_what_an_image_may_ask_for() -> None:
    unsafe = {variable for variable, request in TABLE.items() if not request.safe}
    assert unsafe == {f"SCRUN_{name}" for name in UNSAFE.split()}
