"""What templates of containers depend on (`scrun.client.template`): for their writer, too."""

import posix

FOLDER = "@templates"
"""Their directory in the root directory of the records."""

VARIABLE = b"SCRUN_TEMPLATE"
"""The variable by which a supervisor learns that it shall leave a template, and its key."""


def signature(path: "str | bytes") -> "tuple[int, ...] | None":
    """Return what differs when a path, or what a directory has, differs; None: there is none."""
    try:
        status = posix.stat(path)
    except OSError:
        return None
    return (
        status.st_dev, status.st_ino, status.st_mode, status.st_uid, status.st_size,
        status.st_mtime_ns,
    )  # fmt: skip
