"""Find the shapes of english.toml in prose: `python3 -m tests.docs.english [FILE]…`.

Without files: the pages, and the comments, docstrings and messages of scrun/ and supervisor/.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from tests import CHECKOUT

TABLE = Path(__file__).with_suffix(".toml")
PAGES = ("*.md", "docs", "findings/README.md")
SOURCES = ("scrun", "supervisor")
_CODE = re.compile(
    r"^ *(```|~~~).*?^ *\1|``[^`]*``|(?<!`)`[^`]*`|\]\([^)]*\)", re.MULTILINE | re.DOTALL
)
_C_PROSE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_LUA_PROSE = re.compile(r"--[^\n]*(?:\n\s*--[^\n]*)*")


class Shape(NamedTuple):
    """A row of the table."""

    name: str
    pattern: str
    instead: str
    wrong: list[str]
    right: list[str]

    def found(self, text: str) -> Iterator[re.Match[str]]:
        return re.finditer(self.pattern, text, re.IGNORECASE)


def shapes() -> list[Shape]:
    return [Shape(**row) for row in tomllib.loads(TABLE.read_text())["shape"]]


def _blank(match: re.Match[str]) -> str:
    """Code, without what it says, and as many lines."""
    return "`_`" + "\n" * match[0].count("\n")


def _of_page(text: str) -> Iterator[tuple[int, str]]:
    yield 1, _CODE.sub(_blank, text)


def _of_python(text: str) -> Iterator[tuple[int, str]]:
    nodes = [*ast.walk(ast.parse(text))]
    formats = [node for node in nodes if isinstance(node, ast.JoinedStr)]
    inner = {id(part) for node in formats for part in node.values}
    for node in formats:
        parts = [part.value if isinstance(part, ast.Constant) else "_" for part in node.values]
        yield node.lineno, "".join(map(str, parts))
    for constant in nodes:
        if isinstance(constant, ast.Constant) and id(constant) not in inner:
            yield constant.lineno, constant.value if isinstance(constant.value, str) else ""
    begun, block, last = 0, "", 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            line = token.start[0]
            if line != last + 1:
                yield begun, block
                begun, block = line, ""
            block += token.string.lstrip("#") + "\n"
            last = line
    yield begun, block


def _of_text(text: str, prose: re.Pattern[str], marks: str) -> Iterator[tuple[int, str]]:
    for match in prose.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, re.sub(marks, "", match[0])


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file that people read, each with the line where it begins."""
    text = path.read_text()
    match path.suffix:
        case ".md" | ".rst":
            yield from _of_page(text)
        case ".py":
            yield from _of_python(text)
        case ".c" | ".h":
            yield from _of_text(text, _C_PROSE, r"(?m)^\s*/?\*+/?|\*/")
        case ".lua":
            yield from _of_text(text, _LUA_PROSE, r"(?m)^\s*--+")


def remarks(path: Path, table: list[Shape]) -> Iterator[str]:
    """`FILE:LINE: …` for each place that has a shape of the table."""
    name = path.relative_to(CHECKOUT) if path.is_relative_to(CHECKOUT) else path
    for first, text in prose(path):
        lines = enumerate(text.split("\n"), first)
        words = [(word, number) for number, line in lines for word in line.split()]
        starts = [0, *accumulate(len(word) + 1 for word, _ in words)]
        joined = " ".join(word for word, _ in words)
        for shape in table:
            for match in shape.found(joined):
                line = words[bisect_right(starts, match.start()) - 1][1]
                around = joined[max(0, match.start() - 30) : match.end() + 30]
                yield f"{name}:{line}: «{shape.name}» in «{around}»: {shape.instead}"


def files(*under: str) -> list[Path]:
    """The files of the checkout with prose in them, below some paths."""
    command = ["git", "-C", str(CHECKOUT), "ls-files", "-z", *under]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    paths = [CHECKOUT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.suffix in {".md", ".rst", ".py", ".c", ".h", ".lua"}]


def main(arguments: list[str]) -> int:
    """Print every remark; 1 if there is one."""
    paths = [Path(name).resolve() for name in arguments] or files(*PAGES, *SOURCES)
    table = shapes()
    found = [remark for path in paths for remark in remarks(path, table)]
    print(*found, sep="\n", end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
