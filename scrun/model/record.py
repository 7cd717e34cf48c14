"""The record of one container: the directory ROOT/ID.

`state.json` holds everything that `state` and a later `delete` need when the supervisor is gone;
it is replaced as a whole (rename), so a reader sees one version or the other. `supervisor` is a
symbolic link to the socket of the supervisor that serves the container: commands connect through
it without reading anything. `log` is the container's log, and `bundle` the staged bundle, unless
the settings name a shared directory for it.

An older or newer scrun may have written the record: unknown members are ignored, missing ones
have defaults.
"""

import errno
import json
import os
import re
from collections.abc import Mapping

import msgspec

from scrun.core.errors import StateError, why
from scrun.core.paths import read_regular
from scrun.core.pods import BY_HAND
from scrun.core.text import escaped
from scrun.core.typed import convert
from scrun.model.lost import LOST
from scrun.model.waiting import OF_WAITING
from scrun.oci.config import explain
from scrun.oci.document import VALUES

_DAMAGED = (errno.EINVAL, errno.EFBIG, errno.ELOOP)
_MAY_BE_HALF = re.compile(rb"\\u[dD]|[^\x01-\x7f]")

_OURS = "org.scrun."
ENDING_SINCE = "org.scrun.ending_since"
"""The annotation that says when a container began to end."""

CONTAINER_NAME, POD_NAME = "org.scrun.name", "org.scrun.pod_name"
"""The annotations that say how people call it, and its pod."""

IMAGE_NAME, IMAGE_DIGEST = "org.scrun.image.name", "org.scrun.image.digest"
"""The annotations that name its image, and the digest of the image's manifest."""

OUTPUT = "output"
"""The file in a record with the container's output, if `run --detach` captures it."""

TIMES = ".times"
"""Suffix of the file that says when the output was written: lines `SECONDS BYTES`.

The output from that byte on was written in that second or later. Bytes that a limit has removed
count as well.
"""


class Moved(msgspec.Struct, frozen=True):
    """What a script's stage_out needs to know.

    `bundle` and `root` are what the step runs; `original_…` and `config_file` what was submitted.
    `spool` is the script's directory for temporary files; `user` and `group` are real ids.
    """

    script: str
    bundle: str
    original_bundle: str
    root: str
    original_root: str
    spool: str
    config_file: str
    user: int
    group: int


class ProcessIdentity(msgspec.Struct, frozen=True):
    """Identifies a process, on this or another machine, even after its pid was used again.

    Attributes:
        pid: Its number, in its PID namespace.
        started: When it started, in clock ticks since the machine's boot (proc_pid_stat(5)).
        pid_namespace: The inode of that namespace.
        boot: The machine's boot_id, which changes with each boot (random(4)).
        host: The machine's name.
    """

    pid: int
    started: int = 0
    pid_namespace: int = 0
    boot: str = ""
    host: str = ""


class Record(msgspec.Struct, frozen=True):
    """The content of `state.json`.

    Attributes:
        pid: The anchor's pid.
        oci_version: `ociVersion` of its config.json.
        engine, stager: Names of plugins, "slurm", "builtin"; the stager is "" in older records.
        job_id: The job, as soon as it is known, even if it is pending.
        owns_job: Whether the job ends with the container.
        staged: The directory that stage in made and stage out removes, or "".
        moved: What a script has staged in and not yet staged out.
        annotations: Those of config.json, and scrun's own (`org.scrun.*`).
        created: When `create` was called, in UTC (RFC 3339); "" in older records.
        rootfs: The submitted root file system; like the bundle absolute.
        engine_settings: What the engine needs to release the job later (slurm.conf and so on), and
            the job in which it was called, with how often that had been requeued.
        format: The record's format; from 2 on it names its supervisor.
        supervisor: The supervisor that serves the container or cleans up after it. The record's
            lock tells whether that one is still alive.
        until_delete: The job is kept only for hooks that run at `delete`.
        goes_with_run: Nobody but a `run` deletes it, which may have ended with a step of Slurm's.
        audit: Where its end has yet to be written (`[log] audit`); "" if it need not be.
        is_audited: Whether its beginning is known to be there.
    """

    id: str
    status: str = "creating"
    pid: int = 0
    bundle: str = ""
    oci_version: str = "1.0.2"
    engine: str = ""
    stager: str = ""
    job_id: str = ""
    owns_job: bool = True
    staged: str = ""
    moved: Moved | None = None
    annotations: dict[str, str] = {}
    created: str = ""
    rootfs: str = ""
    pod: str = ""
    engine_settings: dict[str, str] = {}
    format: int = 1
    supervisor: ProcessIdentity | None = None
    until_delete: bool = False
    goes_with_run: bool = False
    audit: str = ""
    is_audited: bool = True

    @property
    def is_left(self) -> bool:
        """Whether something of it may be left outside the record."""
        return self.holds_job or bool(self.staged or self.moved)

    @property
    def is_unfinished(self) -> bool:
        """Whether it has to be cleaned up even before somebody deletes it."""
        waits = self.until_delete and not (self.staged or self.moved)
        is_left = self.audit or self.goes_with_run or (self.is_left and not waits)
        return self.status != "stopped" or bool(is_left)

    @property
    def holds_job(self) -> bool:
        """Whether it has a job of its own."""
        return bool(self.job_id and self.owns_job)


