"""Find the pod of a container, from the annotations of the engine that made its bundle.

Measured with podman 4.3.1 (`podman pod`, `podman kube play`, podman-compose): every member of a
pod has `io.kubernetes.cri-o.SandboxID`, the id of the pod's infra container, or of the pod if it
has no infra container (`--infra=false`). The infra container itself has no such annotation;
sandboxes of containerd and CRI-O name themselves. So a container without such an annotation
belongs to the pod of its own id, and usually is its only member.
"""

import json
import os

from scrun.core.paths import read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

BY_HAND = "org.scrun.pod"
ANNOTATIONS = (
    BY_HAND,
    "io.kubernetes.cri-o.SandboxID",  # podman, CRI-O
    "io.kubernetes.cri.sandbox-id",  # containerd
)
"""The annotations that name a pod; the first that is present counts."""


def named_pod(annotations: "Mapping[str, object]") -> "str | None":
    """Return the pod that the annotations of a config.json name, or None."""
    names = (annotations.get(key) for key in ANNOTATIONS)
    return next((name for name in names if isinstance(name, str) and name), None)


def pod_of(bundle: str, config: "str | None") -> "str | None":
    """Return the pod that a bundle names; None also if it cannot be read (it fails later)."""
    try:
        return named_pod(_config(bundle, config)["annotations"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def wants_terminal(bundle: str, config: "str | None") -> bool:
    """Tell whether a bundle's program gets a terminal; False for a bundle that cannot be read."""
    try:
        return _config(bundle, config)["process"]["terminal"] is True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _config(bundle: str, config: "str | None") -> "dict[str, Any]":
    content = read_regular(config or os.path.join(bundle, "config.json"))
    read: dict[str, Any] = json.loads(content)
    return read
