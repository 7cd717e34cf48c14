"""The prose has none of the shapes of english.toml."""

from pathlib import Path

import pytest

from tests.docs import english

SHAPES = english.shapes()
FILES = english.files(*english.PAGES, *english.SOURCES)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_finds_what_it_should(shape: english.Shape) -> None:
    assert [text for text in shape.wrong if not [*shape.found(text)]] == []
    assert [text for text in shape.right if [*shape.found(text)]] == []


def test_prose_has_none_of_them() -> None:
    assert len(FILES) > 300
    assert [remark for path in FILES for remark in english.remarks(path, SHAPES)] == []


def test_each_kind_of_file_is_read(tmp_path: Path) -> None:
    """Where a sentence goes over two lines, too; what is code in a page is not read."""
    for name, text, line in (
        ("page.md", "text\n\n```sh\nx is none\n```\nit is\nno number `y is none`\n", 6),
        ("page.rst", "text\n``x is none`` and it is\nno number\n", 2),
        ("module.py", 'x = 1\n# it is\n# no number\ny = f"{x} is longer"\n', 2),
        ("message.py", "def f(x):\n    raise ValueError(f'{x} is no number')\n", 2),
        ("main.c", 'int x;\n/* it is\n * no number */\nchar *y = "no";\n', 2),
        ("script.lua", "x = 1\n-- it is\n-- no number\n", 2),
    ):
        path = tmp_path / name
        path.write_text(text)
        found = [*english.remarks(path, SHAPES)]
        assert [remark.split(":")[1] for remark in found] == [str(line)], (name, found)
