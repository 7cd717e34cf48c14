"""What an exec is made of, before anything runs."""

import json
from pathlib import Path

import pytest

from scrun.cli.parse import parse
from scrun.core.errors import BundleError, StateError, UsageError
from scrun.oci.config import Bundle, load_bundle
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers.live_session import NotRunnableError
from scrun.supervisor.contracts.create_request import CommandLine
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.sessions.operations import prepare
from tests.harness.bundle import make_config, make_rootfs, write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    make_rootfs(tmp_path / "rootfs")
    config = make_config(["sleep", "1"], str(tmp_path / "rootfs"))
    config["process"]["rlimits"] = [{"type": "RLIMIT_NOFILE", "soft": 1024, "hard": 1024}]
    config["process"]["apparmorProfile"] = "some"
    return load_bundle(str(write_bundle(tmp_path / "submitted", config)))


@pytest.fixture
def place(bundle: Bundle, tmp_path: Path) -> Staged:
    """As staging leaves it for an ordinary user: one id, no limits, no profile."""
    config = json.loads(json.dumps(bundle.raw))
    for member in ("rlimits", "apparmorProfile"):
        del config["process"][member]
    for member in ("uidMappings", "gidMappings"):
        config["linux"][member] = [{"containerID": 0, "hostID": 1000, "size": 1}]
    staged = write_bundle(tmp_path / "staged", config)
    return Staged(str(staged), bundle.rootfs, ())


def call(*words: str) -> CommandLine:
    return CommandLine(parse(list(words)), 1, "/", ChildEnv({}))


def test_a_command_is_as_the_first_process_but_for_what_is_said(
    bundle: Bundle, place: Staged
) -> None:
    words = ("exec", "--env", "A=b", "--cwd", "/tmp", "c", "sh", "-c", "x")
    prepared = prepare(call(*words), bundle, place, None)
    assert prepared.is_known
    assert prepared.process["args"] == ["sh", "-c", "x"]
    assert prepared.process["cwd"] == "/tmp"
    assert prepared.process["env"] == [*bundle.config.process.env, "A=b"]
    assert prepared.process["terminal"] is False


def test_what_the_node_cannot_have_is_left_out(
    bundle: Bundle, place: Staged, tmp_path: Path
) -> None:
    """Engines put the container's own limits and profile into the file of `--process`."""
    path = tmp_path / "process.json"
    path.write_text(json.dumps({**bundle.raw["process"], "args": ["true"]}))
    prepared = prepare(call("exec", "--process", str(path), "c"), bundle, place, None)
    assert prepared.process.keys().isdisjoint({"rlimits", "apparmorProfile"})


def test_a_bundle_that_only_the_nodes_see(bundle: Bundle, place: Staged) -> None:
    """A script has taken it there: what was submitted is all that can be known."""
    gone = Staged("/nowhere/bundle", "/nowhere/rootfs", ())
    prepared = prepare(call("exec", "c", "true"), bundle, gone, None)
    assert prepared.process["args"] == ["true"]


def test_the_best_shell(bundle: Bundle, place: Staged) -> None:
    assert prepare(call("shell", "c"), bundle, place, None).process["args"] == ["ash"]
    (Path(bundle.rootfs) / "bin" / "bash").symlink_to("busybox")
    assert prepare(call("shell", "c"), bundle, place, None).process["args"] == ["bash"]
    assert prepare(call("shell", "c", "sh", "-l"), bundle, place, None).process["args"] == [
        "sh",
        "-l",
    ]


def test_no_shell(bundle: Bundle, place: Staged) -> None:
    for name in ("ash", "sh"):
        (Path(bundle.rootfs) / "bin" / name).unlink(missing_ok=True)
    with pytest.raises(NotRunnableError, match="no shell found") as error:
        prepare(call("shell", "c"), bundle, place, None)
    assert error.value.exit_code == 127


@pytest.mark.parametrize(
    ("words", "kind", "status"),
    [
        (("exec", "c", "nope"), NotRunnableError, 127),
        (("exec", "c", "/etc"), NotRunnableError, 126),
        (("exec", "--user", "33", "c", "true"), StateError, 1),
        (("exec", "--user", "root", "c", "true"), UsageError, 1),
        (("exec", "--env", "nonsense", "c", "true"), UsageError, 1),
        (("exec", "c"), UsageError, 1),
        (("exec", "--process", "/nowhere", "c"), BundleError, 1),
    ],
)
def test_refused(
    bundle: Bundle, place: Staged, words: tuple[str, ...], kind: type[Exception], status: int
) -> None:
    with pytest.raises(kind) as error:
        prepare(call(*words), bundle, place, None)
    assert error.value.exit_code == status  # type: ignore[attr-defined]
