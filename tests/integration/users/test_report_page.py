"""The page of `scrun report`, in a real browser.

SCRUN_PICTURE names a file that gets the picture of docs/howto/report.md.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By

from tests.harness.daemons import program
from tests.unit.scrun.commands.test_listing import Root
from tests.unit.scrun.commands.test_report import ENDED, HOSTILE, USED, call

pytestmark = [pytest.mark.nightly, pytest.mark.covers("scrun report")]

LARGEST = 100_000
IMAGES = {
    "docker.io/library/train:2": (0.93, 0.62),
    "docker.io/library/notebook:latest": (0.12, 0.4),
    "registry.site/solver:7": (0.5, 0.05),
}


@pytest.fixture
def browser() -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = program("chromium")
    for option in ("headless", "no-sandbox", "window-size=1260,770"):
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with Chrome(options, ChromeService(program("chromedriver"))) as found:
        yield found


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    root = Root(tmp_path / "r")
    for number, (image, (cpu, memory)) in enumerate(IMAGES.items()):
        used = {
            **USED, "user": 8000 * cpu / (number + 1), "system": 0.0, "cpus": 4,
            "wall": 2000 / (number + 1), "memory": int((64 << 30) * memory), "limit": 64 << 30,
        }  # fmt: skip
        told = {"org.scrun.usage": json.dumps(used), "org.scrun.image.name": image}
        annotations = ENDED.annotations | told
        root.add(msgspec.structs.replace(ENDED, id=f"c{number}", annotations=annotations))
    yield root
    root.server.close()


def test_it_is_shown(root: Root, browser: Chrome, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(call(root, "--by", "image", "--format", "html"))
    browser.get(page.as_uri())
    frames = browser.find_elements(By.CSS_SELECTOR, "rect.had")
    bars = browser.find_elements(By.CSS_SELECTOR, "rect:not(.had)")
    shares = [
        bar.rect["width"] / frame.rect["width"] for bar, frame in zip(bars, frames, strict=True)
    ]
    expected = [one for figures in zip(*IMAGES.values(), strict=True) for one in figures]
    assert shares == pytest.approx(expected, abs=0.02)
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    places = [browser.find_element(By.CSS_SELECTOR, name) for name in ("html", ".scroll")]
    for side in ("Width", "Height"):  # the picture shows all of it
        for place in places:
            whole, seen = (place.get_property(f"{kind}{side}") for kind in ("scroll", "client"))
            assert whole == seen
    picture = Path(os.environ.get("SCRUN_PICTURE", tmp_path / "report.png"))
    assert browser.save_screenshot(str(picture))
    assert 10_000 < picture.stat().st_size < LARGEST


def test_names_run_nothing(root: Root, browser: Chrome, tmp_path: Path) -> None:
    for number, name in enumerate(HOSTILE):
        annotations = ENDED.annotations | {"org.scrun.image.name": name}
        root.add(msgspec.structs.replace(ENDED, id=f"h{number}", annotations=annotations))
    page = tmp_path / "report.html"
    page.write_text(call(root, "--by", "image", "--format", "html"))
    browser.get(page.as_uri())  # an alert would be an error here, as of everything below
    assert browser.title == "What containers used"
    for name in ("script", "img"):
        assert browser.find_elements(By.TAG_NAME, name) == []
    assert len(browser.find_elements(By.TAG_NAME, "tr")) == 1 + len(IMAGES) + len(HOSTILE)
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
