"""Slurm's command-line tools: where they are, and in which surroundings they work."""

import os
import shutil
from collections.abc import Mapping, Sequence

import msgspec

from scrun.core.errors import EngineUnavailable
from scrun.core.paths import real_id
from scrun.settings.oci_conf.parse import OciConf
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv, own_program

_NOT_OURS = ("SLURM_", "SLURMD_", "SALLOC_", "SBATCH_", "SRUN_", "SCANCEL_", "SQUEUE_", "SACCT_")


class Tools(msgspec.Struct, frozen=True):
    """The tools of one Slurm installation.

    Attributes:
        salloc: Its path; likewise scancel.
        srun: The words that begin a step: its path, and the site's own arguments.
        scancel: See salloc.
        conf: The slurm.conf in use, or None for Slurm's own default.
        prefix: The words that enter a user namespace in which the tools see the real user.
        squeue: Its path, or None: it only makes reasons more exact.
        scontrol: Its path, or None: only `update` needs it.
        debug_flags: What the tools tell more about: DebugFlags of slurm.conf(5), or None.
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
        """Return the same as an oci.conf(5) has them: SrunPath, SrunArgs and DebugFlags.

        Raises:
            EngineUnavailable: SrunPath is no program.
        """
        path = conf.srun_path or self.srun[0]
        if not os.access(path, os.X_OK):
            raise EngineUnavailable(
                f"SrunPath={path}: no program that can be run: correct it in the oci.conf that is "
                "beside slurm.conf, or take it out"
            )
        return msgspec.structs.replace(
            self, srun=(path, *conf.srun_args), debug_flags=conf.debug_flags
        )

    def child_env(self, of_create: ChildEnv) -> ChildEnv:
        """Return the surroundings for a tool, from those of a container's `create`.

        Variables that are options of Slurm's tools do not come from the caller: within a batch
        job they describe that job, and a container would ask for a job of the same size.
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


# What salloc gives to a program and srun does not, as it finds the job by its number (22.05, and
# but for the processors 24.11). srun hands on what it has of them itself, whatever --export says.
_OF_THE_JOB = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_NUM_NODES",
    "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST",
)


def of_the_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a job that the programs of its steps would miss.

    Args:
        environment: The job's variables, as salloc gives them.
    """
    return {name: environment[name] for name in _OF_THE_JOB if name in environment}


# Measured with 22.05: a salloc weighs 0.9 MiB and a srun 3.9, and 0.7 and 3.5 with this (glibc,
# mallopt(3)), at the same throughput. A single arena would be 0.15 MiB less, but then the
# allocator's lock is the same for all threads, and of salloc's that are cancelled around the grant
# one in twenty hangs: see `allocation`.
_LEAN = {"MALLOC_TOP_PAD_": "4096"}


def lean(child_env: ChildEnv) -> ChildEnv:
    """Return the surroundings for a tool that stays, and hands none of them on.

    There is one of each for every container, and what they weigh is most of its weight.
    """
    return msgspec.structs.replace(child_env, environment={**_LEAN, **child_env.environment})


def find_tools(directory: str | None, conf: str | None, environment: Mapping[str, str]) -> Tools:
    """Find the tools.

    Args:
        directory: Where they are, or None to look at PATH and the usual places.
        conf: The slurm.conf to use, or None.
        environment: For PATH.

    Raises:
        EngineUnavailable: One of them is missing.
    """
    path = directory or os.pathsep.join([environment.get("PATH", ""), SYSTEM_PATH])
    found = {name: _find(name, path) for name in ("salloc", "srun", "scancel")}
    if missing := [name for name, place in found.items() if place is None]:
        where = directory or "PATH"
        raise EngineUnavailable(
            f"{', '.join(missing)}: not found in {where}; install Slurm's client commands, or "
            "name their directory as `bin` in the section [slurm] of scrun.toml"
        )
    salloc, srun, scancel = (str(place) for place in found.values())
    squeue, scontrol = (_find(name, path) for name in ("squeue", "scontrol"))
    return Tools(salloc, (srun,), scancel, conf, tuple(real_user_prefix()), squeue, scontrol)


_PATHS = 1000
_found: dict[tuple[str, str], str] = {}


def _find(name: str, path: str) -> str | None:
    """Look a tool up; one that was found is looked for no more, as long as it is there.

    To look through all of PATH for five of them took 0.4 ms of every `create`.
    """
    known = _found.get((name, path))
    if known is None or not os.access(known, os.X_OK):
        known = shutil.which(name, path=path)
        if known is not None:
            if len(_found) >= _PATHS:  # each caller may have another PATH
                _found.clear()
            _found[name, path] = known
    return known


def real_user_prefix() -> Sequence[str]:
    """Return the command that runs another one as the real user, or nothing.

    Rootless engines call us as uid 0 of a user namespace. Slurm compares the uid that a tool
    claims with the one that munge saw, and that is the real one ("Invalid user id"): a nested
    namespace maps it back.
    """
    uid, gid = real_id("uid"), real_id("gid")
    if os.geteuid() != 0 or (uid, gid) == (0, 0):
        return ()
    return (own_program("unshare"), "--user", f"--map-user={uid}", f"--map-group={gid}", "--")
