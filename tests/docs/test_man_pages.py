"""The manual pages: that they render, leave nothing out, and name nothing that there is not."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from scrun.cli.grammar import COMMANDS, GLOBAL, Option
from scrun.model import states
from scrun.settings.file import load
from scrun.settings.slurm import requests
from scrun.settings.slurm.outputs import ScriptFacts
from scrun.supervisor.worker import constants
from scrun.supervisor.worker import main as worker
from scrun.supervisor.worker.documents import Documents
from tests import CHECKOUT
from tests.harness.program import output_of, run_program

PAGES = ("scrun.1", "scrun.lua.5", "scrun.toml.5")
PRELUDE = (CHECKOUT / "supervisor" / "worker" / "prelude.lua").read_text()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the rendered pages."""
    directory = tmp_path_factory.mktemp("docs") / "new"
    done = run_program([sys.executable, CHECKOUT / "tools" / "docs", directory])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return directory


def plain(roff: str) -> str:
    """What a man page says, near enough, without its markup."""
    for markup, text in (
        (r"\\f.", ""), (r"\\-", "-"), (r"\\\(aq", "'"), (r"\\\(dq", '"'), (r"\\&", ""),
    ):  # fmt: skip
        roff = re.sub(markup, text, roff)
    return roff


def man(built: Path, page: str) -> str:
    return plain((built / page).read_text())


def entries(built: Path, page: str) -> set[str]:
    """The terms of a page's definition lists."""
    return set(re.findall(r"^\.B (.+)", man(built, page), re.MULTILINE))


