"""docs/howto/notebook.md, in a real browser.

SCRUN_PICTURE names a file that gets the picture of the page.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.harness import cluster
from tests.harness.daemons import program
from tests.harness.debian import jupyter_image
from tests.harness.pages import HOWTO, blocks
from tests.harness.reader import Reader, reading
from tests.harness.session import steps_of
from tests.harness.wait import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

PAGE = HOWTO / "notebook.md"
IMAGES = ("jupyter/base-notebook:latest", "tensorflow/tensorflow:latest")
LARGEST = 150_000
CELL = "import os\nprint('Hello from', os.uname().nodename)"
NO_NEWS = (
    ".jupyter/lab/user-settings/@jupyterlab/apputils-extension/notification.jupyterlab-settings"
)


@pytest.fixture
def reader() -> Iterator[Reader]:
    """Who has the images of the page: both programs are in one."""
    with reading('launch = "shim"\n') as found:
        for name in IMAGES:
            path = ["PATH=/srv/venv/bin:/usr/bin:/bin"]
            found.registry.push(name, jupyter_image(), Env=path, User="1000")
        yield found


@pytest.fixture
def browser(reader: Reader) -> Iterator[Chrome]:
    """Chromium of the page's reader."""
    user = reader.site.user
    words = " ".join([*user.prefix, program("chromedriver")])
    driver = reader.write("bin/driver", f'#!/bin/sh\nexec {words} "$@"\n', 0o755)
    options = ChromeOptions()
    options.binary_location = program("chromium")
    for option in ("headless", "no-sandbox", "window-size=1000,600"):
        options.add_argument(f"--{option}")
    service = ChromeService(str(driver), env=reader.environment(user))
    with Chrome(options, service) as found:
        yield found


def opened(browser: Chrome, url: str, title: str) -> None:
    """Open a page, again until its server listens."""

    def shown() -> bool:
        try:
            browser.get(url)
        except WebDriverException as error:
            if "net::ERR_" not in str(error):
                raise
            return False
        return title in browser.title

    wait_until(f"{title} at {url}", shown, 100)


def first(browser: Chrome, css: str, text: str = "") -> WebElement:
    """Wait for an element that shows some text."""

    def found() -> WebElement | None:
        elements = browser.find_elements(By.CSS_SELECTOR, css)
        with contextlib.suppress(StaleElementReferenceException):
            return next((one for one in elements if one.is_displayed() and text in one.text), None)
        return None

    element = wait_until(f"{css}: {text}", found, 100)
    assert element is not None
    return element


def test_a_cell_runs_in_a_browser(reader: Reader, browser: Chrome, tmp_path: Path) -> None:
    user = reader.site.user
    lab, _of_the_laptop, board, end = (steps_of(block.text) for block in blocks(PAGE))
    reader.write(NO_NEWS, '{"fetchNews": "false"}')
    opened(browser, reader.session(lab, user)[-1].strip(), "JupyterLab")
    first(browser, ".jp-LauncherCard[data-category=Notebook]").click()
    cell = first(browser, ".jp-Notebook .cm-content")
    cell.send_keys(CELL, Keys.SHIFT, Keys.ENTER)
    first(browser, ".jp-OutputArea-output", f"Hello from {os.uname().nodename}")
    assert (reader.home / "Untitled.ipynb").is_file()
    picture = Path(os.environ.get("SCRUN_PICTURE", tmp_path / "notebook.png"))
    assert browser.save_screenshot(str(picture))
    assert 10_000 < picture.stat().st_size < LARGEST
    reader.write("runs/none", "")
    opened(browser, reader.session(board, user)[-1].strip(), "TensorBoard")
    first(browser, "body", "No dashboards are active")
    reader.session(end, user)
    wait_until("no job", lambda: not cluster.jobs(user), 20)
