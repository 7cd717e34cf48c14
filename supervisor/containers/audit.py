"""The audit: who ran what where, for the site (`[log] audit` of its own settings file).

A line of JSON for each `create`, `start`, `exec` and `end` of a container. It has no value of a
variable, no argument and no message, any of which may be secret. `container` and `created` tell
which container it is.

A record says where the end of its container has yet to be written, so whoever cleans up after a
dead supervisor writes it. That may have died after it had written a line and before it could note
that: a file is looked at for it.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any, TypeVarTuple

import msgspec
import trio

from scrun.cli.syslog import DEV_LOG, packets
from scrun.core.errors import ScrunError, SettingsError
from scrun.core.paths import real_id
from scrun.model.record import Record, exit_status
from scrun.model.usage import read_usage
from scrun.oci.config import Bundle
from scrun.settings.file.load import Settings
from scrun.settings.slurm.request_sources import gather
from scrun.supervisor.containers.ledger import NODES, Ledger, now
from scrun.supervisor.containers.names import recorded
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core.threads import in_thread

JOURNAL = "/run/systemd/journal/socket"

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_IDENTIFIER = "scrun-audit"
_OF_DAEMONS = {"syslog": 8000, "journald": 32_000}
"""The longest lines, in bytes: a daemon cuts, or refuses, longer ones."""
_OF_FILES = 1 << 20
_LONGEST_WORD = 512
_TAIL = 1 << 20
_PATIENCE = 5.0
_DAEMON = 2.0
_SILENT = "does not answer"

Ts = TypeVarTuple("Ts")


class Trail:
    """What the audit has of a container; nothing if its record names no place for that."""

    def __init__(self, ledger: Ledger, say: Callable[[str], None], *, required: bool) -> None:
        """`say`: says something on the container's standard error."""
        self._ledger = ledger
        self._say = say
        self._required = required
        self._has_begun = bool(ledger.record.pid)  # an adopted one
        self._lines: deque[dict[str, Any]] = deque()
        self._is_written = ledger.record.is_audited  # its first line
        self._turn = threading.Lock()  # of threads

    @property
    def place(self) -> str:
        """Where its end has yet to be written; "" for one that ends before its first line."""
        return self._ledger.record.audit if self._has_begun else ""

    async def created(self, request: JobRequest, bundle: Bundle, settings: Settings) -> None:
        """Write that it is about to be created; wait for that if nothing may begin without it.

        Raises:
            SettingsError: It cannot be written, and has to be.
        """
        if self._ledger.record.audit:
            self._has_begun = True
            mounts = [mount.source for mount in bundle.config.mounts if mount.is_bind]
            requests = (
                _requests(request, settings) if self._ledger.record.engine == "slurm" else []
            )
            program = bundle.config.process.args[0][:_LONGEST_WORD]
            self.add("create", program=program, requests=requests, mounts=mounts)
            if not self._required:
                self._begin()
            elif why := await self.flush():
                self._ledger.note(audit="")
                raise SettingsError(why)

    def started(self) -> None:
        """Write that it runs."""
        if self.add("start"):
            self._begin()

    def note(self, *, ends: bool) -> None:
        """Note in its record, with the next change, what is known of its lines."""
        place = self.place if ends else self._ledger.record.audit
        self._ledger.note(audit=place, is_audited=self._is_written, later=True)

    async def runs(self, program: str) -> None:
        """Write that a program of `exec` is about to run.

        Raises:
            SettingsError: It cannot be written, and has to be.
        """
        self.add("exec", program=program[:_LONGEST_WORD])
        if (why := await self.flush()) and self._required:
            raise SettingsError(why)

    async def ended(self) -> None:
        """Write how it has ended, which its record says."""
        record = self._ledger.record
        if not record.audit:
            return
        if self._lines or self._is_written:
            self._lines.append(_fields_of_end(record))
            await self.flush()
        elif why := await write_end(record):  # its first supervisor died with the first line
            self._ledger.journal.write("error", why)
        self._ledger.note(audit="", later=True)  # what it leaves is noted next

    def add(self, event: str, **more: object) -> bool:
        """Let `flush` write a line about it; return whether that is necessary."""
        if self._ledger.record.audit:
            self._lines.append(_fields(self._ledger.record, event, **more))
        return bool(self._lines)

    def _begin(self) -> None:
        """Write the lines while nobody waits: that would take five times as long as a line."""
        token, target = trio.lowlevel.current_trio_token(), self._ledger.record.audit

        def write() -> None:
            if why := self._drain(target):
                with contextlib.suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._not_written, why)

        with contextlib.suppress(RuntimeError):  # there is no thread: the next line comes with it
            trio.lowlevel.start_thread_soon(write, methodcaller("unwrap"))

    def _not_written(self, why: str) -> None:
        self._failed(why)
        if self._ledger.record.audit and not self._is_written:  # nor is any other then
            self._ledger.note(audit="")
            self._say(why)

    def _failed(self, why: str) -> None:
        self._ledger.journal.write("error", why)

    async def flush(self) -> str:
        """Write the lines that are not written yet, in their order; return why not, or ""."""
        why = await _patiently(self._drain, self._ledger.record.audit) if self._lines else ""
        if why:
            self._failed(why)
        return why

    def _drain(self, target: str) -> str:
        """Write the lines, also those of another thread that hangs; return why not. Blocks."""
        why = ""
        if not self._turn.acquire(timeout=_PATIENCE):
            return _told(target, _SILENT)
        try:
            while self._lines:
                is_first = self._lines[0]["event"] == "create"
                failed = _written(target, self._lines[0])
                self._is_written |= is_first and not failed
                why = failed or why
                self._lines.popleft()
                if is_first and failed:
                    self._lines.clear()
        finally:
            self._turn.release()
        return why


