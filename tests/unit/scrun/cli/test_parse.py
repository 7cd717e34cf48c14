"""From arguments to what is asked for."""

import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrun.cli import grammar
from scrun.cli.grammar import COMMANDS, CONTAINER, MANY, ONCE, USED, options_of
from scrun.cli.parse import parse
from scrun.core.errors import UsageError
from tests import CHECKOUT
from tests.harness.program import run_program


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --help, --usage, --version")
@pytest.mark.covers("slurm-scrun -V fails, unknown options exit 0")
@pytest.mark.parametrize(
    ("line", "command", "options", "container", "operands"),
    [
        ("state c1", "state", {}, "c1", []),
        ("STATE c1", "state", {}, "c1", []),
        ("--root /r state c1", "state", {"root": "/r"}, "c1", []),
        ("--root=/r state c1", "state", {"root": "/r"}, "c1", []),
        ("--root=/a=b state c1", "state", {"root": "/a=b"}, "c1", []),
        ("--root= state c1", "state", {"root": ""}, "c1", []),
        ("--root --debug state c1", "state", {"root": "--debug"}, "c1", []),
        ("--root /a --root /b state c1", "state", {"root": "/b"}, "c1", []),
        # runc takes long names with one dash
        ("-root /r state c1", "state", {"root": "/r"}, "c1", []),
        ("-root=/r state c1", "state", {"root": "/r"}, "c1", []),
        ("create -bundle /b c1", "create", {"bundle": "/b"}, "c1", []),
        ("delete -force c1", "delete", {"force": True}, "c1", []),
        # an image is told from an id by its form, and options end there
        (
            "run -N 2 docker://x a -b c",
            "run",
            {"nodes": "2"},
            None,
            ["docker://x", "a", "-b", "c"],
        ),
        ("run ./x", "run", {}, None, ["./x"]),
        ("run a.sqsh --help", "run", {}, None, ["a.sqsh", "--help"]),
        ("run -- oci:x -c", "run", {}, None, ["oci:x", "-c"]),
        ("run c1 --bundle /a:b", "run", {"bundle": "/a:b"}, "c1", []),
        # short ones
        ("create -b /b c1", "create", {"bundle": "/b"}, "c1", []),
        ("create -b/b c1", "create", {"bundle": "/b"}, "c1", []),
        ("create -b=/b c1", "create", {"bundle": "/b"}, "c1", []),
        ("create -bdir c1", "create", {"bundle": "dir"}, "c1", []),
        ("-v state c1", "state", {"verbose": 1}, "c1", []),
        ("-vv --verbose state c1", "state", {"verbose": 3}, "c1", []),
        ("-vf/s.conf state c1", "state", {"verbose": 1, "slurm-conf": "/s.conf"}, "c1", []),
        ("-vf /s.conf state c1", "state", {"verbose": 1, "slurm-conf": "/s.conf"}, "c1", []),
        ("kill -ar c1", "kill", {"all": True, "regex": True}, None, ["c1"]),
        # the same letter means another thing after the command
        (
            "-f /s.conf create -f /c.json c1",
            "create",
            {"slurm-conf": "/s.conf", "config": "/c.json"},
            "c1",
            [],
        ),
        ("-f /s.conf delete -f c1", "delete", {"slurm-conf": "/s.conf", "force": True}, "c1", []),
        # Go's booleans
        ("delete --force=true c1", "delete", {"force": True}, "c1", []),
        ("delete --force=0 c1", "delete", {}, "c1", []),
        ("delete --force --force=false c1", "delete", {}, "c1", []),
        ("delete -f=T c1", "delete", {"force": True}, "c1", []),
        ("--version=false state c1", "state", {}, "c1", []),
        # an option that may have a value
        ("--rootless state c1", "state", {"rootless": True}, "c1", []),
        ("--rootless=auto state c1", "state", {"rootless": "auto"}, "c1", []),
        ("--rootless true state c1", "state", {"rootless": "true"}, "c1", []),
        ("--rootless=1 state c1", "state", {"rootless": "1"}, "c1", []),
        # around the id
        ("delete c1 --force", "delete", {"force": True}, "c1", []),
        ("create c1 --bundle /b", "create", {"bundle": "/b"}, "c1", []),
        ("delete -- c1", "delete", {}, "c1", []),
        ("delete -- -f", "delete", {}, "-f", []),
        ("delete --force -- -f", "delete", {"force": True}, "-f", []),
        ("-- state c1", "state", {}, "c1", []),
        ("state -", "state", {}, "-", []),
        # kill's signal
        ("kill c1 9", "kill", {}, "c1", ["9"]),
        ("kill c1 SIGKILL", "kill", {}, "c1", ["SIGKILL"]),
        ("kill c1 nonsense", "kill", {}, "c1", ["nonsense"]),
        ("kill c1 -9", "kill", {}, "c1", ["9"]),
        ("kill c1 -KILL", "kill", {}, "c1", ["KILL"]),
        ("kill c1 -alrm", "kill", {}, "c1", ["alrm"]),
        ("kill c1 -SIGRTMIN+1", "kill", {}, "c1", ["SIGRTMIN+1"]),
        ("kill c1 -a", "kill", {"all": True}, "c1", []),
        ("kill --all c1 15", "kill", {"all": True}, "c1", ["15"]),
        ("kill c1 15 -a", "kill", {"all": True}, "c1", ["15"]),
        ("delete a b c", "delete", {}, "a", ["b", "c"]),
        ("delete a -f b", "delete", {"force": True}, "a", ["b"]),
        # no container
        ("version", "version", {}, None, []),
        ("help", "help", {}, None, []),
        ("help KILL", "help", {}, None, ["kill"]),
        ("--version", "version", {}, None, []),
        ("-V", "version", {}, None, []),
        ("-vV", "version", {"verbose": 1}, None, []),
        ("--help", "help", {}, None, []),
        ("-h", "help", {}, None, []),
        ("-?", "help", {}, None, []),
        ("--usage", "usage", {}, None, []),
        ("--help nonsense --nonsense", "help", {}, None, []),
        ("create --help", "help", {}, None, ["create"]),
        ("kill c1 --usage --nonsense", "usage", {}, None, ["kill"]),
        ("Help -h", "help", {}, None, ["help"]),
    ],
)
def test_forms(
    line: str,
    command: str,
    options: dict[str, object],
    container: str | None,
    operands: list[str],
) -> None:
    parsed = parse(line.split())
    assert parsed.command == command
    assert parsed.options == options
    assert parsed.id == container
    assert parsed.operands == operands


