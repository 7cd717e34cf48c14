"""The SCRUN_* variables that describe a container to scripts.

They are those of scrun(1), "OUTPUT ENVIRONMENT VARIABLES", for scrun.lua and the commands that it
runs; the container gets none of them.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from scrun.oci.config import LONGEST_WORD


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the variables; the names are the variables', without SCRUN_, in lower case.

    Attributes:
        oci_version: `ociVersion` of config.json.
        container_id: The container's id.
        pid: The anchor's pid, as in the pid file.
        bundle: The bundle that will run: the staged one, or what a script has set.
        submission_bundle: The bundle of `create`.
        annotations: The annotations of config.json.
        pid_file: The pid file; not set without `--pid-file`.
        socket: The socket of the container's supervisor.
        spool_dir: A directory for the container's temporary files, removed with it.
        submission_config_file: The config.json that was read.
        user: The name of the user who called `create`.
        user_id: Its number.
        group: The name of that user's primary group.
        group_id: Its number.
        root: The directory of the records (`--root`).
        rootfs_path: The root file system that will run.
        submission_rootfs_path: The one that the submitted config.json names.
        log_file: The log.
        log_format: Its format.
    """

    oci_version: str
    container_id: str
    pid: int
    bundle: str
    submission_bundle: str
    annotations: Mapping[str, str]
    pid_file: str | None
    socket: str
    spool_dir: str
    submission_config_file: str
    user: str
    user_id: int
    group: str
    group_id: int
    root: str
    rootfs_path: str
    submission_rootfs_path: str
    log_file: str | None
    log_format: Literal["text", "json"]


NAMES = frozenset(f"SCRUN_{field.upper()}" for field in ScriptFacts.__struct_fields__)
"""The names of the variables; those of annotations have their keys besides."""


def container_variables(container: str, bundle: str) -> dict[str, str]:
    """Return the variables by which Slurm names the container of a job or step."""
    return {"SLURM_CONTAINER": bundle, "SLURM_CONTAINER_ID": container}


def output_variables(facts: ScriptFacts) -> dict[str, str]:
    """Make the variables, in the order of the manual.

    A value of None has no variable. Neither has an annotation that cannot be one, because a
    command with it could not be started: one with an equals sign in its key, with a NUL, or with
    more bytes than execve(2) accepts. Other keys are used unchanged, although a shell cannot name
    most of them: `env`, Lua and jq can.
    """
    variables: dict[str, str] = {}
    for field in facts.__struct_fields__:
        value = getattr(facts, field)
        if field == "annotations":
            variables.update(_annotations(value))
        elif value is not None:
            variables[f"SCRUN_{field.upper()}"] = str(value)
    return variables


def _annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    return {
        f"SCRUN_ANNOTATION_{key}": value
        for key, value in annotations.items()
        if "=" not in key
        and "\0" not in key + value
        and len(f"SCRUN_ANNOTATION_{key}={value}".encode(errors="replace")) <= LONGEST_WORD
    }
