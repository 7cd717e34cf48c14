"""The table is well formed, and has every option of the runtimes that scrun stands in for."""

import re
import subprocess

import pytest

from scrun.cli.grammar import COMMANDS, CONTAINER, options_of
from scrun.cli.parse import Parsed, parse

SCOPES = [None, *COMMANDS]
# of crun 1.8 and runc 1.1; those that one of them does not have it calls unknown
OPERATIONS = [
    "create", "start", "state", "kill", "delete", "run", "exec", "list", "ps", "pause", "resume",
    "events", "update", "features", "spec", "checkpoint", "restore",
]  # fmt: skip
NOT_IN_CRUN = {"events", "features", "checkpoint", "restore"}
ANSWERS = ("help", "usage", "version")


@pytest.mark.parametrize("scope", SCOPES)
def test_no_name_is_given_twice(scope: str | None) -> None:
    options = options_of(scope)
    names = [option[0] for option in options]
    letters = [letter for option in options for letter in option[1]]
    assert len(names) == len(set(names))
    assert len(letters) == len(set(letters))


def test_a_command_does_not_reuse_the_name_of_a_global_option() -> None:
    # both are in one dict after parsing; one that is ignored before a command does no harm
    names = {option[0] for option in options_of(None) if option[3]}
    for command in COMMANDS:
        assert not names & {option[0] for option in COMMANDS[command][2]}


@pytest.mark.parametrize("scope", SCOPES)
def test_rows_are_well_formed(scope: str | None) -> None:
    for name, letters, metavar, _, _, text in options_of(scope):
        assert re.fullmatch(r"[a-z][a-z0-9]+(-[a-z]+)*", name)
        assert len(name) > 1
        assert "-" not in letters
        assert "=" not in letters
        assert metavar is None or re.fullmatch(
            r"[A-Z]+([:=][A-Z]+|\[:[A-Z]+])?|\[?[a-z]+(\|[a-z]+)+]?|\[N]", metavar
        )
        assert text
        assert not text.endswith(".")


@pytest.mark.parametrize("command", COMMANDS)
def test_operands_needed_come_before_optional_ones(command: str) -> None:
    kinds = [operand[0] for operand in COMMANDS[command][1]]
    assert kinds == sorted(kinds, key="<[".index)


# --- the real tools -------------------------------------------------------------------

# crun's argp:  "  -b, --bundle=DIR   text"
ARGP = re.compile(r"^ {2,6}(-.*?)(?: {2,}|$)")
# runc's cli:   "   --bundle value, -b value  text"
GO = re.compile(r"^ {3}(--.*?) {2,}")


def listed(tool: str, command: str | None) -> list[list[str]]:
    """Return what a tool's help lists: for each option its spellings, each as an argument,
    followed by a second one when the option takes a value."""
    words = [tool, *([command] if command else []), "--help"]
    text = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    found: list[list[str]] = []
    for line in text.splitlines():
        match = (ARGP if tool == "crun" else GO).match(line)
        if not match:
            continue
        names = match[1].split(", ")
        # crun's `--tty[=TTY]` is a flag that says more than yes or no: nobody uses that
        takes_value = any(re.search(r"(?<!\[)=| value$", name) for name in names)
        for name in names:
            spelling = re.split(r"[\[= ]", name)[0]
            found.append([spelling, "value"] if takes_value else [spelling])
    return found


def value_for(spelling: str) -> str:
    known = {"--log-format": "json", "--rootless": "auto", "--format": "table", "-f": "table"}
    known["--preserve-fds"] = "3"
    return known.get(spelling, "value")


def commandlines(command: str | None, spelling: str, *value: str) -> list[list[str]]:
    """Return the ways to write one option of a command, or a global one, for the id ``c1``."""
    written = value_for(spelling)
    forms = [[spelling, written], [f"{spelling}={written}"]] if value else [[spelling]]
    if command is None:
        return [[*form, "state", "c1"] for form in forms]
    places = COMMANDS[command][1]
    if places[:1] != (CONTAINER,):
        return [[command, *form] for form in forms]
    lines = [[command, *form, "c1"] for form in forms]
    if not places[-1].endswith("...]"):  # what follows the id of such a one is not scrun's
        lines += [[command, "c1", *form] for form in forms]
    return lines


