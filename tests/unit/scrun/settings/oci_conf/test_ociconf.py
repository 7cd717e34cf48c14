import contextlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrun.core.errors import SettingsError
from scrun.settings.oci_conf.commands import in_place_of_the_shell, portable
from scrun.settings.oci_conf.parse import parse_oci_conf
from scrun.settings.oci_conf.patterns import substitute, without

RUN = 'RunTimeRun="exec crun run -b %b"\nRunTimeKill="k"\nRunTimeDelete="d"\n'


def test_run() -> None:
    conf = parse_oci_conf(
        "# a comment\n"
        + RUN
        + "ignorefileconfigjson = no  # another\n"
        + 'EnvExclude="^(SLURM_CONF|X)="\nCreateEnvFile=True\nDisableHooks=prestart,poststop\n'
        + "SrunArgs=--a\nSrunArgs=--b\nSrunPath=/opt/srun\nFileDebug=6\nStdIODebug=Verbose\n"
    )
    assert conf.mode == "run"
    assert conf.run_time_run == "exec crun run -b %b"
    assert conf.env_exclude == "^(SLURM_CONF|X)="
    assert conf.create_env_file == "null"
    assert conf.disable_hooks == ("prestart", "poststop")
    assert conf.srun_args == ("--a", "--b")
    assert conf.srun_path == "/opt/srun"
    assert (conf.file_debug, conf.std_io_debug, conf.syslog_debug) == ("debug2", "verbose", None)
    assert conf.remarks == ()


@pytest.mark.covers("guide runc, run; RunTimeQuery stands there twice")
def test_the_last_of_several_counts() -> None:
    """Slurm's guide has RunTimeQuery twice in three of its examples."""
    conf = parse_oci_conf(RUN + "RunTimeQuery=a\n\nruntimequery=b\n", "/c")
    assert conf.run_time_query == "b"
    assert conf.remarks == ("/c:6: RunTimeQuery is set twice: this counts, not line 4",)


def test_create() -> None:
    keys = ("Create", "Start", "Query", "Kill", "Delete")
    conf = parse_oci_conf("".join(f"RunTime{key}=x\n" for key in keys))
    assert conf.mode == "create"


@pytest.mark.covers("guide singularity 3, OCIRunTime…")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "RunTimeCreate is missing"),
        ('RunTimeRun="x"\n', "RunTimeKill is missing"),
        (RUN + "RunTimeCreate=x", "excludes"),
        ("RunTimeRun=crun run\n", r"c:1: not understood \(quotes missing\?\): run"),
        ("\n\nnonsense", "c:3: not understood"),
        (RUN + "CreateEnvFile=maybe", "null, newline or disabled"),
        (RUN + "DisableCleanup=2", "yes or no"),
        (RUN + "# x\nFancy=1", r"c:5: Fancy: unknown key$"),
        (RUN + "RunTimeQuerry=x", r"c:4: RunTimeQuerry: unknown key \(is it RunTimeQuery\?\)"),
        ('OCIRunTimeQuery="q"', r"c:1: OCIRunTimeQuery: unknown key \(is it RunTimeQuery\?\)"),
        (RUN + 'RunTimeQuery="runc state %x"', "c:4: RunTimeQuery: %x has no meaning"),
        (RUN + "RunTimeQuery=100%", "c:4: RunTimeQuery: % has no meaning"),
        (RUN + "EnvExclude=(", r"c:4: EnvExclude: \(: is not a regular expression"),
        (RUN + "SyslogDebug=loud", "c:4: SyslogDebug=loud: one of quiet, fatal"),
        (RUN + "SrunPath=srun", "c:4: SrunPath=srun: an absolute path"),
        ("IgnoreFileConfigJson=yes", "RunTimeRun is missing"),
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_oci_conf(text, "c")


@given(st.text())
def test_parse_raises_settings_errors_only(text: str) -> None:
    with contextlib.suppress(SettingsError):
        parse_oci_conf(text)


VALUES = {
    "b": "/a b", "e": "/e", "j": "7", "m": "/m", "n": "node1", "r": "/r", "s": "0", "t": "0",
    "u": "me", "U": "9", "Z": "/home/a user", "p": "42",
}  # fmt: skip


@pytest.mark.covers("guide patterns fill in each operation", "oci.conf %%")
@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%u.%j.%s.%t.%n", "me.7.0.0.node1"),
        ("100%% %U", "100% 9"),
        ("run %b", "run '/a b'"),
        ('run "%b"', 'run "/a b"'),
        ("sh -c 'run %j'", "sh -c 'run 7'"),
        ("sh -c 'run %b'", "sh -c 'run '\\''/a b'\\'''"),
        ("%@", "'sh' '-c' 'echo $HOME'"),
        (
            "env -i U=$(whoami) ch-run %r -- %@",
            "env -i U=$(whoami) ch-run /r -- 'sh' '-c' 'echo $HOME'",
        ),
        ("cd %Z; kill -s INT %p; x %m %e", "cd '/home/a user'; kill -s INT 42; x /m /e"),
        ("x=$(id -u) y=${HOME} %b", "x=$(id -u) y=${HOME} '/a b'"),
        ('"$(cat x%j)"', '"$(cat x7)"'),
    ],
)
def test_substitute(pattern: str, text: str) -> None:
    assert substitute(pattern, {**VALUES, "@": ["sh", "-c", "echo $HOME"]}) == text


