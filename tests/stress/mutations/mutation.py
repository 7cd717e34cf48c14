"""One deliberate fault of the product, and the tests that have to notice it. Pure."""

import msgspec


class Mutation(msgspec.Struct, frozen=True):
    """A change of a few words that breaks something.

    Attributes:
        name: What it is called: what is broken, in words with hyphens.
        file: The module, from the top of the checkout.
        old: What is there; exactly once.
        new: What is put in its place.
        tests: The tests of which at least one has to fail: files, or functions of them.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def needs_cluster(self) -> bool:
        """Whether its tests run containers on a cluster."""
        return any(test.startswith("tests/integration") for test in self.tests)


def broken(text: str, mutation: Mutation) -> str:
    """Return a module's text with the fault in it.

    Raises:
        ValueError: What is to be replaced is not there exactly once.
    """
    count = text.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.name}: {mutation.file} has {count} times {mutation.old!r}")
    return text.replace(mutation.old, mutation.new)
