"""docs/howto/oci-conf.md: it has every parameter and pattern, and names tests that exist."""

import re

from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.oci_conf.patterns import LETTERS
from tests.harness import documents

HEADINGS = ("runtime", "the container runs", "of the guide", "parameter", "pattern")
ROWS = [row for row in documents.rows("howto/oci-conf.md") if row[0] not in HEADINGS]
TEXT = (documents.PROJECT / "docs" / "howto" / "oci-conf.md").read_text()
EXAMPLES = documents.PROJECT / "docs" / "examples" / "oci.conf"


def test_every_test_that_is_named_is_there() -> None:
    named = [name for _, names in ROWS for name in names]
    assert len(named) > 60
    assert documents.missing(named) == []


def test_every_row_has_a_test() -> None:
    tables = TEXT[TEXT.index("## The containers guide") :]
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    assert len(rows) > 40
    without = [row for row in rows if not documents.named_tests(row)]
    assert [row for row in without if row.split(" | ")[0].strip("| ") not in HEADINGS] == []


def test_every_parameter_has_a_row() -> None:
    fields = {name.replace("_", "") for name in OciConf.__struct_fields__} - {"remarks"}
    assert fields - {first.lower() for first, _ in ROWS} == set()


def test_every_pattern_has_a_row() -> None:
    found = {letter for first, _ in ROWS for letter in re.findall(r"`%(.)`", first)}
    assert found == {*LETTERS}


def test_every_example_is_named() -> None:
    named = set(re.findall(r"\(\.\./examples/oci\.conf/([^)]+)\)", TEXT))
    assert named == {path.name for path in EXAMPLES.iterdir()}


def test_it_is_linked() -> None:
    assert "docs/howto/oci-conf.md" in (documents.PROJECT / "README.md").read_text()
