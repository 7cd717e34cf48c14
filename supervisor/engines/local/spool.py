"""Writes what slurmstepd writes for a task before it calls the site's OCI runtime.

The runtime gets a separate bundle: the staged config.json, changed as oci.conf asks (environment,
hooks, mounts). Everything here blocks.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scrun.core.errors import StagingError, described
from scrun.core.trees import remove_tree
from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.oci_conf.patterns import without
from scrun.settings.oci_conf.task import ENVIRONMENT, Task
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.files import write
from scrun.supervisor.core.private import make_private, not_ours
from scrun.supervisor.engines.local.runtime_config import with_absolute_paths

_CONFIG = "config.json"
_REMEDY = "set ContainerPath in the oci.conf to another directory"


def write_task(
    conf: OciConf, task: Task, step: Step, variables: Mapping[str, str]
) -> tuple[str, str]:
    """Write the files of a task.

    Returns:
        The bundle for the runtime, and the root file system.

    Raises:
        StagingError: They cannot be written.
        SettingsError: A pattern has no value here.
    """
    made, inner = task.step_directory(conf), task.task_directory(conf)
    try:
        with open(os.path.join(step.bundle, _CONFIG), "rb") as file:
            config: dict[str, Any] = msgspec.json.decode(file.read())
        _remove_older(made)
        make_private(made, _REMEDY)
        os.mkdir(inner, 0o700)
        rootfs = os.path.join(step.bundle, config["root"]["path"])
        environment = _environment(conf, config, variables)
        if conf.create_env_file != "disabled":
            content = environment_file(environment, newlines=conf.create_env_file == "newline")
            write(os.path.join(inner, ENVIRONMENT), content)
        if conf.ignore_file_config_json:
            return step.bundle, rootfs
        mount = task.mount_point(conf)
        changed = changed_config(
            config, conf, arguments=step.arguments, environment=environment, bundle=step.bundle,
            mount=(made, mount) if mount else None,
        )  # fmt: skip
        write(os.path.join(inner, _CONFIG), msgspec.json.encode(changed))
    except OSError as error:
        raise StagingError(f"{inner}: {described(error)}; {_REMEDY}") from error
    return inner, rootfs


def changed_config(
    config: Mapping[str, Any],
    conf: OciConf,
    *,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    bundle: str,
    mount: tuple[str, str] | None,
) -> dict[str, Any]:
    """Change a config.json as slurmstepd does. Pure.

    Args:
        config: The config.json; not changed.
        bundle: The directory of config.json, where its relative paths start.
        mount: A directory, and its mount point in the container.
    """
    process = {
        **config["process"],
        "args": list(arguments),
        "env": [f"{name}={value}" for name, value in environment.items()],
    }
    if conf.mode == "create":
        # RunTimeCreate has no console socket, so the runtime cannot make a terminal; the
        # container's standard streams are one already
        process["terminal"] = False
    changed = {**with_absolute_paths(config, bundle), "process": process}
    if mount is not None:
        source, destination = mount
        options = ["bind"]
        changed["mounts"].append(
            {"destination": destination, "type": "none", "source": source, "options": options}
        )
    if hooks := config.get("hooks"):
        changed["hooks"] = {k: v for k, v in hooks.items() if k not in conf.disable_hooks}
    return changed


def environment_file(environment: Mapping[str, str], *, newlines: bool) -> bytes:
    """Return the content of CreateEnvFile: each variable ends in a newline, or in a NUL.

    As in Slurm, the form with newlines leaves out variables that contain one.
    """
    end = "\n" if newlines else "\0"
    lines = [f"{name}={value}" for name, value in environment.items()]
    text = "".join(line + end for line in lines if not newlines or "\n" not in line)
    return text.encode(errors="surrogateescape")


def _environment(
    conf: OciConf, config: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the container's variables: the job's, overridden by those of config.json."""
    own = (entry.partition("=") for entry in config["process"].get("env") or [])
    return without({**variables, **{name: value for name, _, value in own}}, conf.env_exclude)


def _remove_older(made: str) -> None:
    """Remove what DisableCleanup left of an older container of this number."""
    if not os.path.lexists(made):
        return
    if reason := not_ours(made):
        raise StagingError(f"{made}: {reason}; {_REMEDY}")
    remove_tree(made)
