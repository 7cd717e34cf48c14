"""The differences between versions of Slurm.

No other module compares versions, except that `scrun.settings.slurm.requests` has the options of
salloc and srun by version. "Measured" means a run with 22.05.8 or the named version, "NEWS" the
file of that name in Slurm's sources. docs/reference/versions.md is the description for users.
"""

import re

import msgspec

from scrun.core.errors import SettingsError

OLDEST = (22, 5)


class SlurmVersion(msgspec.Struct, frozen=True, order=True):
    """A version of Slurm, as its tools print it."""

    major: int
    minor: int
    micro: int = 0

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor, by which the tables are ordered."""
        return self.major, self.minor

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02}.{self.micro}"


def parse_version(text: str) -> SlurmVersion:
    """Read the output of `salloc --version`: `slurm-wlm 22.05.8`, `slurm 24.11.5`."""
    found = re.search(r"(?am)^slurm\S*\s+(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?", text)
    if not found and not text.strip():
        raise SettingsError(
            "Slurm's version: salloc --version prints nothing: it finds no slurm.conf; name one "
            "by SLURM_CONF, -f, or `conf` in the section [slurm] of scrun.toml"
        )
    if not found:
        raise SettingsError(f"Slurm's version: not understood: {text.strip()[:80]!r}")
    major, minor, micro = found.groups(default="0")
    return SlurmVersion(int(major), int(minor), int(micro))


class Features(msgspec.Struct, frozen=True):
    """The features of a version of Slurm.

    Attributes:
        container_id: srun has `--container-id`.
        job_container_id: salloc has it too, so that squeue shows it for a pending job.
        forces_rootfs: slurmstepd uses `BUNDLE/rootfs` instead of `root.path` of config.json; the
            staged bundle needs a `rootfs` (a symbolic link will do).
        tasks_per_node: The most tasks of a step that can be containers on one node; None: any
            number.
        real_terminal: With `--pty` slurmstepd sets `process.terminal`, so the container gets a
            controlling terminal and job control.
        node_finds_program: slurmstepd looks a program without an absolute path up among the
            files of the node, along the container's PATH or from its own directory, and passes
            the path that it finds there.
        mounts_spool: slurmstepd mounts the step's directory in the container, on a directory that
            the runtime creates in the root file system, unless MountSpoolDir of oci.conf names
            another.
        spool_mount: Where it does so, if that is the same for all steps; or "".
        env_exclude: oci.conf has EnvExclude; without it the job's environment is appended to
            that of config.json.
        tool_threads: How many a salloc and an srun have together that wait for a container.
    """

    container_id: bool
    job_container_id: bool
    forces_rootfs: bool
    tasks_per_node: int | None
    real_terminal: bool
    node_finds_program: bool
    mounts_spool: bool
    spool_mount: str
    env_exclude: bool
    tool_threads: int


def features(version: SlurmVersion) -> Features:
    """Return the features of a version, from `OLDEST` on."""
    if version.release < OLDEST:
        raise SettingsError(f"Slurm {version} is too old: 22.05 or newer is needed")
    # Containers were reworked in 23.02. Differences measured between 22.05.8, 24.11.5 and 26.05.5
    # are assumed to have begun then.
    reworked = version.release >= (23, 2)
    return Features(
        # measured: srun only has --container; 24.11: --container-id too
        container_id=reworked,
        # measured: 24.11.5 and 26.05.5 have it, 22.05.8 does not
        job_container_id=version.release >= (24, 11),
        # measured; 24.11: root.path of config.json
        forces_rootfs=not reworked,
        # measured: "launch failed", 255; 24.11: each task is a container of its own
        tasks_per_node=None if reworked else 1,
        # measured: always false; 24.11: true with --pty
        real_terminal=reworked,
        # measured, 24.11: `sh` becomes the node's /usr/bin/sh
        node_finds_program=reworked,
        mounts_spool=reworked,
        # measured, 24.11; 26.05: at its path on the node
        spool_mount="/var/run/slurm" if (23, 2) <= version.release < (26, 5) else "",
        # NEWS 23.02: "oci.conf - add RunTimeEnvExclude and EnvExclude"
        env_exclude=reworked,
        # measured: 2 and 4; 26.05: 6 each, whatever the number of processors
        tool_threads=12 if version.release >= (26, 5) else 6,
    )
