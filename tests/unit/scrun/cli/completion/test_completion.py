"""The scripts of `scrun completion`, each in its own shell."""

import os
import pty
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.cli.completion import complete as completion
from scrun.cli.completion.scripts import SCRIPTS
from scrun.cli.grammar import COMMANDS, options_of
from scrun.cli.parse import Parsed
from scrun.core.ready import ready
from scrun.model.record import Record, write_record
from tests.harness.program import output_of, run_program
from tests.harness.site import scrun_binary

TIMEOUT = 20


class Place:
    """Files to complete, records to find, and `scrun` in PATH.

    Attributes:
        base: The directory of it all.
        here: The shells' working directory.
        root: A root directory with two containers.
        scripts: The script for each shell.
        environment: For the shells.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.root = base / "my root"
        for container in ("alpha", "beta"):
            (self.root / container).mkdir(parents=True)
            write_record(str(self.root / container), Record(id=container, status="stopped"))
        (self.root / "@user.lock").touch()
        (base / "bin").mkdir()
        (base / "bin" / "scrun").symlink_to(Path(scrun_binary()).resolve())
        (base / "things" / "folder").mkdir(parents=True)
        (base / "things" / "file").touch()
        self.here = base / "here"
        self.here.mkdir()
        (self.here / "archive").touch()
        self.scripts = {shell: base / f"scrun.{shell}" for shell in SCRIPTS}
        for shell, path in self.scripts.items():
            path.write_text(SCRIPTS[shell])
        self.environment = {
            "PATH": f"{base}/bin:{os.environ['PATH']}",
            "HOME": str(base),
            "XDG_CONFIG_HOME": str(base / "config"),
            "SCRUN_ROOT": str(base / "usual"),
            "ZDOTDIR": str(base),
            "LC_ALL": "C.UTF-8",
            "TERM": "dumb",
        }


class Bash:
    """Calls the function as bash does."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def complete(self, words: list[str]) -> set[str]:
        """Return what is offered for the last of the words."""
        # bash breaks words at `=`, and leaves quotes and backslashes in them
        split = [part for word in words for part in _at_equals(word.replace(" ", "\\ "))]
        program = (
            'source "$1"; shift; COMP_WORDS=("$@") COMP_CWORD=$(($# - 1));'
            ' _scrun; ((${#COMPREPLY[@]})) && printf "%s\\n" "${COMPREPLY[@]}"; :'
        )
        said = output_of(
            ["bash", "--norc", "-uc", program, "bash", self._place.scripts["bash"], *split],
            env=self._place.environment,
            cwd=self._place.here,
            timeout=TIMEOUT,
        )
        return {*said.splitlines()}

    def close(self) -> None:
        """Nothing is left running."""


def _at_equals(word: str) -> list[str]:
    name, equals, value = word.partition("=")
    parts = [name, equals, value] if equals else [word]
    return [part for part in parts if part] or [""]


