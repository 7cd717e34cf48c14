"""The config.json that a shim gets for a container."""

import os
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from scrun.core.errors import SettingsError, StagingError, described
from scrun.oci.config import parse
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.local.runtime_config import with_absolute_paths, with_variables
from scrun.supervisor.nodes.connection import Shim


async def container_config(shim: Shim, step: Step, node: str) -> dict[str, Any]:
    """Return the config.json for the runtime, from that of the staged bundle.

    A site's script may have put that where only the nodes see it.

    Raises:
        BundleError: It is invalid.
        StagingError: It cannot be read.
    """
    path = os.path.join(step.bundle, "config.json")
    try:
        content = await in_thread(_content, path)
    except FileNotFoundError:
        reply = await shim.call("script", script=f"exec cat -- {shlex.quote(path)}")
        if reply["status"]:
            raise StagingError(f"{node}: {reply['text'].strip()}") from None
        content = reply["text"].encode()
        parse(content, f"{node}: {path}")  # whatever that node says
    except OSError as error:
        raise StagingError(f"{path}: {described(error)}") from error
    config: dict[str, Any] = with_absolute_paths(msgspec.json.decode(content), step.bundle)
    config["process"] = {
        **config["process"],
        "args": list(step.arguments),
        "env": with_variables(config["process"].get("env") or (), step.variables),
    }
    return config


def check_pmi(options: Sequence[str], conf: str) -> None:
    """Refuse PMI where the commands of an oci.conf make the container: they pass no descriptor on.

    Raises:
        SettingsError: PMI is asked for.
    """
    if any(option.lower() == "--mpi=pmi2" for option in options):
        raise SettingsError(
            f"SCRUN_MPI_TYPE=pmi2: cannot work: the commands of {conf} do not pass its "
            "descriptor on; leave it out, and start the ranks with mpirun in the container"
        )


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
