"""scrun run IMAGE: get an image into the store if it is not there, and run a container of it.

What the container writes is thrown away at its end, unless `--writable --name NAME` keeps it under
a name or `--save FILE` writes it into a file: then it has a copy of the image.

Wire: as `run`, whose bundle is the image's directory in the store; its config.json is made here,
in memory.

Errors: whatever is wrong with the image, before a container exists; then as `run`.
"""

import json
import os
from collections.abc import Callable

from scrun.cli.grammar import COMMANDS, GLOBAL
from scrun.cli.parse import Parsed, as_words, parse, record_root
from scrun.client.images import open_store
from scrun.commands.run import delete_other
from scrun.commands.run import run as run_bundle
from scrun.commands.spec import spec
from scrun.core.errors import ContainerExists, UsageError
from scrun.core.paths import has_record
from scrun.images.leases import Lease, lease_of
from scrun.images.store import Entry, Store, digest_of_words
from scrun.model.adoption import is_over
from scrun.model.record import IMAGE_DIGEST, IMAGE_NAME
from scrun.oci.ids import check_id
from scrun.pull.container import (
    Wishes,
    all_variables,
    config_of,
    mount_of,
    namespaces,
    variables,
    words_of,
)
from scrun.pull.get import Request, get
from scrun.pull.interrupts import interruptible
from scrun.pull.programs import find
from scrun.pull.reference import NAMED, Reference
from scrun.pull.reference import parse as parse_reference
from scrun.pull.squashfs import copy_of, save

_VARIABLES = {
    "cpus-per-task": "SCRUN_CPUS_PER_TASK", "gpus": "SCRUN_GPUS", "mem": "SCRUN_MEM_PER_NODE",
    "nodes": "SCRUN_JOB_NUM_NODES", "ntasks": "SCRUN_NTASKS", "partition": "SCRUN_PARTITION",
    "pool": "SCRUN_POOL", "time": "SCRUN_TIMELIMIT",
}  # fmt: skip
_PASSED_ON = (
    "console-socket", "detach", "keep", "no-new-keyring", "no-pivot", "no-subreaper", "pid-file",
    "pidfd-socket", "preserve-fds",
)  # fmt: skip
_SAVED = "save-"


def run(parsed: Parsed, created: Callable[[str], None] = lambda _: None) -> int:
    text, *command = parsed.operands
    _check(parsed)
    reference = parse_reference(text)
    wishes = _wishes(parsed, tuple(command))
    file = os.path.abspath(target) if (target := parsed.text("save")) else ""
    if file:
        find("mksquashfs")
    if not (container := parsed.text("name")):
        container = f"{reference.short}-{os.urandom(4).hex()}"
    lease = lease_of(root := record_root(parsed), check_id(container))
    replaces = bool(parsed.count("replace"))
    record = f"{root}/{container}"
    if not replaces and has_record(record) and not is_over(record, os.environ):
        raise ContainerExists.named(container)
    with interruptible():
        request = open_store(parsed)
        store, entry = _rootfs(reference, request, parsed, lease)
    if replaces and (status := _replace(parsed, container, request.store)):
        store.give_back(entry.key, lease)
        return status
    try:
        status = _run(parsed, container, entry, wishes, created)
        if file:
            with interruptible():
                save(entry.rootfs, entry.facts.defaults, file)
        return status
    finally:
        if not parsed.count("detach") and not parsed.count("keep"):
            store.give_back(entry.key, lease)
            if entry.key.startswith(_SAVED):
                store.remove(entry.key)


def _replace(parsed: Parsed, container: str, store: Store) -> int:
    """Delete the container that has the id, and its leases; return the exit status."""
    if status := delete_other(parsed, container):
        return status
    for one in (store, store.names()):
        for entry in one.entries():
            one.users(entry.key)  # else a lease of the old container would hold for the new one
    return 0


