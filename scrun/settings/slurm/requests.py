"""The SCRUN_* variables with which a job is asked for, and the options that they become.

After scrun(1), "INPUT ENVIRONMENT VARIABLES", and srun(1). Which tool has an option was read
from the sources of 22.05, 24.11 and 26.05, and every one was given to salloc and srun 22.05.8.

Where requests come from, and which source counts more, is in
`scrun.settings.slurm.request_sources`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from scrun.core.errors import SettingsError

Release = tuple[int, int]


class JobVariable(msgspec.Struct, frozen=True):
    """A variable.

    Attributes:
        variable: Its name.
        option: The option that it becomes.
        argument: Whether the option has an argument. `none` and `optional` ones are switched
            on by an empty value, `yes`, `true` or `1`, and off by `no`, `false` or `0`.
        scope: Who needs it: `job` shapes the job (salloc), `step` the container's step (srun,
            and salloc does not have it), `both` is for both.
        safe: Whether it may come from an image: it only says how much, of what kind and in which
            arrangement the container's own job gets, within what its user may have anyway. What
            names a program, a file, a plugin, another job or who pays does not; nor what changes
            how a node is run or how Slurm itself works (see `request_sources`, which looks at
            the values too).
        since: The first version that has the option.
        until: The first version that does not have it any more.
    """

    variable: str
    option: str
    argument: Literal["none", "optional", "required"] = "required"
    scope: Literal["job", "step", "both"] = "both"
    safe: bool = True
    since: Release = (22, 5)
    until: Release | None = None

    def known(self, version: Release) -> bool:
        """Whether a version has the option."""
        return self.since <= version and (self.until is None or version < self.until)

    def accepted(self, tool: Literal["salloc", "srun"], version: Release) -> bool:
        """Whether a tool of a version has the option."""
        return self.known(version) and (tool == "srun" or self.scope != "step")


_REQUESTS = (
    JobVariable("SCRUN_ACCOUNT", "--account", scope="job", safe=False),
    JobVariable("SCRUN_ACCTG_FREQ", "--acctg-freq", safe=False),
    JobVariable("SCRUN_BURST_BUFFER", "--bb", scope="job", safe=False),
    JobVariable("SCRUN_CLUSTER_CONSTRAINT", "--cluster-constraint", scope="job", safe=False),
    JobVariable("SCRUN_CLUSTERS", "--clusters", scope="job", safe=False),
    JobVariable("SCRUN_CONSTRAINT", "--constraint", scope="job"),
    # cores that the node keeps for its own daemons, where the site lets users change that
    JobVariable("SCRUN_CORE_SPEC", "--core-spec", scope="job", safe=False),
    JobVariable("SCRUN_CPU_BIND", "--cpu-bind", scope="step"),
    # neither is a resource; a core's frequency is its neighbours', too
    JobVariable("SCRUN_CPU_FREQ_REQ", "--cpu-freq", safe=False),
    JobVariable("SCRUN_CPUS_PER_GPU", "--cpus-per-gpu"),
    # srun no longer takes it over from the job's environment (RELEASE_NOTES 22.05)
    JobVariable("SCRUN_CPUS_PER_TASK", "--cpus-per-task"),
    JobVariable("SCRUN_DELAY_BOOT", "--delay-boot", scope="job"),
    JobVariable("SCRUN_DEPENDENCY", "--dependency", scope="job", safe=False),
    JobVariable("SCRUN_DISTRIBUTION", "--distribution"),
    JobVariable("SCRUN_EPILOG", "--epilog", scope="step", safe=False),
    JobVariable("SCRUN_EXACT", "--exact", "none", scope="step"),
    # for a step it means something else: CPUs of its own among the job's
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
    # srun reads the variable of this name only inside a job; the nodes to ask for are meant
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
    # of srun itself, on the submit host
    JobVariable("SCRUN_THREADS", "--threads", scope="step", safe=False),
    JobVariable("SCRUN_THREADS_PER_CORE", "--threads-per-core"),
    JobVariable("SCRUN_TIMELIMIT", "--time", scope="job"),
    # NEWS 23.02: both came with --tres-per-task
    JobVariable("SCRUN_TRES_BIND", "--tres-bind", since=(23, 2)),
    JobVariable("SCRUN_TRES_PER_TASK", "--tres-per-task", since=(23, 2)),
    JobVariable("SCRUN_UNBUFFEREDIO", "--unbuffered", "none", scope="step"),
    JobVariable("SCRUN_USE_MIN_NODES", "--use-min-nodes", "none", scope="job"),
    # a part of the argument of SCRUN_REQ_SWITCH's option; nothing without it
    JobVariable("SCRUN_WAIT4SWITCH", "--switches", scope="job"),
    JobVariable("SCRUN_WCKEY", "--wckey", scope="job", safe=False),
    JobVariable("SCRUN_WORKING_DIR", "--chdir", safe=False),
)

TABLE: Mapping[str, JobVariable] = {request.variable: request for request in _REQUESTS}
"""All requests, by variable."""

# salloc and srun answer these on their standard output, and end with success
_QUESTIONS = {
    "SCRUN_CPU_BIND": "help",
    "SCRUN_GRES": "help",
    "SCRUN_HINT": "help",
    "SCRUN_MEM_BIND": "help",
    "SCRUN_MPI_TYPE": "list",
}
_REWORKED: Release = (23, 2)  # when Slurm's containers were
_CONTROL = re.compile(r"[\0-\x1f\x7f]")

_ON = ("", "1", "yes", "true", "on", "y", "t")
_OFF = ("0", "no", "false", "off", "n", "f")


def from_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Pick the requests out of an environment."""
    return {variable: env[variable] for variable in TABLE if variable in env}


