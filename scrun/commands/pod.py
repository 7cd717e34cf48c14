"""Which pod a container belongs to, by the annotations of the engine that made its bundle.

Measured with podman 4.3.1 (`podman pod`, `podman kube play`, podman-compose): every member of a
pod has `io.kubernetes.cri-o.SandboxID`. That is the id of the pod's infra container, which itself
has no annotation of the kind; in a pod without one (`--infra=false`) it is the id of the pod.
containerd's and CRI-O's sandboxes name themselves. So a container without such an annotation
belongs to the pod of its own id, and in most cases is alone there.
"""

import json
import os
import stat

from scrun.wire import LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

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
    name = config or os.path.join(bundle, "config.json")
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            with open(fd, "rb", closefd=False) as file:
                return named_pod(json.loads(file.read(LIMIT))["annotations"])
        finally:
            os.close(fd)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
