"""Leaves a template of a container for others that are like it (`scrun.client.template`).

A template is what was made of the container before its program ran: what is in its record, its
config.json, and what a supervisor has to know that adopts another one. Slurm's variables, which
differ, are left out. None is made of a container with hooks, scripts, volumes, cgroups, a copy of
its root file system, or messages for its user: what these need is not in the record.
"""

import contextlib
import json
import marshal
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from scrun.core.place import is_of_task
from scrun.core.templates import FOLDER, signature
from scrun.core.whole_files import write_whole
from scrun.model.identity import myself
from scrun.model.record import Record
from scrun.model.usage import STARTED
from scrun.oci.config import Bundle
from scrun.settings.file.sources import SYSTEM_FILE
from scrun.supervisor.containers.keeping import known_of
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.staged import OVERLAY, Staged
from scrun.supervisor.core.deposits import Deposit
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.local.commands import made_by

_DAY = 86400.0
_MOST, _LARGEST = 500, 65536
_FOREVER = float("inf")
_SYSTEM = ("/etc/subuid", "/etc/subgid", "/etc/hosts", "/etc/resolv.conf", SYSTEM_FILE)
_IGNORED = ("security.selinux",)
_SHOWN = ("bundle/rootfs", f"bundle/{OVERLAY}/upper")
_OWN = 0o700
_OF_RECORD = ("bundle", "runtime.json")
Entry = tuple[str, str, int, int, list[tuple[str, bytes]], bytes]
"""Its kind, name, mode, time, extended attributes and content."""


class NotPossible(Exception):
    """There can be no template of a container; says why."""


async def leave(
    create_request: CreateRequest,
    bundle: Bundle,
    staged: Staged,
    ledger: Ledger,
) -> None:
    """Leave what others like it can be made from, if that is possible."""
    record, directory = ledger.record, ledger.directory
    try:
        await in_thread(_leave, create_request, bundle, staged, ledger.deposit, record, directory)
    except (NotPossible, OSError) as error:
        ledger.journal.write("verbose", f"no template for others like it: {error}")


def _leave(
    create_request: CreateRequest,
    bundle: Bundle,
    staged: Staged,
    deposit: Deposit,
    record: Record,
    directory: str,
) -> None:
    """Write a template. Blocks.

    Raises:
        NotPossible: There can be none.
        OSError: It cannot be written.
    """
    _check(create_request, bundle, staged, deposit, directory)
    commands = made_by(directory)
    if commands is None or not commands.runtime.takes_config or commands.cgroups:
        raise NotPossible("the runtime is not crun, or makes cgroups")
    root = os.path.dirname(directory)
    leases = os.path.join(os.path.dirname(bundle.path), "leases", os.path.basename(bundle.path))
    marks = _marks(record)
    runtime = commands.runtime
    content = {
        "id": record.id,
        "until": _until(bundle.path, create_request.settings.images.fresh),
        "depends": [
            (path, signature(path)) for path in _depends(create_request, bundle, runtime.path)
        ],
        "tree": list(_tree(directory)),
        "config": _config(directory, create_request),
        "variables": _names_of_container(directory, create_request),
        "state": _state(record, marks),
        "marks": marks,
        "crun": [runtime.path, *runtime.arguments],
        "bundle": bundle.path,
        "tells_usage": create_request.settings.log.usage,
        "leases": leases if os.path.isdir(leases) else "",
        "used": _used(bundle.path) if os.path.isdir(leases) else "",
        "taker": _taker(record.id, root),
        "remembered": json.dumps(_remembered(create_request, bundle)).encode(),
        "facts": json.dumps(_facts(deposit)).encode(),
    }
    folder = os.path.join(root, FOLDER)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    write_whole(os.path.join(folder, create_request.template), marshal.dumps(content))
    _remove_old(folder)


