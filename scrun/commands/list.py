"""scrun list: the containers under the root directory.

It reads their records, and only connects to each supervisor: a container whose supervisor is gone
is stopped (docs/design.md), whatever its record says. If connecting fails in another way, the
record counts. A record that cannot be read becomes a row with the status `unknown`.

The members of the JSON are runc's, and `annotations`. Without containers, or without a root
directory, the list is empty.
"""

import json
import os
import re
from collections.abc import Mapping

from scrun.cli.columns import columns, fitted, listed
from scrun.cli.parse import Parsed, record_root
from scrun.client.find import containers
from scrun.client.reach import tidy_up
from scrun.client.supervisors import ANSWERS, ask_all
from scrun.core.errors import StateError
from scrun.core.output import say
from scrun.core.paths import looked
from scrun.core.text import escaped, is_unicode
from scrun.core.times import clock, of_stamp
from scrun.core.users import user_name
from scrun.model.adoption import is_held, living_record
from scrun.model.identity import is_dead
from scrun.model.record import (
    ProcessIdentity,
    Record,
    of_the_lost,
    read_record,
    render_state,
    state_members,
)
from scrun.model.waiting import ESTIMATED_START, PENDING
from scrun.protocol import wire

_PATIENCE = 2
"""Seconds to wait for each supervisor to accept a connection; a slow one counts as alive."""

Row = dict[str, object]
"""One container: the members that runc prints, and `annotations`."""

Known = dict[str, tuple[object, Record, Row]]
"""The version of each record, by directory, and what it says."""

HEAD = ("ID", "PID", "STATUS", "JOB", "NODES", "CREATED", "OWNER", "BUNDLE", "INFO")


def run(parsed: Parsed) -> int:
    root = record_root(parsed)
    if parsed.options.get("jobs"):
        say(jobs(root, parsed).encode("utf-8", "replace"))
        return 0
    ids = containers(root)
    lost: list[str] = []
    if parsed.options.get("quiet"):
        # for scripts, so it is fast: no record is read
        text = "".join(f"{container}\n" for container in ids)
    elif parsed.text("format") == "json":
        text = escaped(json.dumps(rows(root, ids, lost), indent=2, ensure_ascii=False)) + "\n"
    elif os.isatty(1) and not parsed.options.get("wide"):
        text = narrow(rows(root, ids, lost), os.get_terminal_size(1).columns or 80)
    else:
        text = table(rows(root, ids, lost))
    # a path need not be UTF-8, but JSON must be
    say(text.encode("utf-8", "replace"))
    if not parsed.options.get("quiet") and (lost or not looked(root)):
        tidy_up(parsed, root)
    return 0


def rows(
    root: str,
    ids: list[str],
    lost: list[str] | None = None,
    known: Known | None = None,
) -> list[Row]:
    """Return a row for each container, except those that are deleted meanwhile.

    `lost` is a list to which containers are added that a dead supervisor has left unfinished.
    `known` is what the last call found, for who calls again: where a record has not changed, its
    row is the same object.
    """
    known = {} if known is None else known
    look = _Look([] if lost is None else lost, known)
    directories = [os.path.join(root, container) for container in ids]
    for gone in {*known}.difference(directories):
        known.pop(gone, None)
    return [row for row in map(look.row, directories) if row is not None]


class _Look:
    """One look at records, most of which have an owner, a supervisor and its process in common."""

    def __init__(self, lost: list[str], known: Known) -> None:
        self._lost, self._known = lost, known
        self._served: dict[str, bool] = {}
        self._dead: dict[ProcessIdentity, bool] = {}
        self._owners: dict[int, str] = {}

    def row(self, directory: str) -> Row | None:
        try:
            record, row = self._read(directory)
            if record.is_unfinished and self._is_lost(directory, record):
                # it may just have ended, and its supervisor after it
                record = read_record(directory)
                row = self._row(directory, record, lost=record.status != "stopped")
                self._lost.append(record.id)
        except (OSError, StateError) as error:
            if not os.path.isdir(directory):
                return None
            state = {
                "ociVersion": "",
                "id": os.path.basename(directory),
                "pid": 0,
                "status": "unknown",
                "bundle": "",
                "annotations": {"org.scrun.message": str(error)},
            }
            return _complete(state, "", "", _owner_or_nobody(directory))
        return row

    def _row(self, directory: str, record: Record, *, lost: bool = False) -> Row:
        owner = self._owner(os.stat(directory).st_uid)
        return _complete(_state(record, lost=lost), record.rootfs, record.created, owner)

    def _owner(self, uid: int) -> str:
        if uid not in self._owners:
            self._owners[uid] = user_name(uid, "#{}")  # as runc has it
        return self._owners[uid]

    def _read(self, directory: str) -> tuple[Record, Row]:
        """Read a record, unless it is known: each change makes another file of it."""
        try:
            file = os.stat(f"{directory}/state.json", follow_symlinks=False)
            version = (file.st_ino, file.st_mtime_ns, file.st_size)
        except OSError:  # reading it says what is wrong
            version = None
        found = self._known.get(directory)
        if found is None or version is None or found[0] != version:
            record = read_record(directory)
            found = self._known[directory] = (version, record, self._row(directory, record))
        return found[1:]

    def _is_lost(self, directory: str, record: Record) -> bool:
        """Tell whether its supervisor died, and nothing is left that could be adopted."""
        if _is_served(directory, self._served):
            # a successor that listens already comes to those that nobody holds one by one
            return self._has_died(record.supervisor) and not is_held(directory)
        if living_record(directory) is not None:
            return False
        return not _is_served(directory, {})  # adopted, or ended, a moment ago

    def _has_died(self, supervisor: ProcessIdentity | None) -> bool:
        if supervisor is None:
            return False
        if supervisor not in self._dead:
            self._dead[supervisor] = is_dead(supervisor)
        return self._dead[supervisor]


