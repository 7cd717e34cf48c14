"""The tables of the pages have a row for everything that they are about."""

import ast
import re
import subprocess
import sys

from scrun.settings.oci_conf.parse import OciConf
from scrun.settings.oci_conf.patterns import LETTERS
from scrun.settings.spank.callbacks import CALLBACKS
from scrun.supervisor.staging.policy import PASSED
from tests import CHECKOUT

HOWTO = CHECKOUT / "docs" / "howto"
_SPANK_LUA = CHECKOUT / "supervisor" / "worker" / "spank.lua"
_OF_SPANK = ("test_lua_worker_commands.py", "test_lua_host.py")
EXAMPLES = CHECKOUT / "docs" / "examples"
SECTIONS = (
    "SYNOPSIS", "DESCRIPTION", "RETURN VALUE", "GLOBAL OPTIONS", "CREATE OPTIONS",
    "DELETE OPTIONS", "INPUT ENVIRONMENT VARIABLES", "OUTPUT ENVIRONMENT VARIABLES",
    "JOB ENVIRONMENT VARIABLES", "scrun.lua", "EXAMPLE", "SIGNALS",
)  # fmt: skip


def rows(page: str) -> list[str]:
    """The first cell of every row of its tables."""
    lines = (HOWTO / page).read_text().splitlines()
    return [line.strip("| ").partition(" | ")[0] for line in lines if line.startswith("| ")]


def test_every_parameter_of_oci_conf_has_a_row() -> None:
    fields = {name.replace("_", "") for name in OciConf.__struct_fields__} - {"remarks"}
    assert fields - {first.lower().strip("`") for first in rows("oci-conf.md")} == set()


def test_every_pattern_of_oci_conf_has_a_row() -> None:
    found = {letter for first in rows("oci-conf.md") for letter in re.findall(r"`%(.)`", first)}
    assert found == {*LETTERS}


def test_every_example_of_oci_conf_is_linked() -> None:
    text = (HOWTO / "oci-conf.md").read_text()
    linked = set(re.findall(r"\(\.\./examples/oci\.conf/([^)]+)\)", text))
    assert linked == {path.name for path in (EXAMPLES / "oci.conf").iterdir()}


def test_every_callback_of_spank_is_in_the_page() -> None:
    text = (HOWTO / "spank.md").read_text()
    for name in CALLBACKS:
        assert re.search(rf"\b{name.removeprefix('slurm_spank_')}\b", text), name


def test_every_row_about_spank_lua_has_a_test() -> None:
    """Each function, option and return of the plugin; so no difference is only said."""
    page = (CHECKOUT / "docs" / "reference" / "spank-lua.md").read_text()
    lines = [line.strip("| ") for line in page.splitlines() if line.startswith("| ")]
    told = [line.partition(" | ")[0] for line in lines if not line.startswith("row | ")]
    table = (CHECKOUT / "tests" / "data" / "spank-lua-rows.tsv").read_text().splitlines()
    tests = dict(line.split("\t") for line in table)
    assert told == [*tests]
    defined = {
        name
        for path in (CHECKOUT / "tests").rglob("test_*.py")
        if "spank" in path.name or path.name in ("test_plugstack.py", *_OF_SPANK)
        for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert set(tests.values()) - defined == set()
    methods = re.findall(r"Handle\.(\w+)\(|SPANK\.(\w+)\(", _SPANK_LUA.read_text())
    for name in {first or second for first, second in methods}:
        assert re.search(rf"\b{name}\b", page), name


def test_the_plugin_s_entry_points_are_those_of_the_example() -> None:
    project = (EXAMPLES / "plugin" / "pyproject.toml").read_text()
    text = (HOWTO / "plugins.md").read_text()
    shown = re.findall(r'^    ("?engine/queue"? = .*)$', text, re.MULTILINE)
    assert shown
    assert [line for line in shown if line not in project] == []


def test_what_the_tests_cover() -> None:
    """The generated page has every section of scrun(1), and every marker of the tests."""
    command = [sys.executable, str(CHECKOUT / "tools" / "docs"), "--coverage"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    page = done.stdout
    manual = page.partition("scrun(1)\n")[2].partition("\n## ")[0]
    assert [section for section in SECTIONS if f"\n| {section}" not in manual] == []
    marked = [
        argument
        for path in (CHECKOUT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.covers"
        for argument in node.args
    ]
    assert len(marked) > 500
    assert len(re.findall(r"tests/[^`]*", page)) >= len(marked)


SECURITY = CHECKOUT / "docs" / "reference" / "security.md"


def attempts() -> list[str]:
    """What somebody tries, by the tables of that."""
    sections = re.split(r"^## ", SECURITY.read_text(), flags=re.MULTILINE)
    tried = [section for section in sections if re.match(r"What .+ tries\n", section)]
    lines = [line for section in tried for line in section.splitlines() if line.startswith("| ")]
    firsts = [line.strip("| ").partition(" | ")[0].replace("`", "") for line in lines]
    return [first for first in firsts if first != "attempt"]


def test_every_attempt_has_its_test() -> None:
    """Which is marked with it: `covers("security …")`, of which the site makes a list."""
    text = "".join(path.read_text() for path in sorted((CHECKOUT / "tests").rglob("test_*.py")))
    marked = {*re.findall(r'@pytest\.mark\.covers\(\s*"security ([^"]+)",?\s*\)', text)}
    assert len(attempts()) > 20
    assert [one for one in attempts() if one not in marked] == []


def test_annotations_that_pass_are_named() -> None:
    text = SECURITY.read_text()
    assert [name for name in PASSED if f"`{name}`" not in text] == []