def _check(
    create_request: CreateRequest, bundle: Bundle, staged: Staged, deposit: Deposit, directory: str
) -> None:
    log, shown = create_request.settings.log, create_request.shown
    why_not = {
        "it does not outlive the supervisor": not deposit.is_kept,
        "it has hooks": bool(bundle.raw.get("hooks")),
        "it has a terminal": bundle.config.process.terminal,
        "its changes come back": not staged.final or staged.moved or staged.copied_from,
        "its files are not the image's": staged.image != "layers",
        "its user got a message": bool(staged.missed),
        "its bundle is elsewhere": staged.bundle != os.path.join(directory, "bundle"),
        "its parts are elsewhere": bool(staged.place or staged.tasks),
        "it has messages": (shown.stderr, shown.log) != ("quiet", "quiet")
        or log.file is not None
        or log.syslog_level != "quiet",
        "it is audited": log.audit is not None,
        "it has a file of its own beside it": any(
            name.startswith(".scrun-") for name in os.listdir(directory)
        ),
    }
    if reasons := [text for text, holds in why_not.items() if holds]:
        raise NotPossible(", ".join(reasons))


def _depends(create_request: CreateRequest, bundle: Bundle, runtime: str) -> Iterator[str]:
    """Yield the paths that have made it what it is; the caller's own are in the key."""
    yield from _SYSTEM
    yield runtime
    yield bundle.path
    yield os.path.realpath(os.path.join(bundle.path, bundle.rootfs))
    yield os.path.join(os.path.dirname(bundle.path), "tags")  # a name may mean something else
    if (conf := create_request.settings.slurm.conf) is not None:
        yield os.path.dirname(conf)  # a script, or an oci.conf, may come


def _until(image: str, fresh: float) -> float:
    """Return until when the name of an image means this one."""
    folder, key = os.path.split(image)
    when = _FOREVER
    with contextlib.suppress(OSError):
        for entry in os.scandir(os.path.join(folder, "tags")):
            with contextlib.suppress(OSError), open(entry.path, "rb") as file:
                if f'"key":"{key}"'.encode() in file.read(_LARGEST):
                    when = min(when, entry.stat().st_mtime)
    return when + fresh


