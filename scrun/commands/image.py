"""scrun image: list, get and remove what is in the caller's store of images.

`import IMAGE NAME` makes a root file system that is written to, as `run --writable --name NAME`
does. `prune` removes images, those of layers too, that no container uses, and leaves root file
systems with names alone: they cannot be fetched again.
"""

import os
import time
from collections.abc import Iterator

from scrun.cli.columns import age, listed, size
from scrun.cli.parse import Parsed
from scrun.client.images import open_store
from scrun.core.errors import ImageError, UsageError
from scrun.core.output import say
from scrun.core.times import seconds_of
from scrun.images.leases import lease_of
from scrun.images.store import Entry, Store, forget
from scrun.pull.get import Request, get
from scrun.pull.interrupts import interruptible
from scrun.pull.reference import parse
from scrun.pull.squashfs import copy_of

_NAME = "name:"
_SHOWN = 12
_LEAST = 4


def run(parsed: Parsed) -> int:
    action, *operands = parsed.operands
    actions = {
        "list": _list, "pull": _pull, "import": _import, "remove": _remove, "prune": _prune,
    }  # fmt: skip
    if action not in actions:
        known = ", ".join(actions)
        raise UsageError(f"unknown action {action!r}: use {known}: see 'scrun image --help'")
    if not operands and action in ("pull", "remove"):
        raise UsageError(f"image {action} needs an image: see 'scrun image --help'")
    if operands and action in ("list", "prune"):
        raise UsageError(f"unexpected argument {operands[0]!r}: see 'scrun image --help'")
    if action != "prune" and parsed.options.get("unused-for"):
        raise UsageError(f"image {action}: --unused-for is for prune")
    with interruptible():
        text = actions[action](open_store(parsed), operands, parsed)
    if text:
        say(text.encode(errors="surrogateescape"))
    return 0


def _list(request: Request, operands: list[str], parsed: Parsed) -> str:
    return listed(
        parsed,
        _all(request.store),
        name=lambda found: found[0],
        row=_row,
        head=("KEY", "SIZE", "USED", "CONTAINERS", "SOURCE"),
        cells=_cells,
    )


def _row(found: tuple[str, Entry, Store]) -> dict[str, object]:
    name, entry, store = found
    return {
        "key": name,
        "source": entry.facts.source,
        "digest": entry.facts.digest,
        "size": entry.facts.size,
        "made": _stamp(entry.facts.made),
        "used": _stamp(entry.used()),
        "path": entry.directory,
        "containers": [lease.id for lease in store.users(entry.key)],
    }


def _cells(found: tuple[str, Entry, Store]) -> tuple[str, ...]:
    name, entry, store = found
    containers = str(len(store.users(entry.key)))
    used = age(entry.used())
    return shown(name), size(entry.facts.size), used, containers, entry.facts.source


def _all(store: Store) -> Iterator[tuple[str, Entry, Store]]:
    """Yield everything, with the name that other actions take; last used first."""
    names = store.names()
    for entry in sorted(store.entries(), key=Entry.used, reverse=True):
        yield entry.key, entry, store
    for entry in names.entries():
        yield _NAME + entry.key, entry, names


def _pull(request: Request, operands: list[str], parsed: Parsed) -> str:
    return "".join(f"{get(parse(operand), request).key}\n" for operand in operands)


def _import(request: Request, operands: list[str], parsed: Parsed) -> str:
    if len(operands) != 2:
        raise UsageError("image import needs an image and a name: see 'scrun image --help'")
    image, name = operands
    reference, names = parse(image), request.store.names()
    if names.find(name):
        raise ImageError(f"name:{name} exists: remove it, or use another name")
    lease = lease_of("/", f".{os.getpid()}")  # holds as long as this process lives
    entry = get(reference, request, lease)
    try:
        names.make(name, copy_of(entry, request.unpacked))
    finally:
        request.store.give_back(entry.key, lease)
    return f"{_NAME}{name}\n"


def _remove(request: Request, operands: list[str], parsed: Parsed) -> str:
    text = ""
    for operand in operands:
        for name, entry, store in _matching(request.store, operand):
            if held := store.users(entry.key) or store.remove(entry.key):
                used = ", ".join(lease.id for lease in held)
                raise ImageError(f"{operand} is used by {used}: delete that first")
            forget(request.store, {entry.key})
            text += f"{name}\n"
    return text


def _matching(store: Store, operand: str) -> list[tuple[str, Entry, Store]]:
    """Find what an operand names: a key, the beginning of one, or where it came from."""
    everything = list(_all(store))
    for exact in (
        [each for each in everything if each[0] == operand],
        [each for each in everything if each[1].facts.source == operand],
    ):
        if exact:
            return exact
    begin = [each for each in everything if len(operand) >= _LEAST and each[0].startswith(operand)]
    if len(begin) > 1:
        raise ImageError(f"{operand} begins {len(begin)} keys: give more of one")
    if not begin:
        raise ImageError(f"{operand}: there is no such image here: see 'scrun image list'")
    return begin


def _prune(request: Request, operands: list[str], parsed: Parsed) -> str:
    text = parsed.text("unused-for")
    if (least := seconds_of("0s" if text is None else text)) is None:
        raise UsageError(f"--unused-for {text}: is not a duration; use 90m or 720h")
    store, now = request.store, time.time()
    gone, freed = set(), 0
    for entry in store.entries():
        if now - entry.used() >= least and not store.remove(entry.key):
            gone.add(entry.key)
            freed += entry.facts.size
    forget(store, gone)
    if parsed.count("quiet"):
        return "".join(f"{key}\n" for key in sorted(gone))
    return f"removed {len(gone)} images and layers, {size(freed)}\n"


def shown(key: str) -> str:
    """Return a key in short, which `remove` takes as well."""
    kind, dash, digest = key.partition("-")
    return f"{kind}{dash}{digest[:_SHOWN]}" if dash and not key.startswith(_NAME) else key


def _stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
