"""The blocks of the documentation's pages: what a reader copies."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tests import CHECKOUT

HOWTO = CHECKOUT / "docs" / "howto"


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        section: The heading above it.
        text: What it says.
    """

    section: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    section = ""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "inline" and before is not None and before.type == "heading_open":
            section = token.content
        elif token.type in ("fence", "code_block"):
            yield Block(section, token.content)