@pytest.mark.covers("scrun(1) DESCRIPTION: arguments of crun and runc")
def test_what_podman_and_docker_send() -> None:
    name = "f" * 64
    line = "--log-format=json --log /b/oci-log create --bundle /b --console-socket /tmp/c"
    podman = parse(f"{line} --pid-file /p {name}".split())
    assert podman.id == name
    assert podman.text("log-format") == "json"
    assert podman.text("console-socket") == "/tmp/c"
    line = "--root /r --log /t/log.json --log-format json --systemd-cgroup"
    docker = parse(f"{line} kill --all {name} 9".split())
    assert (docker.id, docker.operands) == (name, ["9"])


@pytest.mark.covers("slurm-scrun -V fails, unknown options exit 0")
@pytest.mark.parametrize(
    ("line", "names", "remedy"),
    [
        ("", "no command", "scrun --help"),
        ("-v", "no command", "scrun --help"),
        ("--root /r", "no command", "scrun --help"),
        ("--bogus state c1", "'--bogus'", "scrun --help"),
        ("--bogus=x state c1", "'--bogus'", "scrun --help"),
        ("-x state c1", "'-x'", "scrun --help"),
        ("-vx state c1", "'-vx'", "scrun --help"),
        ("state --bogus c1", "'--bogus'", "scrun state --help"),
        ("--root", "--root needs a value, DIR", "scrun --help"),
        ("-f", "--slurm-conf needs a value", "scrun --help"),
        ("create c1 --bundle", "--bundle needs a value", "scrun create --help"),
        ("delete --force=x c1", "--force takes no value", "scrun delete --help"),
        ("delete --force= c1", "--force takes no value", "scrun delete --help"),
        ("--log-format=xml state c1", "'xml', only text or json", "scrun --help"),
        ("state --root /r c1", "'--root' must stand before 'state'", "scrun --help"),
        ("frobnicate c1", "'frobnicate'", "scrun --help"),
        ("help frobnicate", "'frobnicate'", "scrun --help"),
        ("create", "create needs a container-id", "scrun create --help"),
        ("kill --all", "kill needs a container-id", "scrun kill --help"),
        ("create c1 c2", "'c2'", "scrun create --help"),
        ("kill c1 9 10", "'10'", "scrun kill --help"),
        ("kill c1 9 -10", "'-10'", "scrun kill --help"),
        ("kill -9 c1", "'-9'", "scrun kill --help"),
        ("kill c1 -99", "'-99'", "scrun kill --help"),
        ("state c1 -9", "'-9'", "scrun state --help"),
        ("version x", "'x'", "scrun version --help"),
        ("help kill start", "'start'", "scrun help --help"),
        ("state a/b", "'a/b'", "letters"),
        ("delete a ..", "'..'", "letters"),
        ("state ..", "'..'", "letters"),
    ],
)
def test_errors_are_one_line_with_a_remedy(line: str, names: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(line.split())
    message = str(caught.value)
    assert names in message
    assert remedy in message
    assert "\n" not in message


def test_an_error_has_the_options_read_before_it() -> None:
    with pytest.raises(UsageError) as caught:
        parse(["--log", "/l", "--log-format", "json", "kill"])
    assert caught.value.options == {"log": "/l", "log-format": "json"}


def test_values_and_counts() -> None:
    parsed = parse(["--root", "/r", "-vv", "--rootless", "delete", "-f", "c1"])
    assert parsed.text("root") == "/r"
    assert parsed.text("log") is None
    assert parsed.text("rootless") is None
    assert (parsed.count("verbose"), parsed.count("force"), parsed.count("debug")) == (2, 1, 0)
    assert "delete" in repr(parsed)


def test_what_later_commands_need_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    # options that may be given many times, and operands that are a command line themselves
    monkeypatch.setitem(
        grammar.COMMANDS,
        "exec",
        (
            "Run a program in a running container",
            (CONTAINER, "[command...]"),
            (
                ("env", "e", "NAME=VALUE", USED, MANY, "Set a variable"),
                ("tty", "t", None, USED, ONCE, "Allocate a terminal"),
            ),
        ),
    )
    options = ["-e", "A=1", "--env=B=2", "-te", "C=3"]
    program = ["ls", "-t", "--", "--bogus"]
    parsed = parse(["exec", *options, "c1", *program])
    assert parsed.options == {"env": ["A=1", "B=2", "C=3"], "tty": True}
    assert parsed.id == "c1"
    assert parsed.operands == program
    with pytest.raises(UsageError, match="exec needs a container-id"):
        parse(["exec", "-t"])


words = st.one_of(
    st.text(),
    st.sampled_from(list(COMMANDS)),
    st.sampled_from(
        [f"--{option[0]}" for scope in (None, *COMMANDS) for option in options_of(scope)]
    ),
    st.sampled_from(["-", "--", "-v", "-f", "-b", "-9", "-KILL", "c1", "true", "=", "--=", "-="]),
    st.builds("-{}".format, st.text()),
    st.builds("--{}={}".format, st.sampled_from(["root", "force", "rootless"]), st.text()),
)


@example(["STATS", "0"])
@given(st.lists(words, max_size=8))
def test_nothing_but_a_usage_error_comes_out(argv: list[str]) -> None:
    before = list(argv)
    try:
        parsed = parse(argv)
    except UsageError as error:
        message = str(error)
    else:
        message = ""
        assert parsed.command in (*COMMANDS, "usage")
        first = "".join(COMMANDS.get(parsed.command, ("", (), ()))[1][:1])
        assert (parsed.id is not None) is (first == CONTAINER) or first == "[container-id]"
    assert "\n" not in message
    assert argv == before


@pytest.mark.parametrize("module", ["scrun.cli.parse", "scrun.cli.help", "scrun.core.errors"])
def test_the_parser_imports_nothing_but_its_like(module: str) -> None:
    def imported(code: str) -> set[str]:
        result = run_program(
            [sys.executable, "-I", "-S", "-X", "importtime", "-c", code], check=True
        )
        return {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}

    path = f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})"
    bare = imported(path)
    extra = imported(f"{path}; import {module}; {module}.__name__") - bare
    assert module in extra
    assert {name for name in extra if name.partition(".")[0] != "scrun"} == set()


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("create --greet=x c1", 1),
        ("--root /r run c1 --greet", 0),
        ("run --greet a b --bundle", 3),
        ("create -g c1", None),
        ("start --greet c1", None),
        ("--greet create c1", None),
        ("create c1 --bundle", None),
    ],
)
def test_what_may_be_an_option_of_a_script(words: str, left: int | None) -> None:
    with pytest.raises(UsageError) as error:
        parse(words.split())
    assert error.value.left == left