class Fish:
    """Asks fish itself."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def complete(self, words: list[str]) -> set[str]:
        """Return what is offered for the last of the words."""
        line = " ".join(word.replace(" ", "\\ ") for word in words)
        program = f"source '{self._place.scripts['fish']}'; complete -C $argv[1]"
        said = output_of(
            ["fish", "--no-config", "-c", program, line],
            env=self._place.environment,
            cwd=self._place.here,
            timeout=TIMEOUT,
        )
        return {offer.partition("\t")[0] for offer in said.splitlines()}

    def close(self) -> None:
        """Nothing is left running."""


ZSH_SETUP = r"""
autoload -U compinit
SETUP
compadd() {
    local -a found
    if (( ${@[(I)-[OAD]]} )); then builtin compadd "$@"; return; fi
    builtin compadd -O found "$@"
    (( $#found )) && print -r -u FD -l -- $found
    builtin compadd "$@"
}
report() { print -u FD -- END }
complete-and-tell() { comppostfuncs=(report); zle list-choices }
zle -N complete-and-tell
bindkey '^T' complete-and-tell
LISTMAX=1000000 PS1= RPS1=
zstyle ':completion:*' list-prompt ''
print -u FD READY
"""


class Zsh:
    """An interactive zsh on a terminal, whose completion tells a pipe, too, what it finds."""

    def __init__(self, place: Place, setup: str = "compinit -u -D; source SCRIPT") -> None:
        self._reader, writer = os.pipe()
        self._master, slave = pty.openpty()
        self._shell = subprocess.Popen(
            ["zsh", "-f", "-i"],
            env=place.environment,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            pass_fds=[writer],
            start_new_session=True,
            cwd=place.here,
        )
        os.close(slave)
        os.close(writer)
        self._told = b""
        file = place.base / "setup.zsh"
        text = ZSH_SETUP.replace("FD", str(writer)).replace("SETUP", setup)
        file.write_text(text.replace("SCRIPT", f"'{place.scripts['zsh']}'"))
        self._type(f"source '{file}'\r")
        self._until("READY")

    def _type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def _until(self, mark: str) -> set[str]:
        found: set[str] = set()
        screen = b""
        deadline = time.monotonic() + TIMEOUT
        while True:
            line, newline, rest = self._told.partition(b"\n")
            if newline:
                self._told = rest
                if line.decode() == mark:
                    return found
                found.add(line.decode())
                continue
            left = max(0, deadline - time.monotonic())
            said, _ = ready([self._reader, self._master], seconds=left)
            assert said, f"no {mark}; told {found}, on the screen {screen[-2000:]!r}"
            if self._master in said:  # or it waits for room on its terminal
                screen += os.read(self._master, 65536)
            if self._reader in said:
                more = os.read(self._reader, 65536)
                assert more, f"zsh ended; on the screen {screen[-2000:]!r}"
                self._told += more

    def complete(self, words: list[str]) -> set[str]:
        """Return what is offered for the last of the words."""
        line = " ".join(word.replace(" ", "\\ ") for word in words)
        self._type(f"\x15{line}\x14")  # ^U empties the line
        return self._until("END")

    def close(self) -> None:
        """End it: its terminal hangs up."""
        self._shell.kill()
        self._shell.wait(TIMEOUT)
        os.close(self._master)
        os.close(self._reader)


Shell = Bash | Fish | Zsh


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("completion"))


@pytest.fixture(scope="module", params=[Bash, Zsh, Fish], ids=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, place: Place) -> Iterator[Shell]:
    name = request.param.__name__.lower()
    assert shutil.which(name), f"{name} is missing: tools/setup --test"
    made: Shell = request.param(place)
    yield made
    made.close()


def offered(shell: Shell, place: Place, line: str) -> set[str]:
    """What a shell offers; values and names of files without what stands before them.

    Args:
        shell: The shell.
        place: Where.
        line: ROOT and THINGS are filled in; the last word, perhaps empty, is completed.
    """
    words = [
        word.replace("ROOT", str(place.root)).replace("THINGS", str(place.base / "things"))
        for word in line.split(" ")
    ]
    found = shell.complete(words)
    if words[-1].startswith("--") and "=" in words[-1]:
        name = words[-1].partition("=")[0]
        found = {offer.removeprefix(f"{name}=") for offer in found}
    return {os.path.basename(offer.rstrip("/ ")) for offer in found}


@pytest.mark.covers("scrun completion")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--rootl", set()),  # it is ignored, and so not offered
        ("--log-f", {"--log-format"}),
        ("--log-format ", {"text", "json"}),
        ("--log-format=j", {"json"}),
        ("-f /etc/slurm.conf sta", {"start", "state", "stats"}),
        ("--slurm-conf=/etc/slurm.conf sta", {"start", "state", "stats"}),
        ("--root ROOT --debug delete ", {"alpha", "beta"}),
        ("--root=ROOT delete a", {"alpha"}),
        ("--root ROOT DELETE --force a", {"alpha"}),
        ("--root ROOT delete alpha gamma b", {"beta"}),
        ("delete ", set()),  # under the usual root there are none
        ("--root ROOT state alpha b", set()),
        ("--root ROOT kill alpha KIL", {"KILL"}),
        ("--root ROOT exec --env A=1 a", {"alpha"}),
        ("--root ROOT exec a", {"alpha"}),
        ("--rootless=true --root ROOT delete a", {"alpha"}),
        ("exec --en", {"--env"}),
        ("--root ROOT exec alpha --en", set()),  # the program's own
        ("list --format ", {"table", "json"}),
        ("completion ", {"bash", "zsh", "fish"}),
        ("help chec", {"checkpoint"}),
    ],
)
def test_words(place: Place, line: str, expected: set[str]) -> None:
    """What is told to each of the shells."""
    root = str(place.root)
    words = [word.replace("ROOT", root) for word in line.split(" ")]
    _, found = completion.complete(words, lambda parsed: ids(place, parsed))
    last = words[-1].partition("=")[0] + "=" if "=" in words[-1] else ""
    assert {offer.partition("\t")[0].removeprefix(last) for offer in found} == expected


def ids(place: Place, parsed: Parsed) -> list[str]:
    return ["alpha", "beta"] if parsed.text("root") == str(place.root) else []


@pytest.mark.covers("scrun completion")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("scrun st", {"start", "state", "stats"}),
        ("scrun --log-format=j", {"json"}),
        ("scrun --root ROOT --debug delete ", {"alpha", "beta"}),
        ("scrun --root ROOT run a", {"archive"}),  # a new id, or an image
        ("scrun --root ROOT exec alpha --en", set()),  # the program's own
        ("scrun run --bundle THINGS/f", {"folder"}),
        ("scrun run --pid-file THINGS/f", {"folder", "file"}),
    ],
)
def test_offers(shell: Shell, place: Place, line: str, expected: set[str]) -> None:
    assert offered(shell, place, line) == expected


@pytest.mark.parametrize("shell", [Bash, Fish], ids=["bash", "fish"], indirect=True)
def test_forms_of_go(shell: Shell, place: Place) -> None:
    """Not in zsh, whose _arguments does not have them."""
    assert offered(shell, place, "scrun -slurm-conf /s.conf sta") == {"start", "state", "stats"}
    assert offered(shell, place, "scrun --root ROOT delete --force=false a") == {"alpha"}


@pytest.mark.covers("scrun completion")
def test_all_commands_are_offered(shell: Shell, place: Place) -> None:
    found = offered(shell, place, "scrun ")
    # zsh tells a command with its description
    assert {offer.partition(":")[0] for offer in found} >= {*COMMANDS}


@pytest.mark.covers("scrun completion")
@pytest.mark.parametrize("command", ["create", "exec"])
def test_all_options_are_offered(shell: Shell, place: Place, command: str) -> None:
    used = {f"--{option[0]}" for option in options_of(command) if option[3]}
    found = offered(shell, place, f"scrun {command} --")
    assert {offer.partition("=")[0] for offer in found} == used


def test_zsh_finds_it_in_fpath(place: Place) -> None:
    functions = place.base / "functions"
    functions.mkdir()
    (functions / "_scrun").write_text(SCRIPTS["zsh"])
    shell = Zsh(place, f"fpath=('{functions}' $fpath); compinit -u -D")
    try:
        for _ in range(2):  # the first time the function is only loaded
            assert offered(shell, place, "scrun --root ROOT delete ") == {"alpha", "beta"}
    finally:
        shell.close()


def test_fish_finds_it_in_its_configuration(place: Place) -> None:
    completions = Path(place.environment["XDG_CONFIG_HOME"]) / "fish" / "completions"
    completions.mkdir(parents=True, exist_ok=True)  # fish 4 makes it itself
    (completions / "scrun.fish").write_text(SCRIPTS["fish"])
    said = output_of(
        ["fish", "-c", "complete -C 'scrun st'"], env=place.environment, timeout=TIMEOUT
    )
    assert [line.partition("\t")[0] for line in said.splitlines()] == ["start", "state", "stats"]


@pytest.mark.covers("scrun completion")
@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_command_prints_it(place: Place, shell: str) -> None:
    def call(name: str) -> subprocess.CompletedProcess[str]:
        return run_program(
            [scrun_binary(), "completion", name], env=place.environment, timeout=TIMEOUT
        )

    done = call(shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == SCRIPTS[shell]
    assert not re.search("@[A-Z]+@", done.stdout)  # all places are filled in
    refused = call(f"{shell}2")
    assert refused.returncode == 1
    assert f"'{shell}2', only for bash, zsh, fish" in refused.stderr


def test_the_kinds_of_places() -> None:
    assert [kind for kind, _ in completion.places("kill")] == ["ids", "words"]
    assert [kind for kind, _ in completion.places("restore")] == ["none"]
    assert completion.places("lua")[0] == ("words", ("check", "run"))


@given(
    st.lists(
        st.sampled_from(["", "-", "--", "=", "kill", "RUN", "lua", "help"])
        | st.sampled_from(
            [f"--{option[0]}" for scope in (None, *COMMANDS) for option in options_of(scope)]
        )
        | st.text(max_size=5),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["", "=", "=x"]),
)
def test_any_line(words: list[str], tail: str) -> None:
    words[-1] += tail
    kind, found = completion.complete(words, lambda _: ["a"])
    assert kind in ("words", "file", "directory", "none")
    assert all(offer.startswith(words[-1]) for offer in found)


@pytest.mark.covers("scrun completion")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nosuch ", ["none"]),
        ("--log-format=j", ["words", "--log-format=json\t"]),
        ("delete --fo", ["words", f"--force\t{options_of('delete')[0][5]}"]),
        ("delete -- -", ["words"]),
        ("--root /etc/hosts delete ", ["words"]),
        ("--config-file /nosuch delete ", ["words"]),
        ("--nosuch delete --all=", ["none"]),
    ],
)
def test_what_the_shells_ask_for(place: Place, line: str, expected: list[str]) -> None:
    said = output_of(
        [scrun_binary(), "__complete", *line.split(" ")], env=place.environment, timeout=TIMEOUT
    )
    assert said.splitlines() == expected
    assert not list(place.root.glob("@*.sock"))
    assert not (place.base / "run").exists()  # no supervisor, and no place for one
