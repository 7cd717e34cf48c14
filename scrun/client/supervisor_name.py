"""Which supervisor serves a container: its name."""

import os

from scrun.cli.parse import Parsed
from scrun.core.version import VERSION

OWN = "@pod-"
"""How the names of supervisors begin that serve one pod, or one container."""


def supervisor_name(group: str, parsed: Parsed) -> str:
    """Name the socket of the supervisor that serves a new container.

    A supervisor works in its own namespaces and speaks its own version's protocol: these are
    part of the name, and so is what the setting `group` keeps apart. `@` cannot begin a
    container's id.
    """
    namespaces = "-".join(
        str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("user", "mnt", "pid")
    )
    key = ""
    if group == "container":
        key = parsed.id or ""
    elif group == "pod":
        from scrun.core.pods import pod_of

        key = pod_of(parsed.text("bundle") or ".", parsed.text("config")) or parsed.id or ""
    return f"@{group}{_digest(key)}-{namespaces}-{VERSION}"


def _digest(key: str) -> str:
    """Shorten a key: a pod's or container's name may fill a whole file name by itself."""
    if not key:
        return ""
    from _blake2 import blake2s

    return "-" + blake2s(key.encode(errors="surrogatepass"), digest_size=8).hexdigest()
