"""The record of one container: the directory ROOT/ID.

`state.json` holds everything that `state` and a later `delete` need when the supervisor is gone;
it is replaced as a whole (rename), so a reader sees one version or the other. `supervisor` is a
symbolic link to the socket of the supervisor that serves the container: commands connect through
it without reading anything. `log` is the container's log, and
`bundle` the staged bundle unless the settings name a shared place.

An older or newer scrun may have written the record: unknown members are ignored, missing ones
have defaults.
"""

import errno
import json
import os

import msgspec

from scrun.core.errors import StateError
from scrun.core.paths import read_regular
from scrun.model.waiting import OF_WAITING
from scrun.oci.config import explain
from scrun.oci.document import VALUES
from scrun.oci.state import render_state

_DAMAGED = (errno.EINVAL, errno.EFBIG, errno.ELOOP)

ENDING_SINCE = "org.scrun.ending_since"
"""The annotation that says when a container's end came, or was asked for."""

OUTPUT = "output"
"""The file in a record with what the container has written, if `run --detach` keeps it."""

TIMES = ".times"
"""Ends the name of a file that says when that one has grown: lines `SECONDS BYTES`.

From so many bytes on, those that are gone included, it was written in that second, or later.
"""


class Moved(msgspec.Struct, frozen=True):
    """What a script's stage_out has to know.

    Attributes:
        script: The scrun.lua.
        bundle: The bundle that the step runs.
        original_bundle: The submitted one.
        root: Its root file system.
        original_root: The submitted one's.
        spool: The script's directory for temporary files.
        config_file: The submitted config.json.
        user: The real uid of the job's user.
        group: Its gid.
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
    """A process of this or another machine, told from all others that have its number.

    Attributes:
        pid: Its number, in its PID namespace.
        started: When it began, in clock ticks since the machine's start (proc_pid_stat(5)).
        pid_namespace: The inode of that namespace.
        boot: The machine's boot_id: another one with each start (random(4)).
        host: The machine's name.
    """

    pid: int
    started: int = 0
    pid_namespace: int = 0
    boot: str = ""
    host: str = ""


class Record(msgspec.Struct, frozen=True):
    """What is on disk about one container.

    Attributes:
        id: The container's id.
        status: creating, created, running or stopped.
        pid: The anchor's pid.
        bundle: The submitted bundle, absolute.
        oci_version: Of its config.json.
        engine: Where it runs: "slurm", "local", or another plugin's name.
        stager: Who has staged it, likewise; "" in older records.
        job_id: The job, as soon as it is known; pending ones included.
        owns_job: Whether the job ends with the container.
        staged: The directory that stage in made and stage out removes, or "".
        moved: What a script has staged in and not yet staged out.
        annotations: config.json's, and ours (`org.scrun.*`).
        created: When `create` was called, in UTC as RFC 3339 has it; "" in older records.
        rootfs: The submitted root file system, absolute.
        pod: What its pod is called, if it is in one; "" otherwise.
        engine_settings: What the engine needs to release the job later (slurm.conf and so on).
        format: Of the record: 2 has its supervisor; a scrun that adopts containers will need more.
        supervisor: Who serves it, or undoes what is left of it. Whether that one still does, the
            record's lock tells.
        until_delete: Its job is over, but for what `delete` has to do there: there are hooks for
            that moment.
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

    @property
    def is_left(self) -> bool:
        """Whether something of it outside of the record may be there still."""
        return self.holds_job or bool(self.staged or self.moved)

    @property
    def is_unfinished(self) -> bool:
        """Whether something of it has to be undone although nobody has deleted it."""
        waits = self.until_delete and not (self.staged or self.moved)
        return self.status != "stopped" or (self.is_left and not waits)

    @property
    def holds_job(self) -> bool:
        """Whether it has a job that is its own."""
        return bool(self.job_id and self.owns_job)


def read_record(directory: str) -> Record:
    """Read ROOT/ID/state.json.

    Raises:
        StateError: It is missing, or damaged; `delete --force` removes what is left then.
        OSError: It cannot be read.
    """
    path = os.path.join(directory, "state.json")
    container = os.path.basename(directory)
    try:
        content = read_regular(path)
        if content.count(b",") > VALUES:
            raise ValueError(f"has more than {VALUES} values")
        document = json.loads(content)
        # half a character is in no text that we write; the bytes of a path may be any
        os.fsencode(json.dumps(document, ensure_ascii=False))
    except FileNotFoundError:
        raise StateError(f"container {container}: its record is incomplete; delete it") from None
    except OSError as error:
        if error.errno in _DAMAGED:
            raise StateError(f"{path}: {error.strerror}; delete the container") from None
        raise
    except (ValueError, RecursionError) as error:
        raise StateError(f"{path}: {error}; delete the container") from error
    try:
        return msgspec.convert(document, Record)
    except msgspec.ValidationError as error:
        raise StateError(f"{path}: {explain(error, document)}; delete the container") from error
    except UnicodeEncodeError as error:  # such bytes, where no text belongs
        raise StateError(f"{path}: {error}; delete the container") from error


FORMAT = 2
"""Of the records that this scrun writes."""


def undone(record: Record) -> str:
    """Say what is left to undo of a container that is being ended, and since when."""
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


LOST = {"org.scrun.reason": "scrun-failure", "org.scrun.message": "the supervisor was lost"}
"""Annotations of a container that its supervisor's death has ended."""


def stopped_state(record: Record) -> bytes:
    """Render the answer to `state` for a container that nobody serves any more.

    Its supervisor's death ended the job and the anchor, so it is stopped.
    """
    return render_state(
        record.oci_version, record.id, "stopped", 0, record.bundle, of_the_lost(record)
    )


def of_the_lost(record: Record) -> dict[str, str]:
    """Return the annotations of a container that nobody serves any more: it waits for nothing."""
    known = {name: text for name, text in record.annotations.items() if name not in OF_WAITING}
    return {**LOST, **known}


def write_record(directory: str, record: Record) -> None:
    """Replace ROOT/ID/state.json.

    Raises:
        OSError: The file system is full, or the directory is gone.
    """
    temporary = os.path.join(directory, ".state.json")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(temporary, flags, 0o600), "wb") as file:
        # A path need not be UTF-8. json, unlike msgspec, can say and read that.
        file.write(json.dumps(msgspec.to_builtins(record)).encode())
    os.rename(temporary, os.path.join(directory, "state.json"))