def _tree(directory: str) -> Iterator[Entry]:
    """Yield what is in a record, directories before what is in them."""
    todo = [*_OF_RECORD]
    count = 0
    while todo:
        name = todo.pop(0)
        path = os.path.join(directory, name)
        if name == f"bundle/{OVERLAY}/trial":
            continue
        status = os.lstat(path)
        count += 1
        is_ours = (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
        if not is_ours or count > _MOST:
            raise NotPossible(f"{name} cannot be made again")
        more = [
            (each, os.getxattr(path, each, follow_symlinks=False))
            for each in os.listxattr(path, follow_symlinks=False)
            if each not in _IGNORED
        ]
        mode, at = stat.S_IMODE(status.st_mode), status.st_mtime_ns
        if stat.S_ISDIR(status.st_mode):
            shown = name.startswith(_SHOWN)  # the container can see these two
            yield "directory", name, mode, at if shown or mode != _OWN else 0, more, b""
            if not _is_the_kernels(name):
                todo += [os.path.join(name, each) for each in sorted(os.listdir(path))]
        elif stat.S_ISLNK(status.st_mode):
            yield "link", name, mode, at, more, os.fsencode(os.readlink(path))
        elif stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST:
            with open(path, "rb") as file:
                yield "file", name, mode, at, more, file.read()
        else:
            raise NotPossible(f"{name} cannot be made again")


def _is_the_kernels(name: str) -> bool:
    """Tell whether what is in a directory was made by the kernel when it mounted an overlay."""
    return os.path.dirname(name) == f"bundle/{OVERLAY}/work"


def _config(directory: str, create_request: CreateRequest) -> tuple[bytes, bytes]:
    """Return config.json before and after the variables of the task."""
    with open(os.path.join(directory, "config.json"), "rb") as file:
        config = msgspec.json.decode(file.read())
    process = config["process"]
    own = create_request.child_env.environment
    with open(os.path.join(directory, "bundle", "config.json"), "rb") as file:
        base = msgspec.json.decode(file.read())["process"].get("env") or []
    if not base or any(is_of_task(os.fsencode(entry)) for entry in _names(base)):
        raise NotPossible("its config.json has variables of Slurm's")
    if not any(is_of_task(os.fsencode(name)) for name in own):
        raise NotPossible("its task has no variables")
    mark = f"variables of {os.urandom(8).hex()}"
    of_container = _of_container(process["env"], create_request)
    process["env"] = [*base, *of_container, mark]
    before, _, after = msgspec.json.encode(config).partition(f'"{mark}"'.encode())
    return before, after


def _names_of_container(directory: str, create_request: CreateRequest) -> list[bytes]:
    with open(os.path.join(directory, "config.json"), "rb") as file:
        entries = msgspec.json.decode(file.read())["process"]["env"]
    return [os.fsencode(name) for name in _names(_of_container(entries, create_request))]


def _of_container(entries: list[str], create_request: CreateRequest) -> list[str]:
    """Return those of Slurm's variables that tell the container what it is, and not the task."""
    own = create_request.child_env.environment
    return [
        entry
        for entry in entries
        if is_of_task(os.fsencode(name := entry.partition("=")[0]))
        and own.get(name) != entry.partition("=")[2]
    ]


def _names(entries: list[str]) -> Iterator[str]:
    return (entry.partition("=")[0] for entry in entries)


def _marks(record: Record) -> dict[str, Any]:
    unique = os.urandom(6).hex()
    names = ("created", "job", "task", "called_in", "restarts", "node")
    texts = {name: f"{name} of {unique}" for name in names}
    number = int.from_bytes(os.urandom(5), "big") + (1 << 50)
    return {**texts, "pid": number, "started": number + (1 << 49)}


def _state(record: Record, marks: dict[str, Any]) -> bytes:
    annotations = {
        **record.annotations,
        "org.scrun.task": marks["task"],
        "org.scrun.job_id": marks["job"],
        "org.scrun.nodes": marks["node"],
        STARTED: marks["created"],  # milliseconds later
    }
    settings = {
        **record.engine_settings, "called_in": marks["called_in"], "restarts": marks["restarts"],
    }  # fmt: skip
    owner = msgspec.structs.replace(myself(), pid=marks["pid"], started=marks["started"])
    changed = msgspec.structs.replace(
        record,
        status="running",
        pid=marks["pid"],
        created=marks["created"],
        job_id=marks["job"],
        annotations=annotations,
        engine_settings=settings,
        supervisor=owner,
    )
    return json.dumps(msgspec.to_builtins(changed), ensure_ascii=False).encode()


def _taker(container: str, root: str) -> bytes:
    """Return a lease of the image (`scrun.images.leases`)."""
    taker = msgspec.to_builtins(myself()) | {"pid": "@pid", "started": "@started"}
    text = json.dumps({"id": container, "root": root, "taker": taker})
    return text.replace('"@pid"', "@pid").replace('"@started"', "@started").encode()


def _used(image: str) -> str:
    from scrun.images.store import FACTS

    return os.path.join(image, FACTS)


def _remembered(create_request: CreateRequest, bundle: Bundle) -> dict[str, Any]:
    known = known_of(create_request, bundle)
    known["request"]["child_env"]["environment"] = {}
    known["request"]["template"] = ""
    return known


def _facts(deposit: Deposit) -> dict[str, Any]:
    facts = msgspec.to_builtins(deposit.facts)
    return {name: fact for name, fact in facts.items() if name not in ("reaper", "start")}


def _remove_old(folder: str) -> None:
    """Remove those that nobody has renewed for a day."""
    before = time.time() - _DAY
    for entry in os.scandir(folder):
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_mtime < before:
                os.unlink(entry.path)
