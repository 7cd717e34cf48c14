"""The bar that shows how far an image is."""

import re

import pytest

from scrun.pull.get import Bar


@pytest.fixture(autouse=True)
def _every_call_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrun.pull.get._BAR_INTERVAL", 0)


def _shares(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(r" *(\d+)% \[", line))]


@pytest.mark.parametrize(
    ("size", "shares"), [(1000, [0, 25, 50, 50, 50, 75, 100]), (0, [0, 0, 0, 0, 50, 75, 100])]
)
def test_it_never_goes_back(size: int, shares: list[int]) -> None:
    lines: list[str] = []
    bar = Bar("x", lines.append, size=size)
    for count in (0, 500, 1000, 1200):
        bar.got(count)
    for count in (0, 500, 1000):
        bar.unpacked(count, 1000)
    assert _shares(lines) == shares


def test_what_is_not_fetched_is_unpacked_only() -> None:
    lines: list[str] = []
    told: list[str] = []
    bar = Bar("oci:x", lines.append, told.append)
    for count in (0, 3 << 20, 4 << 20):
        bar.unpacked(count, 4 << 20)
    assert _shares(lines) == [0, 75, 100]
    assert lines[1] == " 75% [###############.....] oci:x: 3 of 4 MiB are unpacked"
    assert told[1] == "3 of 4 MiB are unpacked"


def test_an_image_without_layers() -> None:
    lines: list[str] = []
    Bar("x", lines.append).unpacked(0, 0)
    assert _shares(lines) == [100]
