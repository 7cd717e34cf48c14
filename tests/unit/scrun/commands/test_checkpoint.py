"""checkpoint and restore: no, and why."""

from pathlib import Path

import pytest

from scrun.cli.parse import parse
from scrun.commands import unsupported
from scrun.core.errors import StateError, UnknownContainer


def test_an_unknown_container_is_told_first(tmp_path: Path) -> None:
    parsed = parse(["--root", str(tmp_path / "none"), "checkpoint", "c1"])
    with pytest.raises(UnknownContainer, match="container c1 does not exist"):
        unsupported.run(parsed)


@pytest.mark.covers("scrun checkpoint, restore")
@pytest.mark.covers("podman container checkpoint, container restore")
@pytest.mark.covers("docker checkpoint")
def test_checkpoint_says_why_and_what_to_do_instead(tmp_path: Path) -> None:
    (tmp_path / "c1").mkdir()
    with pytest.raises(StateError) as caught:
        unsupported.run(parse(["--root", str(tmp_path), "checkpoint", "c1", "--leave-running"]))
    message = str(caught.value)
    for part in ("container c1", "job", "CRIU", "root", "save its own state", "scrun pause"):
        assert part in message
    assert "\n" not in message
    assert caught.value.exit_code == 1


@pytest.mark.covers("scrun checkpoint, restore", "podman container checkpoint, container restore")
def test_restore_says_why_and_what_to_do_instead(tmp_path: Path) -> None:
    words = ["--root", str(tmp_path), "restore", "--image-path", "/i", "--bundle", "/b", "c1"]
    with pytest.raises(StateError) as caught:
        unsupported.run(parse(words))
    message = str(caught.value)
    for part in ("container c1", "new job", "CRIU", "root", "create it anew"):
        assert part in message
    assert "\n" not in message
    assert caught.value.exit_code == 1
