"""Keeps a store of images below its limit: what was not used for the longest time goes first."""

import contextlib

from scrun.core.errors import ScrunError
from scrun.images.store import Entry, Store

_LOW = 0.8


def size_of(entries: list[Entry]) -> int:
    """Return how many bytes images take."""
    return sum(entry.facts.size for entry in entries)


def shrink(store: Store, limit: int, *, more: int = 0) -> list[Entry]:
    """Remove images until there is room; never what a container uses.

    `limit` is the most bytes; 0: any number. If there are more, four fifths of it stay, so that
    not every new image evicts another. `more` bytes are needed besides; for them, images go even
    below the limit.

    Returns:
        What was removed.
    """
    with contextlib.suppress(OSError, ScrunError):
        store.tidy()
    entries = [entry for entry in store.entries() if not entry.facts.writable]
    size = size_of(entries)
    excess = size - int(limit * _LOW) if limit and size > limit else 0
    excess = max(excess, more)
    removed: list[Entry] = []
    for entry in sorted(entries, key=Entry.used):
        if excess <= 0:
            break
        # what cannot be removed, or not yet, makes others go
        with contextlib.suppress(OSError, ScrunError):
            if not store.remove(entry.key):
                removed.append(entry)
                excess -= entry.facts.size
    return removed
