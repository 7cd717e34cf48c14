"""The SCRUN_* variables that request properties of a job, and the options that they become.

They are those of scrun(1), "INPUT ENVIRONMENT VARIABLES", and srun(1). Which tool has an option
was read from the sources of 22.05, 24.11 and 26.05, and tried with salloc and srun 22.05.8.

For the sources of requests and their precedence see `scrun.settings.slurm.request_sources`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from scrun.core.errors import SettingsError

Release = tuple[int, int]


class JobVariable(msgspec.Struct, frozen=True):
    """A variable that requests something.

    Attributes:
        option: The option that it becomes.
        argument: Whether the option has an argument. `none` and `optional` ones are switched
            on by an empty value, `yes`, `true` or `1`, and off by `no`, `false` or `0`.
        scope: What it describes: `job` the job (salloc), `step` the container's step (srun;
            salloc does not have the option), `both` both; `scrun` neither: it is for scrun itself.
        safe: Whether it may come from an image: it only requests amounts, kinds and arrangements
            of resources for the container's own job, within the limits of its user. A variable
            is not safe if it names a program, a file, a plugin, another job or an account, or
            changes how a node or Slurm itself works (`request_sources` also checks the values).
        since: The first version that has the option.
        until: The first version that no longer has it.
    """

    variable: str
    option: str
    argument: Literal["none", "optional", "required"] = "required"
    scope: Literal["job", "step", "both", "scrun"] = "both"
    safe: bool = True
    since: Release = (22, 5)
    until: Release | None = None

    def known(self, version: Release) -> bool:
        return self.since <= version and (self.until is None or version < self.until)

    def accepted(self, tool: Literal["salloc", "srun"], version: Release) -> bool:
        whose = ("job", "both") if tool == "salloc" else ("job", "step", "both")
        return self.known(version) and self.scope in whose


_REQUESTS = (
    JobVariable("SCRUN_ACCOUNT", "--account", scope="job", safe=False),
    JobVariable("SCRUN_ACCTG_FREQ", "--acctg-freq", safe=False),
    JobVariable("SCRUN_BURST_BUFFER", "--bb", scope="job", safe=False),
    JobVariable("SCRUN_CLUSTER_CONSTRAINT", "--cluster-constraint", scope="job", safe=False),
    JobVariable("SCRUN_CLUSTERS", "--clusters", scope="job", safe=False),
    JobVariable("SCRUN_CONSTRAINT", "--constraint", scope="job"),
    # cores that the node reserves for its daemons, if the site lets users change that
    JobVariable("SCRUN_CORE_SPEC", "--core-spec", scope="job", safe=False),
    JobVariable("SCRUN_CPU_BIND", "--cpu-bind", scope="step"),
    # not a resource; the frequency of a core affects its neighbours
    JobVariable("SCRUN_CPU_FREQ_REQ", "--cpu-freq", safe=False),
    JobVariable("SCRUN_CPUS_PER_GPU", "--cpus-per-gpu"),
    # srun no longer reads it from the job's environment (RELEASE_NOTES 22.05)
    JobVariable("SCRUN_CPUS_PER_TASK", "--cpus-per-task"),
    JobVariable("SCRUN_DELAY_BOOT", "--delay-boot", scope="job"),
    JobVariable("SCRUN_DEPENDENCY", "--dependency", scope="job", safe=False),
    JobVariable("SCRUN_DISTRIBUTION", "--distribution"),
    JobVariable("SCRUN_EPILOG", "--epilog", scope="step", safe=False),
    JobVariable("SCRUN_EXACT", "--exact", "none", scope="step"),
    # for a step it means something else: CPUs of the job that no other step uses
    JobVariable("SCRUN_EXCLUSIVE", "--exclusive", "optional", scope="job"),
    JobVariable("SCRUN_GPU_BIND", "--gpu-bind"),
    JobVariable("SCRUN_GPU_FREQ", "--gpu-freq", safe=False),
    JobVariable("SCRUN_GPUS", "--gpus"),
    JobVariable("SCRUN_GPUS_PER_NODE", "--gpus-per-node"),
    JobVariable("SCRUN_GPUS_PER_SOCKET", "--gpus-per-socket"),
    JobVariable("SCRUN_GPUS_PER_TASK", "--gpus-per-task"),
    JobVariable("SCRUN_GRES", "--gres"),
    JobVariable("SCRUN_GRES_FLAGS", "--gres-flags", scope="job"),
    JobVariable("SCRUN_HINT", "--hint"),
    JobVariable("SCRUN_JOB_NAME", "--job-name"),
    # srun reads its variable of this name only inside a job; here it requests nodes
    JobVariable("SCRUN_JOB_NODELIST", "--nodelist", scope="job"),
    JobVariable("SCRUN_JOB_NUM_NODES", "--nodes"),
    JobVariable("SCRUN_LABELIO", "--label", "none", scope="step"),
    JobVariable("SCRUN_MEM_BIND", "--mem-bind"),
    JobVariable("SCRUN_MEM_PER_CPU", "--mem-per-cpu"),
    JobVariable("SCRUN_MEM_PER_GPU", "--mem-per-gpu"),
    JobVariable("SCRUN_MEM_PER_NODE", "--mem"),
    JobVariable("SCRUN_MPI_TYPE", "--mpi", scope="step", safe=False),
    JobVariable("SCRUN_NCORES_PER_SOCKET", "--cores-per-socket"),
    JobVariable("SCRUN_NETWORK", "--network", safe=False),
    JobVariable("SCRUN_NSOCKETS_PER_NODE", "--sockets-per-node"),
    JobVariable("SCRUN_NTASKS", "--ntasks"),
    JobVariable("SCRUN_NTASKS_PER_CORE", "--ntasks-per-core"),
    JobVariable("SCRUN_NTASKS_PER_GPU", "--ntasks-per-gpu"),
    JobVariable("SCRUN_NTASKS_PER_NODE", "--ntasks-per-node"),
    JobVariable("SCRUN_NTASKS_PER_TRES", "--ntasks-per-tres"),
    JobVariable("SCRUN_OPEN_MODE", "--open-mode", scope="step", safe=False),
    JobVariable("SCRUN_OVERCOMMIT", "--overcommit", "none"),
    JobVariable("SCRUN_OVERLAP", "--overlap", "optional", scope="step"),
    JobVariable("SCRUN_PARTITION", "--partition", scope="job"),
    JobVariable("SCRUN_POOL", "--pool", scope="scrun"),
    # measured: in 22.05, not in 24.11
    JobVariable("SCRUN_POWER", "--power", scope="job", safe=False, until=(24, 11)),
    JobVariable("SCRUN_PROFILE", "--profile", safe=False),
    JobVariable("SCRUN_PROLOG", "--prolog", scope="step", safe=False),
    JobVariable("SCRUN_QOS", "--qos", scope="job", safe=False),
    JobVariable("SCRUN_REMOTE_CWD", "--chdir", safe=False),
    JobVariable("SCRUN_REQ_SWITCH", "--switches", scope="job"),
    JobVariable("SCRUN_RESERVATION", "--reservation", scope="job", safe=False),
    JobVariable("SCRUN_SIGNAL", "--signal", scope="job", safe=False),
    JobVariable("SCRUN_SLURMD_DEBUG", "--slurmd-debug", scope="step", safe=False),
    JobVariable("SCRUN_SPREAD_JOB", "--spread-job", "none", scope="job"),
    JobVariable("SCRUN_TASK_EPILOG", "--task-epilog", scope="step", safe=False),
    JobVariable("SCRUN_TASK_PROLOG", "--task-prolog", scope="step", safe=False),
    JobVariable("SCRUN_THREAD_SPEC", "--thread-spec", scope="job", safe=False),
    # threads of srun itself, on the submit host
    JobVariable("SCRUN_THREADS", "--threads", scope="step", safe=False),
    JobVariable("SCRUN_THREADS_PER_CORE", "--threads-per-core"),
    JobVariable("SCRUN_TIMELIMIT", "--time", scope="job"),
    # NEWS 23.02: both came with --tres-per-task
    JobVariable("SCRUN_TRES_BIND", "--tres-bind", since=(23, 2)),
    JobVariable("SCRUN_TRES_PER_TASK", "--tres-per-task", since=(23, 2)),
    JobVariable("SCRUN_UNBUFFEREDIO", "--unbuffered", "none", scope="step"),
    JobVariable("SCRUN_USE_MIN_NODES", "--use-min-nodes", "none", scope="job"),
    # part of the argument of SCRUN_REQ_SWITCH's option; ignored without that
    JobVariable("SCRUN_WAIT4SWITCH", "--switches", scope="job"),
    JobVariable("SCRUN_WCKEY", "--wckey", scope="job", safe=False),
    JobVariable("SCRUN_WORKING_DIR", "--chdir", safe=False),
)

TABLE: Mapping[str, JobVariable] = {request.variable: request for request in _REQUESTS}
"""All requests, by variable."""

KEYS = [variable.removeprefix("SCRUN_").lower() for variable in TABLE]
"""The variables as scrun.toml and annotations spell them."""

# salloc and srun answer these on standard output and exit successfully
_QUESTIONS = {
    "SCRUN_CPU_BIND": "help",
    "SCRUN_GRES": "help",
    "SCRUN_HINT": "help",
    "SCRUN_MEM_BIND": "help",
    "SCRUN_MPI_TYPE": "list",
}
_REWORKED: Release = (23, 2)  # when Slurm's containers were reworked
_CONTROL = re.compile(r"[\0-\x1f\x7f]")

_ON = ("", "1", "yes", "true", "on", "y", "t")
_OFF = ("0", "no", "false", "off", "n", "f")


def from_environment(env: Mapping[str, str]) -> dict[str, str]:
    return {variable: env[variable] for variable in TABLE if variable in env}


def salloc_arguments(requests: Mapping[str, str], version: Release) -> list[str]:
    """Make the options of salloc that ask for the job, in the order of the table.

    An empty value of an option that needs one is ignored. SettingsError for a variable that is
    unknown, perhaps to this version, or has an invalid value.
    """
    return list(_arguments(requests, version, ("job", "both")))


def srun_arguments(requests: Mapping[str, str], version: Release) -> list[str]:
    """Make the options of srun that describe the step within the job; see `salloc_arguments`."""
    return list(_arguments(requests, version, ("step", "both")))


def _arguments(
    requests: Mapping[str, str], version: Release, scopes: tuple[str, ...]
) -> Iterator[str]:
    for variable in requests:
        if variable not in TABLE:
            raise SettingsError(f"{variable}: unknown request")
    for variable, request in TABLE.items():
        value = requests.get(variable)
        if value is None or (request.argument == "required" and not value):
            continue
        if not request.known(version):
            release = f"{version[0]}.{version[1]:02}"
            raise SettingsError(f"{variable}: Slurm {release} has no {request.option}")
        _check_value(variable, value)
        if request.scope not in scopes or variable == "SCRUN_WAIT4SWITCH":
            continue
        if variable == "SCRUN_REQ_SWITCH" and requests.get("SCRUN_WAIT4SWITCH"):
            value += "@" + requests["SCRUN_WAIT4SWITCH"]
        word = value.lower()
        if request.argument == "required" or (
            request.argument == "optional" and word not in (*_ON, *_OFF)
        ):
            yield f"{request.option}={value}"
        elif word in _ON:
            yield request.option
        elif word not in _OFF:
            raise SettingsError(f"{variable}={value}: yes or no expected")


def _check_value(variable: str, value: str) -> None:
    """Refuse a value that makes a tool do something other than request a job.

    A line break could forge a line among srun's messages, which scrun parses (`srun -v` repeats
    the options).
    """
    if _CONTROL.search(value):
        raise SettingsError(f"{variable}={value!r}: has a control character: remove it")
    question = _QUESTIONS.get(variable)
    if question and question in value.lower().split(","):
        option = TABLE[variable].option
        raise SettingsError(
            f"{variable}={value}: asks for help instead of a job: call srun {option}={question}"
        )


def check_mpi(requests: Mapping[str, str], version: Release, because: str = "") -> None:
    """Refuse a kind of MPI that `srun --container` does not pass on (docs/howto/mpi.md).

    Measured: 22.05 passes on neither variables nor descriptors. 24.11 passes on the variables, so
    a container in the node's network can reach pmix; the descriptor that PMI_FD names is closed.

    `because` is why no shim can do it; without it a shim can.

    Raises:
        SettingsError: It cannot work.
    """
    value = requests.get("SCRUN_MPI_TYPE", "")
    known = value.lower()
    release = f"Slurm {version[0]}.{version[1]:02}"
    if known in ("", "none"):
        return
    if version < _REWORKED:
        why = f"srun --container of {release} passes nothing of it on"
    elif known == "pmi2":
        why = f"srun --container of {release} does not pass its descriptor on"
    else:
        return
    shim = 'set launch = "shim" in the section [slurm] of scrun.toml, or '
    raise SettingsError(
        f"SCRUN_MPI_TYPE={value}: cannot work: {because + '; ' if because else ''}{why}: "
        f"{'' if because else shim}leave it out and start the ranks with mpirun in the container"
    )
