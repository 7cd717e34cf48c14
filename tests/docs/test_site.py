"""The site: it builds without a warning, has every page, and shows them without a network."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT

DOCS = CHECKOUT / "docs"
MAN = ("scrun.1", "scrun.lua.5", "scrun.toml.5")
pytestmark = pytest.mark.timeout(400)  # Sphinx takes half a minute, and more beside other tests


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the site."""
    directory = tmp_path_factory.mktemp("site") / "new"
    command = [sys.executable, str(CHECKOUT / "tools" / "docs"), "--site", str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=390)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return directory


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(DOCS).with_suffix(".html") for path in DOCS.rglob("*.md")}
    pages |= {Path("man", f"{page}.html") for page in MAN}
    assert len(pages) > 30
    assert [
        str(page) for page in pages | {Path("coverage.html")} if not (site / page).exists()
    ] == []


def test_every_page_can_be_reached(site: Path) -> None:
    """By the list beside each page, or from the lists of internals and decisions."""
    reached = {
        (page.parent / link).resolve()
        for page in (site / name / "index.html" for name in ("", "internals", "decisions"))
        for link in re.findall(r'href="([^"#:]+)', page.read_text())
    }
    pages = {path for path in site.rglob("*.html") if "examples" not in path.parts}
    own = {site / name for name in ("index.html", "search.html", "genindex.html")}
    assert pages - reached - own == set()


def found(site: Path, word: str) -> set[str]:
    """The pages and sections that the search's index has for a word, with their titles."""
    text = (site / "searchindex.js").read_text()
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    numbers = index["terms"][word]
    numbers = numbers if isinstance(numbers, list) else [numbers]
    return {f"{index['docnames'][number]}: {index['titles'][number]}" for number in numbers}


def test_the_search_knows_the_manual(site: Path) -> None:
    assert any(place.startswith("man/scrun.1:") for place in found(site, "anchor"))


def test_the_search_finds_sections(site: Path) -> None:
    """Each leads to a place in its page."""
    places = found(site, "infra")
    section = "howto/pods#set-the-size-of-the-job: Run a pod in one job > Set the size of the job"
    assert section in places
    assert "howto/pods#what-makes-a-pod: Run a pod in one job > What makes a pod" not in places
    for place in places:
        page, _, anchor = place.partition(":")[0].partition("#")
        html = (site / f"{page}.html").read_text()
        assert not anchor or f'id="{anchor}"' in html, place
    search = (site / "search.html").read_text()
    assert search.index("_static/sections.js") < search.index("_static/searchtools.js")


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe|object)\b[^>]*>", page.read_text())
        assert [tag for tag in tags if re.search(r'(?:src|href)="(?:https?:)?//', tag)] == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", style.read_text()), style


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    copy.mkdir()
    for path in CHECKOUT.iterdir():
        if path.name not in ("docs", "tools", ".git"):
            (copy / path.name).symlink_to(path)
    for name in ("docs", "tools"):
        subprocess.run(["cp", "-R", CHECKOUT / name, copy / name], check=True)
    with (copy / "docs" / "index.md").open("a") as file:
        file.write("\n[there is no such page](nowhere.md)\n")
    command = [sys.executable, str(copy / "tools" / "docs"), "--site", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=390)
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr
