"""scrun oci-conf: what it says of a file, and the commands that it shows."""

import json
from pathlib import Path

import pytest

from scrun.cli.parse import parse
from scrun.commands import oci_conf
from scrun.core.errors import BundleError, SettingsError, UsageError
from tests import CHECKOUT

EXAMPLES = CHECKOUT / "docs" / "examples" / "oci.conf"
RUN = 'RunTimeRun="sh -c %@"\nRunTimeKill="kill %p"\nRunTimeDelete="rm %Z"\n'


def told(capfdbinary: pytest.CaptureFixture[bytes], *arguments: str) -> list[str]:
    argv = ["oci-conf", *arguments]
    assert oci_conf.run(parse(argv)) == 0
    return capfdbinary.readouterr().out.decode().splitlines()


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "oci.conf").write_text(RUN)
    return str(tmp_path / "oci.conf")


@pytest.mark.covers("guide an oci.conf on the nodes is needed")
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.conf")), ids=lambda path: path.stem)
def test_check_of_the_examples(capfdbinary: pytest.CaptureFixture[bytes], path: Path) -> None:
    """Containers guide: each of its examples is a right oci.conf."""
    lines = told(capfdbinary, "check", str(path))
    way = "RunTimeCreate, RunTimeStart and RunTimeQuery"
    by = way if path.stem.endswith(("create", "oci")) else "RunTimeRun"
    assert lines[0] == f"{path}: ok, containers run by {by}"
    twice = f"{path}:4: RunTimeQuery is set twice: this counts, not line 3"
    assert (twice in lines) is (path.stem in ("runc-run", "nvidia-run"))


def test_check_tells_what_is_needed(capfdbinary: pytest.CaptureFixture[bytes], file: str) -> None:
    Path(file).write_text(RUN.replace("sh -c", "/nowhere/x") + "IgnoreFileConfigJson=yes\n")
    assert told(capfdbinary, "check", file)[1:] == [
        f"{file}: /nowhere/x is not on this machine",
        f"{file}: IgnoreFileConfigJson: no OCI runtime, so no exec, pause or ps",
        f"{file}: Slurm 23.02 or newer is needed: IgnoreFileConfigJson, %p",
        f"{file}: Slurm 26.05 or newer is needed: %Z",
    ]


@pytest.mark.covers("guide singularity 3, OCIRunTime…")
@pytest.mark.covers("guide singularity and apptainer, exec --userns %r %@")
@pytest.mark.covers("guide enroot by a script of the site's")
@pytest.mark.covers("guide OCI runtime configurations, testing a runtime outside Slurm")
@pytest.mark.parametrize(
    ("name", "commands"),
    [
        (
            "singularity-oci",
            [
                "sudo singularity oci create --bundle /b n1.me.7.3.2",
                "sudo singularity oci start n1.me.7.3.2",
                "sudo singularity oci state n1.me.7.3.2",
                "sudo singularity oci kill n1.me.7.3.2",
                "sudo singularity oci delete n1.me.7.3.2",
            ],
        ),
        (
            "apptainer",
            [
                "apptainer exec --userns /b 'echo' 'a b'",
                "kill -s SIGTERM 42",
                "kill -s SIGKILL 42",
            ],
        ),
        (
            "enroot",
            [
                "/usr/local/bin/enroot-start-wrapper /b /s/oci-job7-3"
                " /s/oci-job7-3/task-2/environment -- 'echo' 'a b'",
                "kill -s SIGINT 42",
                "kill -s SIGTERM 42",
            ],
        ),
    ],
)
def test_render_of_the_examples(
    capfdbinary: pytest.CaptureFixture[bytes], name: str, commands: list[str]
) -> None:
    """Containers guide: singularity, apptainer and enroot, whose runtimes Debian 12 lacks."""
    lines = told(
        capfdbinary, "render", str(EXAMPLES / f"{name}.conf"), "--job", "7", "--step=3", "--node",
        "n1", "--task=2", "--user", "me", "--uid=9", "--spool=/s", "--pid=42", "--", "echo", "a b",
    )  # fmt: skip
    here = str(Path.cwd())
    assert [line.replace(here, "/b") for line in lines if line[0] != "#"] == commands
    assert [line for line in lines if line[0] == "#"][-1] == "# RunTimeDelete"


def test_render_of_a_bundle(
    capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path, file: str
) -> None:
    config = {
        "ociVersion": "1.0.2",
        "process": {"args": ["true", "it's"], "cwd": "/", "user": {"uid": 0, "gid": 0}},
        "root": {"path": "root fs"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    Path(file).write_text(RUN.replace("sh -c", "x %r"))
    lines = told(capfdbinary, "render", file, "-b", str(tmp_path), "--chdir=/x")
    assert lines[1] == f"x '{tmp_path}/root fs' 'true' 'it'\"'\"'s'"
    assert lines[-1] == "rm /x"


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["show", "FILE"], UsageError, "use check or render"),
        (["check", "FILE", "x"], UsageError, "takes only a file"),
        (["check", "FILE", "--job=1"], UsageError, "takes only a file"),
        (["render", "FILE", "--job=x"], UsageError, "--job cannot be 'x', only a number"),
        (["render", "FILE", "--pid=-1"], UsageError, "--pid cannot be '-1'"),
        (["render", "FILE", "--bundle=/nowhere"], BundleError, "/nowhere/config.json"),
        (["check", "/nowhere/oci.conf"], SettingsError, "/nowhere/oci.conf"),
    ],
)
def test_refused(file: str, arguments: list[str], error: type[Exception], said: str) -> None:
    argv = ["oci-conf", *(word.replace("FILE", file) for word in arguments)]
    with pytest.raises(error, match=said):
        oci_conf.run(parse(argv))
