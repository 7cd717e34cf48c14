"""Which pod a bundle belongs to, by the annotation of the engine that made it."""

import json
import os

ANNOTATIONS = (
    "io.kubernetes.cri.sandbox-id",  # containerd
    "io.kubernetes.cri-o.SandboxID",  # CRI-O, and podman's play kube
    "io.podman.annotations.pod-id",
    "org.scrun.pod",
)


def pod_of(bundle: str, config: "str | None") -> "str | None":
    """Return the pod's id, or None when the bundle names none.

    A bundle that cannot be read names none: what is wrong with it is for the supervisor to say.
    """
    try:
        with open(config or os.path.join(bundle, "config.json"), "rb") as file:
            annotations = json.load(file)["annotations"]
        return next((str(annotations[key]) for key in ANNOTATIONS if key in annotations), None)
    except (OSError, ValueError, KeyError, TypeError):
        return None
