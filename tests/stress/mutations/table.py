"""All deliberate faults, from the TOML files of this folder."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

from tests.stress.mutations.mutation import Mutation


def _faults() -> Iterator[Mutation]:
    """Each module has a table: `tests`, and a list for each fault.

    That has what is in the module, what is put in its place, and, if these are not the `tests` of
    the module, those of which one has to fail.
    """
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for file, faults in tomllib.loads(path.read_text()).items():
            usual = faults.pop("tests")
            for name, (old, new, *tests) in faults.items():
                yield Mutation(name, file, old, new, tuple(tests or usual))


MUTATIONS: tuple[Mutation, ...] = tuple(_faults())
