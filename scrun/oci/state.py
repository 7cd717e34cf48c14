"""The answer to `state`.

It follows the OCI runtime spec, runtime.md, "State". The members are in the order of Slurm's
scrun, indented as in runc.
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

    `status`: `creating`, `created`, `running` or `stopped`. `pid` is the anchor's pid; a stopped
    container has 0, because another process may have its number by now. `annotations` are those of
    config.json, and `org.scrun.*`.
    """
    state = {
        "ociVersion": oci_version,
        "id": id,
        "status": status,
        "pid": 0 if status == "stopped" else pid,
        "bundle": bundle,
        "annotations": dict(annotations),
    }
    # a path need not be UTF-8, but the JSON must be
    text = json.dumps(state, indent=2, ensure_ascii=False)
    return escaped(text.encode("utf-8", "replace").decode()).encode() + b"\n"
