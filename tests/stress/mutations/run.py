"""Runs the tests against a copy of the checkout that has one fault at a time."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence

import msgspec

from tests import CHECKOUT
from tests.harness.installation import Installation
from tests.harness.program import run_program
from tests.stress.mutations.mutation import Mutation, broken

_OWN = {"scrun": "scrun", "supervisor": "scrun/supervisor"}
_COPIED = ("bin", "tests", "tools", "docs", "pyproject.toml", "README.md", "CHANGELOG.md")
_TIMEOUT = 900
_FAILED = 1  # pytest's exit statuses: 0 all passed, 1 some failed, else it did not run properly


class Outcome(msgspec.Struct, frozen=True):
    """What became of a fault.

    Attributes:
        mutation: It.
        caught: Whether a test failed.
        by: The first test that did; or why nothing is known.
        seconds: How long the tests took.
    """

    mutation: Mutation
    caught: bool
    by: str
    seconds: float

    @property
    def text(self) -> str:
        word = "caught by" if self.caught else "SURVIVED"
        words = f"{self.mutation.name}: {word} {self.by}".rstrip()
        return f"{words} in {self.seconds:.0f} s"


class Copy:
    """A copy of the checkout, and an installation of scrun that is made of it."""

    def __init__(self) -> None:
        """Make it; `close` removes it."""
        self._installation = Installation()
        self._installation.own_copies(CHECKOUT)
        self.checkout = self._installation.base / "checkout"
        self.checkout.mkdir()
        for name in _COPIED:
            source = CHECKOUT / name
            if source.is_dir():
                leave_out = shutil.ignore_patterns("__pycache__")
                shutil.copytree(source, self.checkout / name, symlinks=True, ignore=leave_out)
            else:
                shutil.copy(source, self.checkout / name)
        for name, installed in _OWN.items():  # what is broken there is broken here
            (self.checkout / name).symlink_to(self._installation.site / installed)

    def close(self) -> None:
        self._installation.close()

    def test(self, arguments: Sequence[str]) -> tuple[int, str]:
        """Run tests here.

        Returns:
            pytest's exit status, and what it printed.
        """
        command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        environment = {
            **os.environ,
            "SCRUN_BIN": self._installation.binary,
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(self.checkout),  # for what a test runs by `python -c`
        }
        try:
            done = run_program(
                [*command, *arguments],
                cwd=self.checkout,
                env=environment,
                stderr=subprocess.STDOUT,
                timeout=_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return _FAILED, f"FAILED {arguments[0]} - not over within {_TIMEOUT} s"
        return done.returncode, done.stdout

    def check(self, mutations: Iterable[Mutation]) -> str:
        """Return what is wrong without any fault: then no failure says anything."""
        status, output = self.test(sorted({test for one in mutations for test in one.tests}))
        return f"pytest ended with {status}\n{output[-3000:]}" if status else ""

    def try_out(self, mutation: Mutation) -> Outcome:
        """Put a fault in, run its tests, take it out again."""
        path = self.checkout / mutation.file
        text = path.read_text()
        began = time.monotonic()
        path.write_text(broken(text, mutation))
        try:
            status, output = self.test(mutation.tests)
        finally:
            path.write_text(text)
        seconds = time.monotonic() - began
        if status not in (0, _FAILED):
            return Outcome(
                mutation, False, f"pytest ended with {status}: {output[-500:]}", seconds
            )
        failed = [
            line.split(" - ")[0].removeprefix("FAILED ").removeprefix("ERROR ")
            for line in output.splitlines()
            if line.startswith(("FAILED ", "ERROR "))
        ]
        return Outcome(mutation, bool(failed), failed[0] if failed else "", seconds)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return what became of all faults, as a Markdown table and a line below it."""
    lines = ["| fault | module | caught by | seconds |", "|---|---|---|---|"]
    for outcome in outcomes:
        by = f"`{outcome.by}`" if outcome.caught else f"**survived** {outcome.by}".rstrip()
        mutation = outcome.mutation
        lines.append(f"| {mutation.name} | {mutation.file} | {by} | {outcome.seconds:.0f} |")
    caught = sum(outcome.caught for outcome in outcomes)
    return "\n".join([*lines, "", f"{caught} of {len(outcomes)} faults were caught."])
