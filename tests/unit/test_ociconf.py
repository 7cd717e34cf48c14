import contextlib
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrun.errors import SettingsError
from scrun.settings.ociconf import parse_oci_conf, substitute

RUN = 'RunTimeRun="exec crun run -b %b"\nRunTimeKill="k"\nRunTimeDelete="d"\n'


def test_run() -> None:
    conf = parse_oci_conf(
        "# a comment\n"
        + RUN
        + "ignorefileconfigjson = no  # another\n"
        + 'EnvExclude="^(SLURM_CONF|X)="\nCreateEnvFile=True\nDisableHooks=prestart,poststop\n'
        + "SrunArgs=--a\nSrunArgs=--b\nFancy=1\n"
    )
    assert conf.mode == "run"
    assert conf.run_time_run == "exec crun run -b %b"
    assert conf.env_exclude == "^(SLURM_CONF|X)="
    assert conf.create_env_file == "null"
    assert conf.disable_hooks == ("prestart", "poststop")
    assert conf.srun_args == ("--a", "--b")
    assert conf.unknown == {"Fancy": "1"}


def test_create() -> None:
    keys = ("Create", "Start", "Query", "Kill", "Delete")
    conf = parse_oci_conf("".join(f"RunTime{key}=x\n" for key in keys))
    assert conf.mode == "create"


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
    ],
)
def test_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_oci_conf(text, "c")


@given(st.text())
def test_parse_raises_settings_errors_only(text: str) -> None:
    with contextlib.suppress(SettingsError):
        parse_oci_conf(text)


VALUES = {"b": "/a b", "e": "/e", "j": "7", "n": "node1", "s": "0", "t": "0", "u": "me", "U": "9"}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("%u.%j.%s.%t.%n", "me.7.0.0.node1"),
        ("100%% %U", "100% 9"),
        ("run %b", "run '/a b'"),
        ('run "%b"', 'run "/a b"'),
        ("sh -c 'run %b'", "sh -c 'run /a b'"),
        ("%@", "sh -c 'echo $HOME'"),
        ("x=$(id -u) y=${HOME} %b", "x=$(id -u) y=${HOME} '/a b'"),
        ('"$(cat x%j)"', '"$(cat x7)"'),
    ],
)
def test_substitute(pattern: str, text: str) -> None:
    assert substitute(pattern, {**VALUES, "@": ["sh", "-c", "echo $HOME"]}) == text


@pytest.mark.parametrize(
    "pattern",
    ["%x", "%", "a %p", "$(cat %b)", '"${X:-it\'s}" %b', "$%b", "\\%b", "x # %b", "`%b`"],
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
