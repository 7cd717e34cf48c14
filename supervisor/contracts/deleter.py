"""Whoever deletes a container, as its last hooks see it."""

import os

import msgspec

from scrun.supervisor.children.processes import ChildEnv

_UMASK = "Umask:"


class Deleter(msgspec.Struct, frozen=True):
    """What the OCI runtime has from whoever calls its `delete`, and hooks have from that."""

    child_env: ChildEnv
    directory: str


def deleter_of(pid: int) -> Deleter | None:
    """Describe a process; None if it has ended, or is another user's. Blocks, if that hangs."""
    process = f"/proc/{pid}"
    try:
        with open(f"{process}/environ", "rb") as file:
            entries = os.fsdecode(file.read()).split("\0")
        with open(f"{process}/status", encoding="ascii", errors="replace") as file:
            masks = [line for line in file if line.startswith(_UMASK)]
        directory = os.readlink(f"{process}/cwd")
    except OSError:
        return None
    umask = int(masks[0].removeprefix(_UMASK), 8) if masks else 0o022
    pairs = (entry.partition("=") for entry in entries)
    environment = {name: value for name, _, value in pairs if name}
    return Deleter(ChildEnv(environment, umask), directory)