async def write_end(record: Record) -> str:
    """Write the end of a container whose supervisor has died, unless that has done it.

    Returns:
        Why it is not written, or "".
    """
    known, why = None, ""
    with trio.move_on_after(_PATIENCE):
        known = await in_thread(_tail, record.audit, abandon=True)
    if not record.is_audited and known is not None and not _has(known, record, "create"):
        why = await _patiently(_written, record.audit, _fields(record, "create"))
    if known is None or not _has(known, record, "end"):
        why = await _patiently(_written, record.audit, _fields_of_end(record)) or why
    return why


async def _patiently(call: Callable[[str, *Ts], str], target: str, *args: *Ts) -> str:
    """Have a thread write to a target; return why that is not possible, or ""."""
    with trio.move_on_after(_PATIENCE, shield=True):
        return await in_thread(call, target, *args, abandon=True)
    return _told(target, _SILENT)


def _written(target: str, fields: Mapping[str, Any]) -> str:
    """Write one line; return why that is not possible, or "". Blocks."""
    try:
        _write(target, fields)
    except OSError as error:
        return _told(target, error.strerror or str(error))
    return ""


def _told(target: str, reason: str) -> str:
    return f"log.audit: {target}: {reason}"


def _fields(record: Record, event: str, **more: object) -> dict[str, Any]:
    names = recorded(record)
    return {
        "time": now(),
        **_key(record, event),
        "uid": real_id("uid"),
        "name": names.container,
        "image": names.image,
        "digest": names.digest,
        "pod": names.pod,
        "engine": record.engine,
        "job": record.job_id,
        "nodes": record.annotations.get(NODES, ""),
        **more,
    }


def _fields_of_end(record: Record) -> dict[str, Any]:
    return _fields(
        record,
        "end",
        status=exit_status(record.annotations),
        reason=record.annotations.get("org.scrun.reason", ""),
        usage=msgspec.to_builtins(read_usage(record.annotations)),
    )


def _key(record: Record, event: str) -> dict[str, str]:
    return {"event": event, "container": record.id, "created": record.created}


def _requests(request: JobRequest, settings: Settings) -> list[str]:
    """Return what the job is asked for, as scrun.toml spells it."""
    slurm, environment = settings.slurm, request.child_env.environment
    with contextlib.suppress(ScrunError):  # the engine refuses it
        wanted = gather(
            environment, request.config_requests, slurm.defaults, request.flags, slurm.allow
        )
        found = wanted.requests.items()
        return [f"{key.removeprefix('SCRUN_').lower()}={text}" for key, text in found]
    return []


def _write(target: str, fields: Mapping[str, Any]) -> None:
    """Write one line. Blocks.

    Raises:
        OSError: It is not written.
    """
    text = _text(fields, _OF_DAEMONS.get(target, _OF_FILES))
    if target == "syslog":
        for packet in packets("info", text, time.localtime(), f"{_IDENTIFIER}[{os.getpid()}]"):
            _send(packet, DEV_LOG)
    elif target == "journald":
        told = f"MESSAGE={text}\nPRIORITY=6\nSYSLOG_IDENTIFIER={_IDENTIFIER}\n"
        _send(told.encode(), JOURNAL)
    else:
        _append(f"{text}\n".encode(), target)


def _append(line: bytes, path: str) -> None:
    fd = os.open(path, _FLAGS, 0o600)
    try:
        if os.write(fd, line) < len(line):  # in one call, so that lines of several stay whole
            raise OSError("the disk is full")
    finally:
        os.close(fd)


def _send(packet: bytes, path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        datagrams.settimeout(_DAEMON)
        datagrams.sendto(packet, path)


def _tail(target: str) -> bytes | None:
    """Return the last lines; None if they cannot be read. Blocks."""
    if target in _OF_DAEMONS:
        return None
    try:
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError:
        return None
    try:
        return os.pread(fd, _TAIL, max(0, os.fstat(fd).st_size - _TAIL))
    except OSError:
        return None
    finally:
        os.close(fd)


def _has(lines: bytes, record: Record, event: str) -> bool:
    return _json(_key(record, event))[1:-1].encode() in lines


def _text(fields: Mapping[str, Any], most: int) -> str:
    """Return a line; it says how much of a list is left out."""
    told = {
        key: [word[:_LONGEST_WORD] for word in value] if isinstance(value, list) else value
        for key, value in fields.items()
    }
    for key in ("mounts", "requests"):
        while told.get(key) and len(_json(told)) > most:
            told[key] = told[key][: len(told[key]) // 2]
            told[f"{key}_left_out"] = len(fields[key]) - len(told[key])
    return _json(told)


def _json(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