def _complete(state: Mapping[str, object], rootfs: str, created: str, owner: str) -> Row:
    """Return the members in runc's order (`runc list`, type containerState)."""
    return {
        "ociVersion": state["ociVersion"],
        "id": state["id"],
        "pid": state["pid"],
        "status": state["status"],
        "bundle": state["bundle"],
        "rootfs": rootfs,
        "created": created,
        "annotations": state["annotations"],
        "owner": owner,
    }


def _state(record: Record, *, lost: bool = False) -> Mapping[str, object]:
    """Return the answer of `state`; `lost`: its supervisor died before the container had ended."""
    annotations = of_the_lost(record) if lost else record.annotations
    status = "stopped" if lost else record.status
    said = (record.oci_version, record.id, status, record.pid, record.bundle, annotations)
    texts = (record.oci_version, record.id, record.bundle, *annotations, *annotations.values())
    if is_unicode("".join(texts)):
        return state_members(*said)
    state: dict[str, object] = json.loads(render_state(*said))
    return state


def _is_served(directory: str, known: dict[str, bool]) -> bool:
    """Tell whether a supervisor accepts connections, or may; `known` are results, by socket."""
    try:
        socket = os.readlink(f"{directory}/supervisor")
    except OSError:
        socket = directory
    if socket not in known:
        try:
            wire.connect_supervisor(directory, "supervisor", _PATIENCE).close()
            known[socket] = True
        except wire.NOBODY:
            known[socket] = False
        except OSError:  # in doubt: no permission, no descriptors left
            known[socket] = True
    return known[socket]


def _owner_or_nobody(directory: str) -> str:
    try:
        return user_name(os.stat(directory).st_uid, "#{}")
    except OSError:
        return ""


# The jobs


def jobs(root: str, parsed: Parsed) -> str:
    """Return text about the jobs that wait (`[slurm] linger`); older supervisors keep none."""
    found: list[dict[str, object]] = []
    for status, answer in ask_all(root, [b"jobs"], ANSWERS):
        found += [] if status else json.loads(answer)
    return listed(
        parsed,
        found,
        name=lambda job: str(job["job_id"]),
        row=lambda job: job,
        head=("JOB", "NODES", "WAITS", "OPTIONS"),
        cells=lambda job: (
            str(job["job_id"]),
            str(job["nodes"]),
            f"{job['seconds']:.0f}s",
            _words(job["options"]),
        ),
    )


def _words(options: object) -> str:
    return " ".join(map(str, options)) if isinstance(options, list) else ""


# The table


def table(found: list[Row]) -> str:
    """Format rows as a table with all columns."""
    return columns(HEAD, map(_cells, found))


_NARROW = ("ID", "STATUS", "JOB", "NODES", "CREATED", "INFO")
_LONG_ID = re.compile("[0-9a-f]{64}")


def narrow(found: list[Row], width: int) -> str:
    """Format rows for a terminal, each in one line; ids are cut, as engines show them."""
    indexes = [HEAD.index(name) for name in _NARROW]
    lines = []
    for row in found:
        cells = _cells(row)
        identity, status, job, nodes, created, info = (cells[index] for index in indexes)
        lines.append((shortened(identity), status, job, nodes, _moment(created), info))
    return fitted(columns(_NARROW, lines), width)


def shortened(identity: str) -> str:
    """Return an id as engines show it."""
    return identity[:12] if _LONG_ID.fullmatch(identity) else identity


def _cells(row: Row) -> tuple[str, ...]:
    annotations = row["annotations"]
    assert isinstance(annotations, dict)
    return (
        str(row["id"]),
        str(row["pid"]),
        str(row["status"]),
        job_of(annotations),
        annotations.get("org.scrun.nodes", ""),
        str(row["created"]),
        str(row["owner"]),
        str(row["bundle"]),
        information(str(row["status"]), annotations),
    )


def job_of(annotations: Mapping[str, str]) -> str:
    """Return the job as Slurm knows it; that of a container in a task of srun's is the task's."""
    task = annotations.get("org.scrun.task", "")
    return task.partition(".")[0] or annotations.get("org.scrun.job_id", "")


def information(status: str, annotations: Mapping[str, str]) -> str:
    """Return the text of the column INFO: why the job is pending, or how the container ended."""
    if status == "running" and (since := annotations.get("org.scrun.ending_since", "")):
        return f"ending since {_moment(since)}"
    if status in ("creating", "created", "running"):
        reason = annotations.get(PENDING, "")
        start = annotations.get(ESTIMATED_START, "")
        parts = [f"pending: {reason}"] if reason else []
        if start:
            parts.append(f"starts about {_moment(start)}")
        return ", ".join(parts)
    if status == "unknown":
        return annotations.get("org.scrun.message", "")
    if status != "stopped":
        return ""
    ended = " ".join(
        filter(None, (annotations.get(f"org.scrun.{key}") for key in ("reason", "exit_status")))
    )
    return ": ".join(filter(None, (ended, annotations.get("org.scrun.message"))))


def _moment(stamp: str) -> str:
    """Format a time in RFC 3339 form as local time, with the date if it is not today."""
    moment = of_stamp(stamp)
    return stamp if moment is None else clock(moment)
