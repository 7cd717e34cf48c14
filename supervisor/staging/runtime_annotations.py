"""The annotations of config.json that a runtime on a node obeys, and those of them that it gets.

An image has annotations, too, and crun(1) takes orders by them: it connects to sockets, writes to
files, loads libraries and takes seccomp filters. So only those pass that are named here, each with
the reason why no image gains anything by it. Annotations that no runtime knows pass, as they mean
nothing to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrun.supervisor.staging.plan import Notes

OBEYED = ("run.oci.", "krun.", "module.wasm.", "org.criu.")
"""How the names of those begin that crun or runc obeys, now or in later versions.

Not `org.systemd.property.`, which engines set: it is about a cgroup, and none is made in a job.
"""

PASSED = {
    "run.oci.keep_original_groups": (
        "the container keeps the groups of the user, whose jobs have them in any case"
    ),
    "run.oci.seccomp_fail_unknown_syscall": (
        "system calls that the runtime does not know fail in another way; none more is permitted"
    ),
    "module.wasm.image/variant": (
        "says what the program is; the runtime runs it with the container's rights"
    ),
}
"""Those that pass, and why."""


def fit_annotations(
    config: dict[str, Any], notes: Notes, submitted: Mapping[str, str] | None = None
) -> None:
    """Remove the annotations that a runtime on a node would obey, except those that pass.

    Args:
        config: The config.json, which is changed.
        submitted: Those of the config.json that a site's script has got: it is trusted with any
            that it has added or changed. None: no script has seen them.
    """
    annotations = config.get("annotations")
    if not annotations:
        return
    for name in [*annotations]:
        if submitted is not None and submitted.get(name) != annotations[name]:
            continue
        if name.startswith(OBEYED) and name not in PASSED:
            notes.drop(annotations, "annotations.", name, "an image may ask the runtime for it")
            notes.miss(f"--annotation {name}")
