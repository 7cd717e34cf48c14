"""The command of `exec`, derived from those that an oci.conf has."""

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.commands import (
    NodeRuntime,
    calls_runc,
    derived_exec,
    node_runtime,
    signalled,
)
from scrun.settings.oci_conf.parse import OciConf

pytestmark = pytest.mark.covers("oci.conf RunTimeQuery")


@pytest.mark.covers("scrun exec: the runtime's command")
@pytest.mark.parametrize(
    ("query", "derived"),
    [
        ("crun state %j", "crun exec --process %f %j"),
        # slurm.schedmd.com/containers.html
        (
            "runc --rootless=true --root=/run/user/%U/ state %n.%u.%j.%s.%t",
            "runc --rootless=true --root=/run/user/%U/ exec --process %f %n.%u.%j.%s.%t",
        ),
        (
            'crun --rootless=true --root="/run/user/%U/" state "%n.%u.%j.%s.%t"',
            'crun --rootless=true --root="/run/user/%U/" exec --process %f "%n.%u.%j.%s.%t"',
        ),
        ("crun state -a --b=c %j", "crun exec --process %f %j"),
        ("  crun\tstate\t%j  ", "  crun\texec --process %f %j"),
        ("exec crun state %j", "exec crun exec --process %f %j"),
        ("A=b crun state %j", "A=b crun exec --process %f %j"),
        ("cd / && crun state %j", "cd / && crun exec --process %f %j"),
        ("/opt/state-of-crun state %j", "/opt/state-of-crun exec --process %f %j"),
        # the word is somewhere else as well
        ("crun --root=/var/state state %j", "crun --root=/var/state exec --process %f %j"),
        ("crun --root /state/state state %j", "crun --root /state/state exec --process %f %j"),
        ("crun --root state state %j", "crun --root state exec --process %f %j"),
        ("/opt/state/crun state state-%j", "/opt/state/crun exec --process %f state-%j"),
        ("crun state state", "crun exec --process %f state"),
        # nothing to make it of
        ("", ""),
        ("state %j", ""),
        ("crun state", ""),
        ("crun state --all", ""),
        ("crun --root=/var/state list", ""),
        ("crun States %j", ""),
        ("mystate %j", ""),
        ("state-of %j", ""),
        ("crun state %j | jq .", ""),
        ("crun state %j 2>/dev/null", ""),
        ("crun state %j;", ""),
        ("crun state $(cat /run/%j)", ""),
        ("apptainer oci state %j", ""),
        ("sudo /opt/bin/singularity oci state %n.%u.%j.%s.%t", ""),
    ],
)
def test_from_run_time_query(query: str, derived: str) -> None:
    assert derived_exec(OciConf(run_time_query=query)) == derived


@pytest.mark.parametrize(
    ("conf", "derived"),
    [
        (OciConf(run_time_kill="crun kill %j"), "crun exec --process %f %j"),
        (OciConf(run_time_kill="crun kill %j TERM"), "crun exec --process %f %j"),
        (OciConf(run_time_kill="crun kill %j 9"), "crun exec --process %f %j"),
        (
            OciConf(run_time_kill="runc --root=/r kill -a %j"),
            "runc --root=/r exec --process %f %j",
        ),
        (OciConf(run_time_kill="runc kill --all %j SIGKILL"), "runc exec --process %f %j"),
        # which word is the container is not known
        (OciConf(run_time_kill="crun kill --signal TERM %j"), ""),
        # Apptainer's of Slurm's documentation
        (OciConf(run_time_kill="kill -s SIGTERM %p"), ""),
        (OciConf(run_time_kill="sudo kill -s SIGTERM %p"), ""),
        (OciConf(run_time_kill="sudo kill -9 %p"), ""),
        (OciConf(run_time_kill="/bin/sh -c 'kill -9 %p'"), ""),
        (OciConf(run_time_kill="true"), ""),
        (OciConf(run_time_delete="crun delete --force %j"), "crun exec --process %f %j"),
        (OciConf(run_time_delete="crun delete %j"), "crun exec --process %f %j"),
        (OciConf(run_time_delete="crun delete --force %j || true"), ""),
        (OciConf(run_time_delete="rm -rf /run/%j"), ""),
    ],
)
def test_from_other_commands(conf: OciConf, derived: str) -> None:
    assert derived_exec(conf) == derived


def test_the_first_that_fits_counts() -> None:
    conf = OciConf(
        run_time_query="crun state %j 2>/dev/null || true",
        run_time_kill="crun --root=/k kill %j KILL",
        run_time_delete="crun --root=/d delete %j",
    )
    assert derived_exec(conf) == "crun --root=/k exec --process %f %j"


@pytest.mark.covers("scrun exec: the runtime's command")
def test_own_patterns_come_first() -> None:
    conf = OciConf(run_time_query="crun state %j", run_time_kill="crun kill %j TERM")
    derived = NodeRuntime(
        kill="crun kill %j TERM", state="crun state %j", exec="crun exec --process %f %j"
    )
    assert node_runtime(conf, RuntimeSettings()) == derived
    own = RuntimeSettings(exec="x %f", pause="p %j", resume="r %j")
    expected = NodeRuntime("crun kill %j TERM", "crun state %j", "x %f", "p %j", "r %j")
    assert node_runtime(conf, own) == expected


def test_without_an_oci_conf() -> None:
    assert node_runtime(None, RuntimeSettings()) == NodeRuntime()
    assert node_runtime(None, RuntimeSettings(exec="x %f")) == NodeRuntime(exec="x %f")


@pytest.mark.parametrize("own", [RuntimeSettings(pause="x"), RuntimeSettings(resume="x")])
def test_pause_without_resume_is_refused(own: RuntimeSettings) -> None:
    with pytest.raises(SettingsError, match="set both"):
        node_runtime(None, own)


@pytest.mark.covers("oci.conf RunTimeKill")
@pytest.mark.parametrize(
    ("pattern", "command"),
    [
        ("runc kill -a %n.%j", "runc kill %n.%j USR1"),
        ("crun kill %j TERM", "crun kill %j USR1"),
        ("crun kill %j 9 ", "crun kill %j USR1"),
        ("kill -s SIGTERM %p", "kill -s USR1 %p"),
        ("kill -s SIGINT %p", "kill -s USR1 %p"),
        ("/bin/kill -9 %p", "/bin/kill -USR1 %p"),
        ("kill %p", "kill -s USR1 %p"),
        ("x --signal=TERM %j", "x --signal=USR1 %j"),
    ],
)
def test_another_signal_than_the_one_of_the_pattern(pattern: str, command: str) -> None:
    assert signalled(pattern, "USR1") == command


@pytest.mark.parametrize(
    ("makes", "expected"),
    [
        ("exec runc --rootless=true run --bundle=%b %j", True),
        ("/usr/sbin/runc create %j", True),
        ("crun run --bundle=%b %j", False),
        ("/opt/runc-wrapper run %j", False),
    ],
)
def test_whether_runc_makes_containers(makes: str, expected: bool) -> None:
    assert calls_runc(OciConf(run_time_run=makes)) is expected
    assert calls_runc(OciConf(run_time_create=makes)) is expected