@pytest.mark.parametrize(
    "pattern",
    [
        "%x",
        "%",
        "a %f",
        "$(cat %b)",
        '"${X:-it\'s}" %b',
        "$%b",
        "\\%b",
        "x # %b",
        "`%b`",
        # who reads these, and how often, is not to be known
        "env -S 'run %b'",
        "python3 -c 'print(1, \"%b\")'",
        "$SHELL -c 'run %b'",
        "wrap 'run %b'",
        'sh -c "$(cat x) %b"',
        'sh -c "x=$X; %b"',
        "perl -e %b",
    ],
)
def test_not_substituted(pattern: str) -> None:
    with pytest.raises(SettingsError):
        substitute(pattern, VALUES)


def test_a_path_is_not_quoted() -> None:
    assert substitute("/x/%b", VALUES, shell=False) == "/x//a b"


NASTY = st.text(st.sampled_from("a '\"$`\\;|&()<>{}*?~#!\n\t%=-")).filter(lambda text: text != "")


@settings(max_examples=60, deadline=None)
@given(NASTY, st.lists(NASTY, min_size=1, max_size=3))
def test_the_shell_sees_each_value_as_one_word(value: str, arguments: list[str]) -> None:
    pattern = "printf '%%s\\0' %b \"%b\" '%b' x=%b\"y\"%b'' -- %@"
    command = substitute(pattern, {"b": value, "@": arguments})
    answer = subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    words = answer.stdout.decode().split("\0")[:-1]
    assert words == [value, value, value, f"x={value}y{value}", "--", *arguments]


AGAIN = (
    r"""sh -c 'printf "%%s\0" %b -- %@'""",
    r"""sh -c 'printf "%%s\0" "%b" -- '%@""",
    r'''sh -c "printf '%%s\\0' %b -- %@"''',
    r"""sh -ec -- 'printf "%%s\0" '"%b"' -- %@'""",
    r"""cd /; env A=%b sh -c 'sh -c "printf \"%%s\\0\" %b -- %@"'""",
    r"""sh -c 'exec printf "%%s\0" "$@"' sh %b -- %@""",
    r"""eval printf '"%%s\0"' %b -- %@""",
    r"""eval 'printf "%%s\0" %b' '-- %@'""",
    r"""true && eval "eval 'printf \"%%s\\0\" '%b' -- '%@\"\"" """,
)
"""Patterns in which another shell reads the values."""


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(AGAIN), NASTY, st.lists(NASTY, min_size=1, max_size=3))
def test_a_shell_that_reads_it_once_more_sees_each_value_as_one_word(
    pattern: str, value: str, arguments: list[str]
) -> None:
    command = substitute(pattern, {"b": value, "@": arguments})
    answer = subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    assert answer.stdout.decode().split("\0")[:-1] == [value, "--", *arguments], command


@pytest.mark.parametrize("pattern", AGAIN)
def test_nothing_of_a_value_is_run(pattern: str, tmp_path: Path) -> None:
    evil = f"$(touch {tmp_path}/F)`touch {tmp_path}/F`'; touch {tmp_path}/F; '"
    command = substitute(pattern, {"b": evil, "@": [evil, "x"]})
    subprocess.run(["sh", "-c", command], check=True, stdout=subprocess.DEVNULL)
    assert not (tmp_path / "F").exists()


@pytest.mark.covers("oci.conf %@")
def test_each_argument_is_quoted_and_escaped() -> None:
    arguments = ["plain", "it's", "", "$(x)"]
    text = substitute("%@", {"@": arguments})
    assert text == """'plain' 'it'"'"'s' '' '$(x)'"""
    answer = subprocess.run(["sh", "-c", f"printf '%s|' {text}"], check=True, capture_output=True)
    assert answer.stdout == b"plain|it's||$(x)|"


@pytest.mark.covers("oci.conf EnvExclude")
@pytest.mark.parametrize(
    ("expression", "left"),
    [
        (None, {"SLURM_CONF": "/c", "SLURM_CONF_SERVER": "s", "PATH": "/bin", "X1": "a=b"}),
        ("^(SLURM_CONF|SLURM_CONF_SERVER)=", {"PATH": "/bin", "X1": "a=b"}),
        (
            "^[[:upper:]]+[[:digit:]]=",
            {"SLURM_CONF": "/c", "SLURM_CONF_SERVER": "s", "PATH": "/bin"},
        ),
        ("a=b", {"SLURM_CONF": "/c", "SLURM_CONF_SERVER": "s", "PATH": "/bin"}),
        ("", {}),
    ],
)
def test_variables_that_are_left_out(expression: str | None, left: dict[str, str]) -> None:
    variables = {"SLURM_CONF": "/c", "SLURM_CONF_SERVER": "s", "PATH": "/bin", "X1": "a=b"}
    assert without(variables, expression) == left


@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("runc run %j -b %b", "exec runc run %j -b %b"),
        ("env -i U=$(whoami) ch-run %r -- %@", "exec env -i U=$(whoami) ch-run %r -- %@"),
        ("/opt/run 'a; b' %@", "exec /opt/run 'a; b' %@"),
        *[(text, text) for text in (
            "exec runc run", "cd %b; runc run", "runc run || exit 7", "X=1 runc run", "(runc run)",
            "eval runc", ". /etc/run", "x=$(date)", "if true", 'runc "unfinished', "run >%e", "",
            "`which runc` run", "$(which runc) run",
        )],
    ],
)  # fmt: skip
def test_the_shell_becomes_the_command(pattern: str, command: str) -> None:
    assert in_place_of_the_shell(pattern) == command


def test_signals_without_sig() -> None:
    """dash, Debian's sh, does not take the guide's `kill -s SIGTERM %p`."""
    assert portable("kill -s SIGTERM %p || kill -SIGKILL %p") == "kill -s TERM %p || kill -KILL %p"
    assert portable("crun kill %j SIGTERM; skill -s SIGX") == "crun kill %j SIGTERM; skill -s SIGX"