def read_record(directory: str) -> Record:
    """Read ROOT/ID/state.json; StateError if it is damaged: `delete --force` helps then."""
    path = os.path.join(directory, "state.json")
    container = os.path.basename(directory)
    try:
        content = read_regular(path)
        if content.count(b",") > VALUES:
            raise ValueError(f"has more than {VALUES} values")
        document = json.loads(content)
        if _MAY_BE_HALF.search(content):
            # scrun never writes half a character; a path may contain any bytes
            os.fsencode(json.dumps(document, ensure_ascii=False))
    except FileNotFoundError:
        raise StateError(f"container {container}: its record is incomplete; delete it") from None
    except OSError as error:
        if error.errno in _DAMAGED:
            raise StateError(f"{path}: {why(error, 'delete the container')}") from None
        raise
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: {error}; delete the container") from error
    try:
        return convert(document, Record)
    except msgspec.ValidationError as error:
        raise StateError(f"{path}: {explain(error, document)}; delete the container") from error
    except UnicodeEncodeError as error:  # such bytes in the name of a member
        raise StateError(f"{path}: {error}; delete the container") from error


def of_config(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return those annotations of config.json that count.

    An image may have written them, so it cannot say what only scrun knows, such as how the
    container ended; but which pod it is in, its user says there.
    """
    return {
        name: text
        for name, text in annotations.items()
        if name == BY_HAND or not name.startswith(_OURS)
    }


def exit_status(annotations: Mapping[str, str]) -> int | None:
    """Return a container's exit status; None if nobody knows it."""
    text = annotations.get("org.scrun.exit_status", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None


FORMAT = 2
"""The format of the records that this scrun writes."""


def undone(record: Record) -> str:
    """Say what is left to clean up of a container that is ending, and since when."""
    if record.moved:
        what = f"stage_out of {record.moved.script}"
    elif record.staged:
        what = f"the staged bundle {record.staged}"
    elif record.holds_job:
        what = f"job {record.job_id}"
    else:
        what = "its end"
    since = record.annotations.get(ENDING_SINCE)
    return f"{what} since {since}" if since else what


def stopped_state(record: Record) -> bytes:
    """Render the answer to `state` for a container that nobody serves: it is stopped."""
    return render_state(
        record.oci_version, record.id, "stopped", 0, record.bundle, of_the_lost(record)
    )


def living_state(record: Record) -> bytes:
    """Render the answer to `state` for a container whose supervisor has died, and which lives."""
    return render_state(
        record.oci_version, record.id, record.status, record.pid, record.bundle,
        record.annotations,
    )  # fmt: skip


def of_the_lost(record: Record) -> dict[str, str]:
    """Return the annotations of a container that nobody serves any more; it waits for no job."""
    known = {name: text for name, text in record.annotations.items() if name not in OF_WAITING}
    return {**LOST, **known}


def write_record(directory: str, record: Record) -> None:
    """Replace ROOT/ID/state.json."""
    temporary = os.path.join(directory, ".state.json")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "wb") as file:
        # a path need not be UTF-8; json can write and read such a path, msgspec cannot
        file.write(json.dumps(msgspec.to_builtins(record)).encode())
    os.rename(temporary, os.path.join(directory, "state.json"))


def render_state(
    oci_version: str,
    id: str,  # noqa: A002 (the spec's name)
    status: str,
    pid: int,
    bundle: str,
    annotations: Mapping[str, str],
) -> bytes:
    """Render the state of a container as JSON; the arguments are those of `state_members`."""
    state = state_members(oci_version, id, status, pid, bundle, annotations)
    # a path need not be UTF-8, but the JSON must be
    text = json.dumps(state, indent=2, ensure_ascii=False)
    return escaped(text.encode("utf-8", "replace").decode()).encode() + b"\n"


def state_members(
    oci_version: str,
    id: str,  # noqa: A002 (the spec's name)
    status: str,
    pid: int,
    bundle: str,
    annotations: Mapping[str, str],
) -> dict[str, object]:
    """Return the members of a state; a stopped one has no pid, which may be another's."""
    return {
        "ociVersion": oci_version,
        "id": id,
        "status": status,
        "pid": 0 if status == "stopped" else pid,
        "bundle": bundle,
        "annotations": dict(annotations),
    }