def accepts(line: list[str], command: str) -> None:
    parsed: Parsed = parse(line)
    assert parsed.command in (command, *ANSWERS), line
    if parsed.command == command:
        needs = COMMANDS[command][1][:1] == (CONTAINER,)
        expected: tuple[str | None, list[str]] = ("c1" if needs else None, [])
        if parsed.options.get("regex"):
            expected = (None, ["c1"])
        assert (parsed.id, parsed.operands) == expected, line
        assert parsed.options, line


@pytest.mark.covers("scrun(1) DESCRIPTION: arguments of crun and runc")
@pytest.mark.parametrize(
    ("tool", "command"),
    [
        (tool, command)
        for tool in ("crun", "runc")
        for command in (None, *OPERATIONS)
        if tool == "runc" or command not in NOT_IN_CRUN
    ],
)
def test_every_option_that_the_tool_lists_is_accepted(tool: str, command: str | None) -> None:
    options = listed(tool, command)
    many = {None: 8, "run": 9, "exec": 16, "update": 15, "checkpoint": 15, "restore": 18}
    expected = {"crun": 3, "runc": many.get(command, 0)}
    assert len(options) >= expected[tool], options  # or the help was not understood
    if command in ("create", "run"):
        assert ["--pid-file", "value"] in options
        assert ["--no-pivot"] in options
    for option in options:
        for line in commandlines(command, *option):
            accepts(line, command or "state")


# what the versions have that are not the installed ones
LATER = [
    (None, "--log-level", "error"),  # newer crun
    (None, "--criu", "/usr/sbin/criu"),  # runc 1.1
    (None, "--rootless", "true"),
    (None, "--cgroup-manager", "systemd"),
    ("create", "--pidfd-socket", "/s"),  # runc 1.2
    ("create", "--config", "/c.json"),  # crun, and newer runc
    ("create", "--preserve-fds", "3"),
    ("create", "--no-subreaper"),
    ("kill", "--all"),  # hidden in runc since 1.2
    ("kill", "-a"),
    ("kill", "--regex"),
    ("delete", "--regex"),
    ("delete", "-f"),
    ("run", "--keep"),
    ("run", "-f", "/c.json"),
    ("exec", "--ignore-paused"),
    ("exec", "--cgroup", "/sub"),
    ("update", "--cpu-idle", "1"),  # runc 1.2
    ("update", "--cpu-burst", "1000"),
    ("checkpoint", "--tcp-skip-in-flight"),  # runc 1.3
    ("checkpoint", "--link-remap"),  # runc 1.3.6
    ("restore", "--lsm-mount-context", "c"),
    ("restore", "--pidfd-socket", "/s"),
]


@pytest.mark.parametrize(("command", "option"), [(row[0], row[1:]) for row in LATER])
def test_options_of_other_versions_are_accepted(
    command: str | None, option: tuple[str, ...]
) -> None:
    for line in commandlines(command, *option):
        accepts(line, command or "state")


MANUAL = [
    (None, "--cgroup-manager", "cgroupfs"),
    (None, "--debug"),
    (None, "-f", "/etc/slurm/slurm.conf"),
    (None, "--log-format", "text"),
    (None, "--log", "/l"),
    (None, "--root", "/r"),
    (None, "--rootless"),
    (None, "--systemd-cgroup"),
    (None, "-v"),
    (None, "-V"),
    (None, "--version"),
    (None, "--usage"),
    (None, "--help"),
    ("create", "-b", "/b"),
    ("create", "--bundle", "/b"),
    ("create", "--console-socket", "/s"),
    ("create", "--no-pivot"),
    ("create", "--no-new-keyring"),
    ("create", "--pid-file", "/p"),
    ("create", "--preserve-fds", "0"),
    ("delete", "--force"),
]


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: all of them")
@pytest.mark.parametrize(("command", "option"), [(row[0], row[1:]) for row in MANUAL])
def test_options_of_the_manual_are_accepted(command: str | None, option: tuple[str, ...]) -> None:
    for line in commandlines(command, *option):
        accepts(line, command or "state")
