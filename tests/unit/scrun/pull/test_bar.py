"""The bar that shows how far an image is."""

import pytest

from scrun.core.progress import with_bar
from scrun.pull.get import Bar


@pytest.fixture(autouse=True)
def _every_call_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrun.pull.get._BAR_INTERVAL", 0)


class Screen:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, share: float | None = None) -> None:
        self.lines.append(with_bar(text, share))

    @property
    def shares(self) -> list[int]:
        return [int(line[:3]) for line in self.lines]


@pytest.mark.parametrize(
    ("size", "shares"), [(1000, [0, 25, 50, 50, 50, 75, 100]), (0, [0, 0, 0, 0, 50, 75, 100])]
)
def test_it_never_goes_back(size: int, shares: list[int]) -> None:
    screen = Screen()
    bar = Bar("x", screen, size=size)
    for count in (0, 500, 1000, 1200):
        bar.got(count)
    for count in (0, 500, 1000):
        bar.unpacked(count, 1000)
    assert screen.shares == shares


def test_what_is_not_fetched_is_unpacked_only() -> None:
    screen = Screen()
    told: list[str] = []
    bar = Bar("oci:x", screen, told.append)
    for count in (0, 3 << 20, 4 << 20):
        bar.unpacked(count, 4 << 20)
    assert screen.shares == [0, 75, 100]
    assert screen.lines[1] == " 75% [###############.....] oci:x: 3 of 4 MiB are unpacked"
    assert told[1] == "3 of 4 MiB are unpacked"


def test_an_image_without_layers() -> None:
    screen = Screen()
    Bar("x", screen).unpacked(0, 0)
    assert screen.shares == [100]