def _check(parsed: Parsed) -> None:
    """Refuse options that have no meaning together."""
    pairs = (
        ("entrypoint", "no-entrypoint"), ("home", "no-home"), ("writable", "read-only"),
        ("save", "detach"), ("save", "keep"), ("save", "read-only"), ("save", "replace"),
    )  # fmt: skip
    for one, other in pairs:
        if parsed.options.get(one) and parsed.options.get(other):
            raise UsageError(f"run: --{one} does not go with --{other}")
    if parsed.count("replace") and not parsed.text("name"):
        raise UsageError("run: --replace needs --name: without it each container has its own id")
    for name in ("bundle", "config"):
        if parsed.options.get(name):
            raise UsageError(f"run: --{name} does not go with an image: see 'scrun run --help'")


def _wishes(parsed: Parsed, command: tuple[str, ...]) -> Wishes:
    os.umask(umask := os.umask(0o077))
    entrypoint = parsed.text("entrypoint")
    return Wishes(
        command=command,
        entrypoint=() if parsed.count("no-entrypoint") else words_of(entrypoint)
        if entrypoint is not None else None,
        env=variables(parsed.texts("env"), os.environ),
        below=all_variables(os.environ) if parsed.count("all-env") else (),
        cwd=_absolute(parsed.text("workdir") or ""),
        mounts=tuple(map(mount_of, parsed.texts("mount"))),
        home=_home() if parsed.count("home") else "",
        read_only=bool(parsed.count("read-only")),
        user=parsed.text("user") or "",
        terminal=not parsed.count("detach") and os.isatty(0) and os.isatty(1),
        umask=umask,
        unshare=namespaces(parsed.text("unshare") or ""),
    )  # fmt: skip


def _absolute(directory: str) -> str:
    if directory and not directory.startswith("/"):
        raise UsageError(
            f"--workdir {directory}: is not absolute: it is a directory in the container"
        )
    return directory


def _home() -> str:
    home = os.environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(home) or not os.path.isdir(home):
        raise UsageError(f"--home: there is no directory {home}: set HOME")
    return os.path.normpath(home)


def _rootfs(
    reference: Reference, request: Request, parsed: Parsed, lease: Lease
) -> tuple[Store, Entry]:
    """Return the store and the entry that the container uses: the image, or a copy of it."""
    names, name = request.store.names(), parsed.text("name") or ""
    for entry in names.entries():
        if entry.key.startswith(_SAVED):
            names.remove(entry.key)  # unless it is in use: of one that was killed
    key = ""
    if parsed.count("writable") and name and reference.transport != NAMED:
        key = name
    elif parsed.text("save") and reference.transport != NAMED:
        key = _SAVED + digest_of_words(lease.root, lease.id)
    if not key:
        entry = get(reference, request, lease)
        return (names if reference.transport == NAMED else request.store), entry
    while not (found := names.lease(key, lease)):
        image = get(reference, request, lease)
        names.make(key, copy_of(image, request.unpacked))
        request.store.give_back(image.key, lease)
    return names, found


def _run(
    parsed: Parsed,
    container: str,
    entry: Entry,
    wishes: Wishes,
    created: Callable[[str], None],
) -> int:
    for name, variable in _VARIABLES.items():
        if value := parsed.text(name):
            os.environ[variable] = value
    config = config_of(entry.facts.defaults, wishes, spec())
    told = {IMAGE_NAME: entry.facts.source, IMAGE_DIGEST: entry.facts.digest}
    config["annotations"] = {**config.get("annotations", {}), **told}
    fd = os.memfd_create("config")
    with open(fd, "wb", closefd=False) as file:  # whole: a limit may cut what one call writes
        file.write(json.dumps(config).encode())
    words = [*as_words(GLOBAL, parsed), "run"]
    words += as_words([each for each in COMMANDS["run"][2] if each[0] in _PASSED_ON], parsed)
    words += ["--bundle", entry.directory, "--config", f"/proc/{os.getpid()}/fd/{fd}", container]
    return run_bundle(parse(words), created)
