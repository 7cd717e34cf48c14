"""The findings of doctor, and how they are printed."""

from collections.abc import Iterable
from typing import Literal

import msgspec
import trio

from scrun.core.text import one_line, printable

Status = Literal["ok", "warn", "fail"]

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


class Finding(msgspec.Struct, frozen=True):
    """The result for one item.

    Attributes:
        name: The item.
        status: `ok`; `warn`: not everything will work; `fail`: containers will not run.
        text: What was found.
        remedy: What to do, unless it is ok.
    """

    name: str
    status: Status
    text: str = msgspec.field(name="finding")
    remedy: str = ""


def text_line(finding: Finding, *, colour: bool) -> str:
    """Format a finding as a line."""
    status = f"{finding.status:<4}"
    if colour:
        status = f"\033[{_COLOURS[finding.status]}m{status}\033[0m"
    words = f"{finding.name}: {finding.text}" + (f"; {finding.remedy}" if finding.remedy else "")
    return f"{status}  {printable(one_line(words))}"


def json_text(findings: Iterable[Finding]) -> str:
    """Format findings as a JSON list, with an object on each line."""
    lines = (f"  {msgspec.json.encode(finding).decode()}" for finding in findings)
    return "[\n" + ",\n".join(lines) + "\n]"


class Report:
    """The findings in a fixed order; they arrive in any order."""

    def __init__(self, names: Iterable[str]) -> None:
        """Expect a finding for each of these."""
        self._found: dict[str, Finding | None] = dict.fromkeys(names)
        self._news = trio.Event()

    def put(self, finding: Finding) -> None:
        """Add a finding; the first one for an item counts."""
        assert finding.name in self._found, finding.name
        if self._found[finding.name] is None:
            self._found[finding.name] = finding
            self._news.set()

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the items without a finding so far."""
        return [name for name in names if self._found[name] is None]

    async def next(self, after: int) -> Finding:
        """Wait for the finding with this number."""
        name = list(self._found)[after]
        while (found := self._found[name]) is None:
            self._news = trio.Event()
            await self._news.wait()
        return found

    def __len__(self) -> int:
        return len(self._found)