class Page(HTMLParser):
    """What a web page has, as far as it matters here."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(content)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("link", "script", "img", "iframe") or "src" in found:
            self.loads.append(f"{tag} {found}")


@pytest.fixture(scope="module")
def web(built: Path) -> dict[str, Page]:
    return {page: Page((built / f"{page}.html").read_text()) for page in PAGES}


def every_option() -> Iterator[tuple[str, Option]]:
    for option in GLOBAL:
        yield "global", option
    for name, (_, _, options) in COMMANDS.items():
        for option in options:
            yield name, option


def test_all_commands(built: Path, web: dict[str, Page]) -> None:
    text = man(built, "scrun.1")
    for command, (about, _, _) in COMMANDS.items():
        assert f"\n.SS {command}\n" in text
        assert f"scrun [GLOBAL OPTIONS] {command} " in text.replace("\n", " \n")
        assert about in text
        assert f"command-{command}" in web["scrun.1"].ids


def test_all_options(built: Path, web: dict[str, Page]) -> None:
    terms = entries(built, "scrun.1")
    for command, (name, letters, metavar, *_) in every_option():
        described = [term for term in terms if re.search(rf"(^|, )--{name}(\W|$)", term)]
        assert described, name
        assert any(all(f"-{letter}" in term for letter in letters) for term in described), name
        words = re.split(r"\W+", (metavar or "").strip("[]"))
        assert any(all(word in term for word in words) for term in described), name
        assert f"option-{command}-{name}" in web["scrun.1"].ids


def test_all_requests(built: Path, web: dict[str, Page]) -> None:
    text = man(built, "scrun.1")
    for variable, request in requests.TABLE.items():
        entry = re.search(rf"^\.B {variable}\n(.+)", text, re.MULTILINE)
        assert entry, variable
        assert entry[1].startswith(f"{request.option} of "), variable
        assert ("not from an image" in entry[1]) is not request.safe, variable
        assert ("salloc" in entry[1]) is (request.scope in ("job", "both")), variable
        if request.until:
            assert f"before {request.until[0]}.{request.until[1]:02}" in entry[1]
        assert f"variable-{variable}" in web["scrun.1"].ids


def test_all_variables(built: Path) -> None:
    terms = entries(built, "scrun.1")
    assert {*load.OF_SETTINGS} <= terms
    for field in ScriptFacts.__struct_fields__:
        name = "ANNOTATION_KEY" if field == "annotations" else field.upper()
        assert f"SCRUN_{name}" in terms


def test_all_statuses_and_levels(built: Path) -> None:
    terms = entries(built, "scrun.1")
    assert {f"{status} {reason}" for reason, status in states.TAKEN.items()} <= terms
    assert {f"{name} ({number})" for number, name in enumerate(load.LEVELS)} <= terms


def test_all_settings(built: Path, web: dict[str, Page]) -> None:
    text = man(built, "scrun.toml.5")
    for field in msgspec.structs.fields(load.Settings):
        if not (isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)):
            assert f"\n.B {field.name}\n" in text
            continue
        _, _, section = text.partition(f"\n.SH [{field.name}]\n")
        section, _, _ = section.partition("\n.SH ")
        for key in msgspec.structs.fields(field.type):
            assert f"\n.B {key.name}\n" in section, f"{field.name}.{key.name}"
            assert f"setting-{field.name}-{key.name}" in web["scrun.toml.5"].ids
            if isinstance(key.default, bool):
                assert f"default {str(key.default).lower()}." in section
            elif isinstance(key.default, int | float):
                assert f"default {key.default:g}." in section


def test_all_of_the_table_slurm(built: Path) -> None:
    text = man(built, "scrun.lua.5")
    functions = {
        *re.findall(r"^function slurm\.(\w+)", PRELUDE, re.MULTILINE),
        "error",
        "log_user",
    }
    assert functions > {"allocator_command", "log_debug4", "time_str2mins"}
    listed = {*constants.USUAL, "CLUSTER_NAME"}
    mentioned = set(re.findall(r"slurm\.(\w+)", text)) - {"conf"}
    assert mentioned == functions | listed | {*Documents._fields}
    for function in worker._FUNCTIONS:
        assert f".B {function}(" in text


def test_nothing_that_scrun_does_not_have(built: Path) -> None:
    known = {f"--{option[0]}" for _, option in every_option()}
    known |= {request.option for request in requests.TABLE.values()}
    # of srun, and of pyxis
    known |= {"--error", "--export", "--input", "--output", "--container-image"}
    known |= {"--container-mounts", "--container-name"}
    known |= {"--container-mount-home", "--container-remap-root"}
    known |= {"--comment", "--multi-prog", "--oversubscribe"}
    # of podman and docker
    known |= {"--annotation", "--network", "--rm", "--runtime", "--cpus", "--memory", "--gpus"}
    for page in PAGES:
        text = man(built, page)
        assert {*re.findall(r"(?<![\w-])--[a-z][\w-]*", text)} <= known, page
        for example in re.findall(r"^\.EX\n(.*?)^\.EE", text, re.MULTILINE | re.DOTALL):
            assert {*re.findall(r"^scrun ([a-z-]+)", example, re.MULTILINE)} <= {*COMMANDS}
        assert {*re.findall(r"\bscrun ([a-z-]+) [A-Z]", text)} <= {*COMMANDS}, page
        variables = {*re.findall(r"\bSCRUN_[A-Z0-9_]*[A-Z0-9]", text)}
        variables -= {*requests.TABLE, *load.OF_SETTINGS, "SCRUN_CONFIG"}
        told = {f"SCRUN_{field.upper()}" for field in ScriptFacts.__struct_fields__}
        assert variables <= {*told, "SCRUN_ANNOTATION_KEY", "SCRUN_OPTION_NAME"}, page


def test_links_lead_somewhere(web: dict[str, Page]) -> None:
    for name, page in web.items():
        assert len(page.ids) == len(set(page.ids)), name
        for link in page.links:
            if link.startswith("https://"):
                continue
            file, _, fragment = link.partition("#")
            target = web[file.removesuffix(".html") or name]
            assert not fragment or fragment in target.ids, f"{name}: {link}"
        others = {f"{other}.html" for other in PAGES if other != name}
        assert others <= {link.partition("#")[0] for link in page.links}


def test_web_pages_load_nothing(web: dict[str, Page], built: Path) -> None:
    for name, page in web.items():
        assert page.loads == [], name
        content = (built / f"{name}.html").read_text()
        assert "prefers-color-scheme: dark" in content
        assert not re.search(r"@import|url\(", content)


@pytest.mark.parametrize("page", PAGES)
def test_man_can_show_them(built: Path, page: str) -> None:
    said = output_of(
        ["groff", "-man", "-Tutf8", "-K", "utf8", "-ww", "-rLL=80n", built / page],
        encoding="utf-8",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "GROFF_NO_SGR": "1"},
    )
    lines = re.sub(r".\x08", "", said).splitlines()
    assert max(map(len, lines)) <= 80
    assert "SYNOPSIS" in lines or page != "scrun.1"


def test_a_fault_in_a_source_is_an_error(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    shutil.copytree(CHECKOUT / "docs" / "man", copy / "docs" / "man")
    (copy / "tools").mkdir()
    shutil.copy(CHECKOUT / "tools" / "docs", copy / "tools")
    for package in ("scrun", "supervisor"):
        (copy / package).symlink_to(CHECKOUT / package)
    source = copy / "docs" / "man" / "scrun.1.rst"
    text = source.read_text()
    command = [sys.executable, str(copy / "tools" / "docs"), str(tmp_path / "out")]
    for before, after, reason in (
        ("   :cancelled:", "   :canceled:", "does not have canceled"),
        ("   :kill:", "   :slay:", "does not have slay"),
        ("`Exit status`_", "`Exit state`_", "exit state"),
    ):
        assert before in text
        source.write_text(text.replace(before, after))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("page", PAGES)
def test_man_finds_them_after_setup(page: str) -> None:
    """It looks for share/man beside each bin of PATH."""
    path = Path(sys.prefix) / "share" / "man" / f"man{page[-1]}" / page
    assert path.read_text().startswith(".")
    if man := shutil.which("man"):
        environment = {"PATH": f"{sys.prefix}/bin:/usr/bin:/bin"}
        name = page.rpartition(".")[0]
        done = subprocess.run([man, "-w", name], env=environment, capture_output=True, text=True)
        assert done.stdout == f"{path}\n", done.stderr
