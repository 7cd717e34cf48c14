"""Where scrun is called: in a job or not, and in which of its steps.

The environment alone says which job containers go into, as with srun. But variables are inherited
by what has left the step, or has never been in it (ssh, cron, a daemon), so that this process is
in a step counts only if the kernel says so: by its control group, or, where Slurm makes none, by a
slurmstepd above it, whose command line names the step.

This is for `create`, so it imports built-in modules only.
"""

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

_GENERATIONS = 100
_STEPD = b"slurmstepd"
_OF_A_JOB = ("SLURM_", "SRUN_CPUS_PER_TASK")
_FIRST = "_HET_GROUP_0"

OF_TASK = (
    b"SLURM", b"PMI", b"CUDA_VISIBLE_DEVICES", b"GPU_DEVICE_ORDINAL", b"ROCR_VISIBLE_DEVICES",
    b"ZE_AFFINITY_MASK",
)  # fmt: skip
"""Begin the names of the variables with which Slurm tells a task what it is and has."""


class Place:
    """An answer.

    Attributes:
        job: The job that containers go into; "" if each gets its own.
        step: The step that this process is in, and ends with: `7.0`, `7.batch`, `7.extern`,
            `7.interactive`; "" on a login node.
        task: The number of the task of srun's that this process belongs to, and containers with
            it; "" in a job's script, and in a container there.
    """

    def __init__(self, job: str = "", step: str = "", task: str = "") -> None:
        self.job, self.step, self.task = job, step, task

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self._all() == other._all()

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return f"Place{self._all()!r}"

    def _all(self) -> "tuple[str, str, str]":
        return self.job, self.step, self.task

    @property
    def name(self) -> str:
        """What ends with it: the step, and the task if there is one; "" on a login node."""
        return f"{self.step}.{self.task}" if self.task else self.step


def here(more: "Mapping[bytes, bytes] | None" = None) -> Place:
    """Return where this process is; `more` has more of its variables."""
    environment = {}
    for name, value in {**posix.environ, **(more or {})}.items():
        if name.startswith(b"SLURM_"):
            environment[name.decode(errors="replace")] = value.decode(errors="replace")
    return place_of("self", environment)


def is_of_task(name: bytes) -> bool:
    """Tell whether Slurm sets a variable for each task. Pure."""
    return name.startswith(OF_TASK[:2]) or name in OF_TASK[2:]


def job_of(environment: "Mapping[str, str]") -> str:
    """Return the job that containers go into; "" if each gets its own. Pure."""
    return environment.get("SLURM_JOB_ID", "")


def job_variables(environment: "Mapping[str, str]") -> "dict[str, str]":
    """Return what describes the job that containers go into. Pure.

    A heterogeneous job has most of it once for each component, by other names. As srun does,
    containers go into the first one.
    """
    found, of_the_first = {}, {}
    for name, value in environment.items():
        if name.startswith(_OF_A_JOB):
            found[name] = value
            if name.endswith(_FIRST):
                of_the_first[name[: -len(_FIRST)]] = value
    return {**found, **of_the_first}


def place_of(pid: "int | str", environment: "Mapping[str, str]") -> Place:
    """Return where a process with these variables is; its number may be `self`."""
    step = _step_by_cgroup(pid)
    if step:
        # the first process of a container of ours is in the step, too; that of a machine is not
        contained = step == _step_by_cgroup(1)
    else:
        step = _step_by_ancestor(pid) if job_of(environment) else ""
        contained = False  # in a container no slurmstepd is seen above
    return place(environment, step, contained=contained)


def place(environment: "Mapping[str, str]", step: str, *, contained: bool = False) -> Place:
    """Return where a process is; the kernel finds it in `step`, or ""; perhaps contained. Pure."""
    job = job_of(environment)
    of_step, _, number = step.partition(".")
    # a step of a heterogeneous job is one of each of its jobs, and bears the first one's name
    jobs = [job]
    for name, value in environment.items():
        if name.startswith("SLURM_JOB_ID_HET_GROUP_"):
            jobs.append(value)
    task = environment.get("SLURM_PROCID", "")
    is_task = (
        job
        and of_step in jobs
        and number.isdigit()
        and number == environment.get("SLURM_STEP_ID")
        and task.isdigit()
        and not contained
    )
    return Place(job, step, task if is_task else "")


def step_of_cgroups(text: str) -> str:
    """Return the step of control groups, /job_JOB/step_STEP… (proc(5)); "" for none. Pure."""
    for line in text.splitlines():
        _, found, rest = line.rpartition("/job_")
        job, slash, rest = rest.partition("/step_")
        step = rest.partition("/")[0]
        if found and slash and job.isdigit() and step:
            return f"{job}.{step}"
    return ""


def step_of_title(title: str) -> str:
    """Return the step that names a slurmstepd, `slurmstepd: [7.batch]`; "" for none. Pure."""
    job, dot, step = title.partition("[")[2].partition("]")[0].rpartition(".")
    job = job.partition("+")[0]
    return f"{job}.{step}" if dot and job.isdigit() and step else ""


def _step_by_cgroup(pid: "int | str") -> str:
    return step_of_cgroups(contents(f"/proc/{pid}/cgroup").decode(errors="replace"))


def _step_by_ancestor(pid: "int | str") -> str:
    for _ in range(_GENERATIONS):
        head, _, rest = contents(f"/proc/{pid}/stat").rpartition(b")")
        fields = rest.split(None, 2)
        if len(fields) < 3:
            return ""  # it is gone, or in another namespace
        if head.partition(b"(")[2].startswith(_STEPD):
            words = contents(f"/proc/{pid}/cmdline").replace(b"\0", b" ")
            return step_of_title(words.decode(errors="replace"))
        pid = fields[1].decode()
    return ""


def stat_fields(pid: "int | str") -> "list[bytes]":
    """Return what proc_pid_stat(5) has behind the process's name; nothing if it is gone."""
    return contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def contents(path: str) -> bytes:
    """Return the contents of a file of the kernel's; nothing if it cannot be read."""
    found = b""
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return found
    try:
        while part := posix.read(fd, 65536):
            found += part
    except OSError:
        pass  # the process is gone
    finally:
        posix.close(fd)
    return found
