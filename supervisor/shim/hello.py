"""What the shim says first."""

import os
import sys
import zlib

from .frames import FROM_SRUN, PROTOCOL
from .json_text import dumps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# srun and slurmstepd hold longer messages back for some 40 ms, until the first KiB is acknowledged
_PLACE = (*FROM_SRUN, "SLURMD_NODENAME", "SLURM_STEP_ID")
_CONF = "/etc/slurm/slurm.conf"
_LARGEST = 1 << 20


def oci_conf(env: "Mapping[str, str]") -> "tuple[str, int]":
    """Return the node's oci.conf(5), and a sum by which another copy of it is known; or "" and 0.

    Args:
        env: The environment: slurmd tells its own slurm.conf there, and looks beside that.
    """
    path = os.path.join(os.path.dirname(env.get("SLURM_CONF") or _CONF), "oci.conf")
    try:
        with open(path, "rb") as file:
            return path, zlib.crc32(file.read(_LARGEST))
    except OSError:  # or the site keeps it from users
        return "", 0


def hello(runtime: str, directory: str, conf: "tuple[str, int]") -> bytes:
    """Return the event.

    Args:
        runtime: The path of the OCI runtime, or "".
        directory: The shim's directory.
        conf: What `oci_conf` returned.
    """
    event: dict[str, object] = {
        "event": "hello",
        "protocol": PROTOCOL,
        "node": os.uname().nodename,
        "pid": os.getpid(),
        "python": "{}.{}.{}".format(*sys.version_info),
        "runtime": runtime,
        "directory": directory,
        "oci_conf": conf[0],
        "oci_conf_sum": conf[1],
        "rank": int(os.environ.get("SLURM_PROCID") or 0),
        "environment": {name: os.environ[name] for name in _PLACE if name in os.environ},
    }
    return dumps(_as_utf8(event)).encode()


def _as_utf8(value: object) -> object:
    """Return a value whose texts are UTF-8: what is not is replaced."""
    if isinstance(value, dict):
        return {name: _as_utf8(one) for name, one in value.items()}
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return value