def salloc_arguments(requests: Mapping[str, str], version: Release) -> list[str]:
    """Make the options of salloc that ask for the job, in the order of the table.

    Args:
        requests: Values by variable. An empty one that needs a value is none.
        version: Slurm's: (22, 5).

    Raises:
        SettingsError: The version does not know a variable; nobody knows it; it is for a switch
            and neither says on nor off; or its value is none that could be meant.
    """
    return list(_arguments(requests, version, ("job", "both")))


def srun_arguments(requests: Mapping[str, str], version: Release) -> list[str]:
    """Make the options of srun that shape the step within the job.

    Args:
        requests: As for `salloc_arguments`, which takes the others.
        version: Slurm's: (22, 5).

    Raises:
        SettingsError: As `salloc_arguments`.
    """
    return list(_arguments(requests, version, ("step", "both")))


def _arguments(
    requests: Mapping[str, str], version: Release, scopes: tuple[str, ...]
) -> Iterator[str]:
    for variable in requests:
        if variable not in TABLE:
            raise SettingsError(f"{variable}: is no request that scrun knows")
    for variable, request in TABLE.items():
        value = requests.get(variable)
        if value is None or (request.argument == "required" and not value):
            continue
        if not request.known(version):
            release = f"{version[0]}.{version[1]:02}"
            raise SettingsError(f"{variable}: Slurm {release} has no {request.option}")
        _check_value(variable, value)
        if variable == "SCRUN_MPI_TYPE":
            _check_mpi(value, version)
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
    """Refuse what makes a tool do something else than ask for a job.

    A line break would forge lines of srun's messages, which scrun reads (`srun -v` repeats the
    options).
    """
    if _CONTROL.search(value):
        raise SettingsError(f"{variable}={value!r}: has a control character: leave it out")
    question = _QUESTIONS.get(variable)
    if question and question in value.lower().split(","):
        option = TABLE[variable].option
        raise SettingsError(
            f"{variable}={value}: is a question, not a request: ask srun {option}={question}"
        )


def _check_mpi(value: str, version: Release) -> None:
    """Refuse what Slurm prepares for the tasks, and no container of its gets (docs/howto/mpi.md).

    Measured: 22.05 hands on neither variables nor descriptors. 24.11 hands on the variables, so
    pmix can be reached where the container has the node's network; PMI_FD names a descriptor that
    is closed there.
    """
    known = value.lower()
    if known in ("", "none"):
        return
    release = f"{version[0]}.{version[1]:02}"
    if version < _REWORKED:
        why = f"Slurm {release} hands nothing of it on to a container"
    elif known == "pmi2":
        why = f"Slurm {release} hands its descriptor on to no container"
    else:
        return
    raise SettingsError(
        f"SCRUN_MPI_TYPE={value}: cannot work: {why}: leave it out, and start the ranks with "
        "mpirun in the container"
    )
