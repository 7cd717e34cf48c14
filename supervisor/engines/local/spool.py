"""What slurmstepd writes for a task before it calls the site's OCI runtime, on this machine.

The runtime gets a bundle of its own: the staged one's config.json with what oci.conf says about
environment, hooks and mounts. Everything here blocks.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scrun.core.errors import StagingError, described
from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.oci_conf.patterns import without
from scrun.settings.oci_conf.task import ENVIRONMENT, Task
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.files import remove_tree, write
from scrun.supervisor.core.private import make_private, not_ours
from scrun.supervisor.engines.local.runtime_config import with_absolute_paths

_CONFIG = "config.json"
_REMEDY = "name another place by ContainerPath of the oci.conf"


def write_task(
    conf: OciConf, task: Task, step: Step, variables: Mapping[str, str]
) -> tuple[str, str]:
    """Write the files of a task.

    Args:
        conf: The oci.conf.
        task: The task.
        step: What it will run.
        variables: The job's.

    Returns:
        The bundle for the runtime, and the root file system.

    Raises:
        StagingError: They cannot be written.
        SettingsError: A pattern asks for what there is not.
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
        config: It; not changed.
        conf: The oci.conf.
        arguments: The command.
        environment: All of the container's.
        bundle: Where config came from: relative paths in it are meant from there.
        mount: A directory and where in the container it is to be.
    """
    process = {
        **config["process"],
        "args": list(arguments),
        "env": [f"{name}={value}" for name, value in environment.items()],
    }
    if conf.mode == "create":
        # RunTimeCreate has no console socket, so the runtime cannot make a terminal; the
        # container's standard streams are the one that there is already
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
    """Write CreateEnvFile's file: each variable ends in a newline, or in a NUL.

    Variables that have a newline in them are not in the one with newlines, as in Slurm's.
    """
    end = "\n" if newlines else "\0"
    lines = [f"{name}={value}" for name, value in environment.items()]
    text = "".join(line + end for line in lines if not newlines or "\n" not in line)
    return text.encode(errors="surrogateescape")


def _environment(
    conf: OciConf, config: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return the container's variables: the job's, and above them config.json's own."""
    own = (entry.partition("=") for entry in config["process"].get("env") or [])
    return without({**variables, **{name: value for name, _, value in own}}, conf.env_exclude)


def _remove_older(made: str) -> None:
    """Remove what DisableCleanup has left of another container of this number."""
    if not os.path.lexists(made):
        return
    if reason := not_ours(made):
        raise StagingError(f"{made}: {reason}; {_REMEDY}")
    remove_tree(made)
