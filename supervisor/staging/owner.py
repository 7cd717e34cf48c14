"""Whose a staged bundle in a scratch directory is.

A scratch directory is often shared by machines, and outlives what is in /run. So the name of a
staged bundle there carries machine and root directory, and the file `owner.json` in it says which
supervisor staged it and what its root file system may be a copy of. Who finds one whose
supervisor is dead may clean it up: `supervisor.staging.leftovers`.
"""

import os
from hashlib import blake2s

import msgspec

from scrun.core.errors import StagingError
from scrun.core.paths import read_regular
from scrun.model.record import ProcessIdentity
from scrun.settings.oci_conf.patterns import substitute
from scrun.supervisor.core.identity import myself, place
from scrun.supervisor.core.names import user_of

OWNER = "owner.json"
_LONGEST = 65536
_NAME_MAX = 255


class Owner(msgspec.Struct, frozen=True):
    """Whose a staged bundle is.

    Attributes:
        id: The container.
        root: Its root directory.
        supervisor: Who has staged it.
        rootfs: What its root file system was submitted as.
    """

    id: str
    root: str
    supervisor: ProcessIdentity
    rootfs: str = ""


def owner_of(record: str, rootfs: str) -> Owner:
    """Return who stages a bundle here and now.

    Args:
        record: The container's record.
        rootfs: The submitted root file system.
    """
    root, container = os.path.split(record)
    return Owner(container, root, myself(), rootfs)


def read_owner(directory: str) -> Owner | None:
    """Read whose a staged bundle is; None where that is not said."""
    try:
        return msgspec.json.decode(
            read_regular(os.path.join(directory, OWNER), _LONGEST), type=Owner
        )
    except (OSError, msgspec.DecodeError):
        return None


def scratch_of(pattern: str) -> str:
    """Return the scratch directory of this user: `%u` is the name, `%U` the number.

    Raises:
        StagingError: The user has no name.
    """
    uid = os.getuid()
    user = user_of(uid)
    if user is None and "%u" in pattern.replace("%%", ""):
        raise StagingError(
            f"[staging] scratch = {pattern!r}: uid {uid} has no name, not even in the name "
            "service: use %U, its number"
        )
    values = {"u": user.name if user else str(uid), "U": str(uid)}
    return substitute(pattern, values, shell=False)


def beginning(root: str) -> str:
    """Return how the names of this root directory's bundles begin."""
    return f"scrun-{place(root)}-"


def name_in_scratch(root: str, container: str) -> str:
    """Name a container's staged bundle so that nobody else has the same name."""
    name = beginning(root) + container
    if len(name) <= _NAME_MAX:
        return name
    digest = blake2s(container.encode(), digest_size=8).hexdigest()
    return f"{name[: _NAME_MAX - len(digest) - 1]}.{digest}"
