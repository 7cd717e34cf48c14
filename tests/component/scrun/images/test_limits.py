"""The limit of a store of images."""

import os
import random
from pathlib import Path

import pytest

from scrun.images.leases import lease_of
from scrun.images.store import Store, shrink, size_of
from tests.harness.layers import filled

OPERATIONS = int(os.environ.get("SCRUN_STORE_OPERATIONS") or 300)
"""10,000 for a long run."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
def test_limits_and_leases(tmp_path: Path, seed: int) -> None:
    """Whatever happens in whatever order: what is leased is there, and the limit holds."""
    store = Store(str(tmp_path / "images"))
    chance = random.Random(seed)
    limit = 40 * 4096
    held: dict[str, set[str]] = {}
    for number in range(OPERATIONS):
        key = f"k{chance.randrange(30)}"
        lease = lease_of(str(tmp_path), f"c{chance.randrange(4)}")
        match chance.choice(["make", "make", "lease", "give", "give", "remove", "shrink"]):
            case "make":
                store.make(key, lambda folder, _: filled(folder, chance.randrange(5) * 4096))
            case "lease":
                if store.lease(key, lease):
                    held.setdefault(key, set()).add(lease.id)
            case "give":
                for one in list(held):
                    store.give_back(one, lease)
                    held[one].discard(lease.id)
            case "remove":
                assert bool(store.remove(key)) == bool(held.get(key))
            case "shrink":
                shrink(store, limit)
                entries = store.entries()
                used = size_of([entry for entry in entries if held.get(entry.key)])
                assert size_of(entries) <= max(limit, used), number
        assert all(store.find(one) for one, holders in held.items() if holders)