def test_preserve_fds_with_and_without_a_number() -> None:
    """scrun(1) has it without, runc and crun with one."""
    for words, value in (
        (["create", "--preserve-fds", "--bundle", "B", "c1"], True),
        (["create", "--bundle", "B", "--preserve-fds", "c1"], True),
        (["create", "--preserve-fds", "3", "--bundle", "B", "c1"], "3"),
        (["create", "--preserve-fds=3", "--bundle", "B", "c1"], "3"),
    ):
        parsed = parse(words)
        assert (parsed.id, parsed.text("bundle")) == ("c1", "B")
        assert parsed.options["preserve-fds"] == value


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["crate", "c1"], "unknown command 'crate' (is it create?): see"),
        (["create", "--bundel", "B", "c1"], "unknown option '--bundel' (is it --bundle?): see"),
        (["--rot", "/r", "list"], "unknown option '--rot' (is it --root?): see"),
        # what people who know podman type
        (["run", "--rm", "a:1"], "unknown option '--rm'; leave it out, 'scrun run' does so by"),
        (["run", "-it", "a:1"], "unknown option '-it'; leave it out, 'scrun run' does so by"),
        (["run", "-t", "a:1", "sh"], "option --time cannot be 'a:1', only a limit such as"),
        (["zzzzz"], "unknown command 'zzzzz': see"),
    ],
)
def test_the_nearest_name_is_told(words: list[str], meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(words)
    assert str(caught.value).startswith(meant)
