"""Which pod a container belongs to, by the annotations of the engine that made its bundle.

Measured with podman 4.3.1 (`podman pod`, `podman kube play`, podman-compose): every member of a
pod has `io.kubernetes.cri-o.SandboxID`. That is the id of the pod's infra container, which itself
has no annotation of the kind; in a pod without one (`--infra=false`) it is the id of the pod.
containerd's and CRI-O's sandboxes name themselves. So a container without such an annotation
belongs to the pod of its own id, and in most cases is alone there.
"""

import json
import os

from scrun.core.paths import read_regular

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

ANNOTATIONS = (
    "org.scrun.pod",  # by hand
    "io.kubernetes.cri-o.SandboxID",  # podman, CRI-O
    "io.kubernetes.cri.sandbox-id",  # containerd
)
"""What names a pod; the first that is there counts."""


def named_pod(annotations: "Mapping[str, object]") -> "str | None":
    """Return what the annotations of a config.json call its pod, or None."""
    names = (annotations.get(key) for key in ANNOTATIONS)
    return next((name for name in names if isinstance(name, str) and name), None)


def pod_of(bundle: str, config: "str | None") -> "str | None":
    """Return the pod's name, or None when the bundle has none.

    A bundle that cannot be read has none: what is wrong with it is for the supervisor to say.
    """
    try:
        return named_pod(_config(bundle, config)["annotations"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def wants_terminal(bundle: str, config: "str | None") -> bool:
    """Tell whether a bundle's program gets a terminal; as for `pod_of`, not if it is wrong."""
    try:
        return _config(bundle, config)["process"]["terminal"] is True
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _config(bundle: str, config: "str | None") -> "dict[str, Any]":
    content = read_regular(config or os.path.join(bundle, "config.json"))
    read: dict[str, Any] = json.loads(content)
    return read
