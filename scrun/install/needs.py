"""What a container needs of this machine's packages, and the one command that installs it.

The packages are Debian's. What nodes need is not among them: `doctor` asks a node.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

Which = Callable[[str], str | None]
"""Returns the path of a program, or None."""

WANTED_IDS = 65536
"""So many subordinate ids an image may use."""


class Need(NamedTuple):
    """Alternative programs, their name in a sentence, and the package of the first."""

    name: str
    programs: tuple[str, ...]
    package: str


ID_MAPS = Need("newuidmap", ("newuidmap",), "uidmap")
_RUNTIME = Need("an OCI runtime (crun or runc)", ("crun", "runc"), "crun")
_SLURM = Need("Slurm's client commands", ("salloc",), "slurm-client")
_ENGINES = {
    "podman": (Need("podman", ("podman",), "podman"),),
    # Debian 13 has the command in a package that docker.io recommends, Debian 12 in docker.io
    "docker": (
        Need("dockerd", ("dockerd",), "docker.io"),
        Need("docker", ("docker",), "docker-cli"),
    ),
}


def missing(
    engines: Collection[str], which: Which, *, here: bool, slurm: bool, rootless: bool
) -> list[Need]:
    """Return what is not installed.

    `here`: containers run on this machine; `slurm`: Slurm's commands are to be found by `which`.
    """
    needs = [need for engine in engines for need in _ENGINES[engine]]
    needs += [_RUNTIME] * here + [_SLURM] * slurm + [ID_MAPS] * (rootless and bool(engines))
    lacking = [need for need in needs if not any(map(which, need.programs))]
    packages = {need.package for need in lacking}
    return [
        need for need in lacking if need.package != "docker-cli" or "docker.io" not in packages
    ]


def names(lacking: Iterable[Need]) -> str:
    """Return what is missing, as words in a sentence."""
    return ", ".join(need.name for need in lacking)


def remedy(lacking: Sequence[Need], which: Which, *, root: bool) -> str:
    """Return the command that installs it, or words where Debian's does not exist."""
    if which("apt-get") is None:
        return f"install {names(lacking)} with this system's package manager"
    command = " ".join(["apt-get", "install", *(need.package for need in lacking)])
    return command if root else f"as root: {command}"


def count_ids(text: str | None, user: str, uid: int) -> int:
    """Add up a user's subordinate ids: lines `NAME:FIRST:COUNT` or `UID:…`, subuid(5)."""
    total = 0
    for line in (text or "").splitlines():
        fields = line.strip().split(":")
        if len(fields) == 3 and fields[0] in (user, str(uid)) and fields[2].isdecimal():
            total += int(fields[2])
    return total


def ids_remedy(user: str) -> str:
    """Return the command that gives a user subordinate ids."""
    return (
        f"usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user}, with ids that "
        "are free (rootless engines need them)"
    )


def ids_come_from_elsewhere(nsswitch: str | None) -> bool:
    """Tell whether subordinate ids may come from LDAP or the like: nsswitch.conf, `subid`."""
    return bool(re.search(r"^\s*subid:(?!\s*files\s*$)", nsswitch or "", re.MULTILINE))
