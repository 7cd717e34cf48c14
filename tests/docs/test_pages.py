"""The pages: their links lead somewhere, and the commands, options and files in them exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from scrun.cli.grammar import COMMANDS, GLOBAL
from tests import CHECKOUT

PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").rglob("*.md")])


@pytest.fixture(params=PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def anchors(page: Path) -> set[str]:
    """The fragments that a forge and the site make of the headings."""
    prose = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)", prose, re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles)
    return {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in plain}


def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match("https?://|mailto:", link):
            continue
        path, _, fragment = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not fragment or target.suffix != ".md" or fragment in anchors(target), link


def code(page: Path) -> list[str]:
    """What a page has in code: the lines of blocks, and words in backticks."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    inner = [child for token in tokens for child in [token, *(token.children or ())]]
    kinds = ("fence", "code_block", "code_inline")
    text = "".join(f"{token.content}\n" for token in inner if token.type in kinds)
    return text.replace("\\\n", " ").splitlines()


def called(page: Path) -> Iterator[tuple[str, list[str]]]:
    """The commands of scrun that a page has in code, and their long options."""
    valued = "|".join(name for name, _, metavar, *_ in GLOBAL if metavar and metavar[0] != "[")
    option = rf"(?: --(?:{valued})[ =]\S+| -[\w-]+)*"
    for line in code(page):
        if found := re.match(rf"(?:[$#] )?scrun{option} ([a-z][a-z-]*)\b([^|;#>]*)", line):
            own = re.split(r" -- | docker://", found[2])[0]
            yield found[1], re.findall(r"(?<!\S)--([a-z][a-z-]+)", own)


def test_commands_exist(page: Path) -> None:
    for command, options in called(page):
        assert command in COMMANDS, command
        if command not in ("exec", "shell"):  # what follows may be a program's
            known = {option[0] for option in (*COMMANDS[command][2], *GLOBAL)}
            assert set(options) <= known, command


def test_files_of_the_checkout_exist(page: Path) -> None:
    path = r"(?<![\w/.~-])(?:tools|tests|scrun|supervisor|docs)/[\w./-]+"
    for name in re.findall(path, "\n".join(code(page))):
        assert (CHECKOUT / name.rstrip(".")).exists(), name


def test_a_decision_is_short() -> None:
    """What happens in each case is in docs/internals."""
    for page in (CHECKOUT / "docs" / "decisions").glob("*.md"):
        words = [word for word in page.read_text().split() if re.search(r"\w", word)]
        assert len(words) <= 400, page.name


def test_the_glossary_has_every_folder_and_names_what_exists() -> None:
    text = (CHECKOUT / "docs" / "glossary.md").read_text()
    named = set(re.findall(r"`((?:scrun|supervisor)/[\w/]+?)/?`", text))
    sources = [path for top in ("scrun", "supervisor") for path in (CHECKOUT / top).rglob("*.py")]
    folders = {str(path.parent.relative_to(CHECKOUT)) for path in sources}
    assert folders - named - {"scrun", "supervisor"} == set()
    source = "".join(map(Path.read_text, sources))
    known = {*re.findall(r"(?m)^class (\w+)", source), *re.findall(r"(?m)^(\w+) = ", source)}
    rows = text.partition("## Folders")[0].splitlines()
    in_code = re.findall(r"`([A-Z]\w+)`", "".join(row.rpartition(" | ")[2] for row in rows))
    assert len(in_code) > 15
    assert set(in_code) - known == set()


def test_no_page_names_a_test(page: Path) -> None:
    """Tests say themselves what they cover."""
    assert re.findall(r"\btest_\w+", page.read_text()) == []
