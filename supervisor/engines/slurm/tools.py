"""Slurm's command-line tools: their paths, and the environment that they get."""

import os
import shutil
from collections.abc import Mapping, Sequence

import msgspec

from scrun.core.errors import EngineUnavailable, SettingsError
from scrun.core.paths import OUTSIDE, SHIMS, real_id
from scrun.core.text import is_unicode
from scrun.settings.oci_conf.parse import OciConf
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv, own_program

_NOT_OURS = ("SLURM_", "SLURMD_", "SALLOC_", "SBATCH_", "SRUN_", "SCANCEL_", "SQUEUE_", "SACCT_")
CLUSTERS = "SCRUN_CLUSTERS"
_WORKING = "SLURM_WORKING_CLUSTER"
_REMEDY = "name its slurm.conf: with -f, as SLURM_CONF, or as `conf` in [slurm] of scrun.toml"


class Tools(msgspec.Struct, frozen=True):
    """The tools of one Slurm installation.

    Attributes:
        srun: The path of srun, and the site's own arguments.
        conf: The slurm.conf in use, or None for Slurm's own default.
        prefix: The command that enters a user namespace in which the tools see the real user.
        squeue: The path of squeue, or None: it only makes reasons more exact.
        scontrol: The path of scontrol, or None: only `update` needs it.
        debug_flags: DebugFlags of slurm.conf(5) for the tools, or None.
    """

    salloc: str
    srun: tuple[str, ...]
    scancel: str
    conf: str | None
    prefix: tuple[str, ...]
    squeue: str | None = None
    scontrol: str | None = None
    debug_flags: str | None = None

    def of_site(self, conf: OciConf) -> "Tools":
        """Return the tools with the changes of an oci.conf(5): SrunPath, SrunArgs and DebugFlags.

        Raises:
            EngineUnavailable: SrunPath is not executable.
        """
        path = conf.srun_path or self.srun[0]
        if not os.access(path, os.X_OK):
            raise EngineUnavailable(
                f"SrunPath={path}: not an executable program: correct it in the oci.conf beside "
                "slurm.conf, or remove it"
            )
        return msgspec.structs.replace(
            self, srun=(path, *conf.srun_args), debug_flags=conf.debug_flags
        )

    def child_env(self, of_create: ChildEnv) -> ChildEnv:
        """Return the environment for a tool, from that of a container's `create`.

        The caller's variables that act as options of Slurm's tools are removed: within a batch job
        they describe that job, and a container would request a job of the same size.
        """
        environment = {
            key: value
            for key, value in of_create.environment.items()
            if not key.startswith(_NOT_OURS)
        }
        environment.setdefault("PATH", SYSTEM_PATH)
        if self.conf is not None:
            environment["SLURM_CONF"] = self.conf
        if self.debug_flags is not None:
            environment["SLURM_DEBUG_FLAGS"] = self.debug_flags
        return msgspec.structs.replace(of_create, environment=environment, prefix=self.prefix)


# What a user's srun reads and ours must not: the job, which an option says, how it talks to its
# caller, what it does beside the program, and what scrun checks first (SCRUN_MPI_TYPE).
_OF_THEIR_SRUN = frozenset(
    "SLURM_" + name
    for name in (
        "BCAST", "BCAST_EXCLUDE", "COMPRESS", "CONF", "CONTAINER", "CONTAINER_ID",
        "DEBUG", "DEBUG_FLAGS", "DISABLE_STATUS",
        "EXCLUSIVE", "EXIT_ERROR", "EXIT_IMMEDIATE", "IMMEDIATE", "JOBID", "JOB_ID",
        "KILL_BAD_EXIT", "LABELIO", "MPI_TYPE", "NO_KILL", "OPEN_MODE", "QUIT_ON_INTERRUPT",
        "REMOTE_CWD", "SEND_LIBS", "STDERRMODE", "STDINMODE", "STDOUTMODE", "TEST_EXEC",
        "THREADS", "UMASK", "UNBUFFEREDIO", "WAIT", "WORKING_DIR",
    )
)  # fmt: skip

# For a command of ours on the job's nodes, whose shape is not the job's
_FOR_A_COMMAND = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_NUM_NODES",
    "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST",
)


_OF_A_CONTAINER = ("SLURM_SUBMIT_DIR", "SLURM_CONTAINER_ID")


def of_a_container(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job that each of its containers has for itself, as JSON can."""
    found = {name: environment.get(name) for name in _OF_A_CONTAINER}
    return {name: text for name, text in found.items() if text is not None and is_unicode(text)}


def of_the_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an srun of a container's step gets of a job's variables.

    srun passes on those in its environment, whatever --export says, and takes some as options: so
    a step has the variables, the memory and the binding that one of the user's own srun has there.
    Options that scrun gives it count more.
    """
    return {name: text for name, text in environment.items() if name not in _OF_THEIR_SRUN}


def for_a_command(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what an srun of a command on all nodes gets of a job's variables."""
    return {name: environment[name] for name in _FOR_A_COMMAND if name in environment}


# Measured with 22.05: salloc takes 0.9 MiB and srun 3.9, and 0.7 and 3.5 with this (glibc,
# mallopt(3)), at the same throughput. A single arena would save 0.15 MiB more, but then all
# threads share the allocator's lock, and one in twenty sallocs cancelled around the grant hangs:
# see `allocation`. With the threshold, what srun has once for each variable of a shim's step goes
# back to the system: 3.6 MiB, not 3.8, for 20 more calls of mmap and none for each byte.
_LEAN = {"MALLOC_TOP_PAD_": "4096", "MALLOC_MMAP_THRESHOLD_": "8192"}

# Without a cache for each thread, srun of 26.05 takes 3.5 MiB, not 3.6, with the same throughput.
# Not for salloc, whose threads would wait for the lock more often, too.
_NO_CACHES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


def lean(child_env: ChildEnv) -> ChildEnv:
    """Return the environment for a tool that runs as long as the container, to save memory.

    Each container has one salloc and one srun, which take most of its memory.
    """
    return msgspec.structs.replace(child_env, environment={**_LEAN, **child_env.environment})


def lean_srun(child_env: ChildEnv) -> ChildEnv:
    """Return the environment for srun as `lean` does, with less of what only srun may lack."""
    environment = {**_NO_CACHES, **child_env.environment}
    return lean(msgspec.structs.replace(child_env, environment=environment))


def find_tools(directory: str | None, conf: str | None, environment: Mapping[str, str]) -> Tools:
    """Find the tools in a directory, or else in PATH of the environment and the usual places.

    Raises EngineUnavailable if one of them is missing.
    """
    folders = [*environment.get("PATH", "").split(os.pathsep), SYSTEM_PATH]
    path = directory or os.pathsep.join(each for each in folders if not each.endswith(SHIMS))
    found = {name: _find(name, path) for name in ("salloc", "srun", "scancel")}
    if missing := [name for name, tool in found.items() if tool is None]:
        where = directory or "PATH"
        raise EngineUnavailable(
            f"{', '.join(missing)}: not found in {where}; install Slurm's client commands, or "
            "name their directory as `bin` in the section [slurm] of scrun.toml"
        )
    salloc, srun, scancel = (str(tool) for tool in found.values())
    squeue, scontrol = (_find(name, path) for name in ("squeue", "scontrol"))
    return Tools(salloc, (srun,), scancel, conf, tuple(real_user_prefix()), squeue, scontrol)


_PATHS = 1000
_found: dict[tuple[str, str], str] = {}


def _find(name: str, path: str) -> str | None:
    """Find a tool, and cache its path as long as it exists.

    Searching all of PATH for five tools took 0.4 ms of every `create`.
    """
    known = _found.get((name, path))
    if known is None or not os.access(known, os.X_OK):
        known = shutil.which(name, path=path)
        if known is not None:
            if len(_found) >= _PATHS:  # each caller may have another PATH
                _found.clear()
            _found[name, path] = known
    return known


def remedy(reason: str, environment: Mapping[str, str]) -> str:
    """Return what helps a call that does not reach slurmctld, as the end of a line; or ""."""
    if (
        "contact" in reason
        and "ROOTLESSKIT_STATE_DIR" in environment
        and OUTSIDE not in environment
    ):
        return "; rootlesskit has a network of its own: start docker by `scrun outside`"
    return ""


def real_user_prefix() -> Sequence[str]:
    """Return the command prefix that runs a program as the real user, or nothing.

    Rootless container engines call scrun as uid 0 of a user namespace. Slurm compares the uid that
    a tool claims with the one that munge saw, which is the real one ("Invalid user id"). A nested
    namespace maps it back.
    """
    uid, gid = real_id("uid"), real_id("gid")
    if os.geteuid() != 0 or (uid, gid) == (0, 0):
        return ()
    return (own_program("unshare"), "--user", f"--map-user={uid}", f"--map-group={gid}", "--")


# `salloc --clusters=NAME` asks slurmdbd where NAME is, and tells srun by SLURM_WORKING_CLUSTER,
# which squeue does not look at. A job there would look lost from here, and another job may have
# its number here. With the slurm.conf of NAME every call of every tool goes there, also those of
# a supervisor that cleans up later.
def other_cluster(wanted: Mapping[str, str], environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the variable that names a cluster, and the name; or ("", "").

    salloc sets one in the caller's environment for a job in another cluster.
    """
    if name := wanted.get(CLUSTERS, ""):
        return CLUSTERS, name
    if "SLURM_JOB_ID" in environment and (found := environment.get(_WORKING)):
        return _WORKING, found.partition(":")[0]
    return "", ""


def check_cluster(variable: str, name: str, conf: Mapping[str, str]) -> None:
    """Raise SettingsError for a cluster that is not that of the slurm.conf in use."""
    own = conf.get("clustername", "")
    if name.lower() != own.lower():
        here = f"only to {own}" if own else "only to that of its slurm.conf"
        raise SettingsError(f"{variable}={name}: scrun sends jobs {here}; {_REMEDY}")
