"""The answer to `state`.

After the OCI runtime spec, runtime.md, "State". The members come in the order in which Slurm's
scrun prints them, indented as runc does it.
"""

import json
from collections.abc import Mapping

from scrun.core.text import escaped


def render_state(
    oci_version: str,
    id: str,  # noqa: A002 (the spec's name)
    status: str,
    pid: int,
    bundle: str,
    annotations: Mapping[str, str],
) -> bytes:
    """Render the state of a container as JSON.

    Args:
        oci_version: The version of the runtime spec that the state follows.
        id: The container's id.
        status: `creating`, `created`, `running` or `stopped`.
        pid: The anchor's; 0 is shown for a stopped container, because another process may
            have got its number by now.
        bundle: The bundle's directory, as it was submitted.
        annotations: Those of config.json, and `org.scrun.*`.
    """
    state = {
        "ociVersion": oci_version,
        "id": id,
        "status": status,
        "pid": 0 if status == "stopped" else pid,
        "bundle": bundle,
        "annotations": dict(annotations),
    }
    # A path that is not UTF-8 cannot be said in JSON; it must not make the answer invalid.
    text = json.dumps(state, indent=2, ensure_ascii=False)
    return escaped(text.encode("utf-8", "replace").decode()).encode() + b"\n"
