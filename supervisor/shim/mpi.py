"""What slurmstepd gives a task for MPI besides variables: PMI's descriptor, PMIx's directory."""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from typing import Any

_FIRST = 3
_DIRECTORY = "PMIX_SERVER_TMPDIR"
_IN_MEMORY = "/dev/pmix"


class Mpi:
    """What the step's program gets, which is the first container of the shim."""

    def __init__(self, environment: "MutableMapping[str, str]", ours: int = -1) -> None:
        """Take it from our environment, and leave out there what nobody can use.

        The descriptor `ours` is not PMI's.
        """
        self._directory = environment.get(_DIRECTORY, "")
        self._pmi = _socket(environment.pop("PMI_FD", ""), ours)

    def show(self, config: "dict[str, Any]") -> None:
        """Change a config.json for the directory."""
        if self._directory and config.get("process") and os.path.isdir(self._directory):
            _mount(config, self._directory)

    def give(self, config: "dict[str, Any]") -> "list[int]":
        """Change a config.json for all; return the descriptors that its program gets from 3 on."""
        self.show(config)
        process = config.get("process")
        if self._pmi < 0 or not process:
            return []
        process["env"] = [*(process.get("env") or []), f"PMI_FD={_FIRST}"]
        return [self._pmi]

    def given(self) -> None:
        """Note that a container has it: no other may talk on that descriptor."""
        if self._pmi >= 0:
            os.close(self._pmi)
        self._pmi, self._directory = -1, ""


def _socket(text: str, ours: int) -> int:
    """Return the number of PMI's descriptor, which no other process gets; -1 for none."""
    try:
        fd = int(text)
        if fd == ours or not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return -1
        os.set_inheritable(fd, False)
    except (OSError, ValueError):
        return -1
    return fd


def _mount(config: "dict[str, Any]", directory: str) -> None:
    """Show a container the directory of PMIx's server.

    A runtime makes mount points as the user, who may be unable to write to the root file system.
    /dev is in memory.
    """
    mounts = config.get("mounts") or []
    kinds = {mount.get("destination"): mount.get("type") for mount in mounts}
    place = _IN_MEMORY if kinds.get("/dev") == "tmpfs" else directory
    mount = {"destination": place, "type": "bind", "source": directory}
    config["mounts"] = [*mounts, {**mount, "options": ["rbind", "nosuid", "nodev"]}]
    process = config["process"]
    process["env"] = [_moved(item, directory, place) for item in process.get("env") or []]


def _moved(item: str, directory: str, place: str) -> str:
    name, _, value = item.partition("=")
    if name.startswith("PMIX_") and (value + "/").startswith(directory + "/"):
        return f"{name}={place}{value[len(directory) :]}"
    return item
