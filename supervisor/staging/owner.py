"""The owner of a staged bundle in a scratch directory.

Machines often share a scratch directory, and it outlives /run. So the name of a staged bundle
there contains the machine and the root directory, and the file `owner.json` in it names the
supervisor and the submitted root file system. Another supervisor may clean up the bundles of a
dead one: see `supervisor.staging.stage_out`.
"""

import os
from _blake2 import blake2s  # hashlib brings OpenSSL

import msgspec

from scrun.core.errors import StagingError
from scrun.core.paths import read_regular
from scrun.core.typed import decode_as
from scrun.model.identity import myself, root_name
from scrun.model.record import ProcessIdentity
from scrun.settings.oci_conf.patterns import substitute
from scrun.supervisor.core.names import user_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from scrun.settings.file.load import Staging
    from scrun.supervisor.contracts.engine import JobRequest

OWNER = "owner.json"
IN_RECORD = "bundle"
"""The name of a staged bundle in its container's record."""

_LONGEST = 65536
_NAME_MAX = 255
_LONGEST_ID = 200  # characters, of a name of _NAME_MAX


class Owner(msgspec.Struct, frozen=True):
    """The owner of a staged bundle, and the supervisor that staged it."""

    id: str
    root: str
    supervisor: ProcessIdentity
    rootfs: str = ""


def directory_for(settings: "Staging", request: "JobRequest") -> str:
    """Return the directory of a container's staged bundle."""
    if settings.scratch is None:
        return os.path.join(request.record, IN_RECORD)
    root = os.path.dirname(request.record)
    return os.path.join(scratch_of(settings.scratch), name_in_scratch(root, request.container))


def owner_of(record: str, rootfs: str) -> Owner:
    """Return the owner of a bundle that this process stages."""
    root, container = os.path.split(record)
    return Owner(container, root, myself(), rootfs)


def read_owner(directory: str) -> Owner | None:
    """Return the owner of a staged bundle, or None if it is unknown."""
    try:
        return decode_as(read_regular(os.path.join(directory, OWNER), _LONGEST), Owner)
    except (OSError, msgspec.DecodeError):
        return None


def scratch_of(pattern: str) -> str:
    """Return this user's scratch directory: `%u` is the user name, if any, `%U` the uid."""
    uid = os.getuid()
    user = user_of(uid)
    if user is None and "%u" in pattern.replace("%%", ""):
        raise StagingError(
            f"[staging] scratch = {pattern!r}: uid {uid} has no user name: use %U, the uid, "
            "instead of %u"
        )
    values = {"u": user.name if user else str(uid), "U": str(uid)}
    return substitute(pattern, values, shell=False)


def beginning(root: str) -> str:
    """Return the prefix of the names of this root directory's bundles."""
    return f"scrun-{root_name(root)}-"


def name_in_scratch(root: str, container: str) -> str:
    """Return a unique name for a container's staged bundle."""
    name = beginning(root) + container
    if len(name) <= _NAME_MAX:
        return name
    digest = blake2s(container.encode(), digest_size=8).hexdigest()
    return f"{name[: _NAME_MAX - len(digest) - 1]}.{digest}"


def volumes_in(base: str, root: str) -> str:
    """Return the directory of the volumes that containers of a root directory share."""
    return os.path.join(base, f"~volumes-{root_name(root)}")


def beside(directory: str) -> str:
    """Return the directory of what outlives a staged bundle: of all of a user's, or the root."""
    folder, name = os.path.split(directory)
    return os.path.dirname(folder) if name == IN_RECORD else folder


def kept_prefix(container: str) -> str:
    """Return how the names of a container's kept changes begin.

    No container's id begins so, nor the names that a supervisor looks for.
    """
    return f"~kept-{container[:_LONGEST_ID]}-"
