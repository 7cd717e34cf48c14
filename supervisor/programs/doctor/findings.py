"""The findings of doctor, and how they are printed."""

from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Literal

import msgspec
import trio

from scrun.core.text import one_line, printable

Status = Literal["ok", "warn", "fail"]

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


class Finding(msgspec.Struct, frozen=True):
    """What a check found; `warn`: something will not work; `fail`: containers will not run."""

    status: Status
    text: str
    remedy: str = ""


def ok(text: str) -> Finding:
    return Finding("ok", text)


def warn(text: str, remedy: str) -> Finding:
    return Finding("warn", text, remedy)


def fail(text: str, remedy: str) -> Finding:
    return Finding("fail", text, remedy)


def first(*cases: tuple[object, Finding], otherwise: Finding) -> Finding:
    """Return the finding of the first case that holds."""
    return next((finding for holds, finding in cases if holds), otherwise)


def text_line(name: str, finding: Finding, *, colour: bool) -> str:
    status = f"{finding.status:<4}"
    if colour:
        status = f"\033[{_COLOURS[finding.status]}m{status}\033[0m"
    words = f"{name}: {finding.text}" + (f"; {finding.remedy}" if finding.remedy else "")
    return f"{status}  {printable(one_line(words))}"


def json_text(findings: Mapping[str, Finding]) -> str:
    """Format findings as a JSON list, with an object on each line."""
    rows = (
        {"name": name, "status": one.status, "finding": one.text, "remedy": one.remedy}
        for name, one in findings.items()
    )
    return "[\n" + ",\n".join(f"  {msgspec.json.encode(row).decode()}" for row in rows) + "\n]"


class Report:
    """The findings by the names of their items, in a fixed order; they arrive in any order."""

    def __init__(self, names: Iterable[str]) -> None:
        self._found: dict[str, Finding | None] = dict.fromkeys(names)
        self._news = trio.Event()

    def put(self, name: str, finding: Finding) -> None:
        """Add a finding; the first one for an item counts."""
        if self._found[name] is None:
            self._found[name] = finding
            self._news.set()

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the items without a finding so far."""
        return [name for name in names if self._found[name] is None]

    async def __aiter__(self) -> AsyncIterator[tuple[str, Finding]]:
        for name in self._found:
            while (found := self._found[name]) is None:
                self._news = trio.Event()
                await self._news.wait()
            yield name, found
