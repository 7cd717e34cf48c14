"""How the program of an image is started: what its configuration says, and its own passwd."""

from pathlib import Path
from typing import Any

import pytest

from scrun.oci.image import LayoutImage
from scrun.pull.layout import Configuration, defaults_of


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "passwd").write_text("root:x:0:0::/root:\napp:x:5:6::/home/app:\n")
    (tmp_path / "etc" / "group").write_text("staff:x:50:root,app\n")
    return tmp_path


def started(rootfs: Path, **config: Any) -> tuple[Any, ...]:
    found = defaults_of(LayoutImage("/l", "t", {}), Configuration({}, config), str(rootfs))
    return found.uid, found.gid, found.groups, found.env, found.cwd, found.unknown_user


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, (0, 0, (50,), ("HOME=/root",), "/", "")),
        ({"User": "app"}, (5, 6, (50,), ("HOME=/home/app",), "/", "")),
        ({"User": "4711"}, (4711, 0, (), ("HOME=/",), "/", "")),
        ({"User": "app:7"}, (5, 7, (), ("HOME=/home/app",), "/", "")),
        ({"Env": ["A=b", "C"], "WorkingDir": "w"}, (0, 0, (50,), ("A=b", "HOME=/root"), "/w", "")),
    ],
)
def test_what_an_image_says(
    rootfs: Path, config: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    assert started(rootfs, **config) == expected


def test_an_unknown_user_is_for_whoever_runs_it(rootfs: Path) -> None:
    *_, unknown = started(rootfs, User="nobody-here")
    assert unknown.startswith("/l:t: its /etc/passwd has no user 'nobody-here': ")
