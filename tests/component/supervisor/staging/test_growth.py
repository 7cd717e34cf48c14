"""Changes that do not fit are not begun, and what was begun in vain takes no room."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.errors import StagingError
from scrun.supervisor.staging.bring_back import bring_difference_back
from scrun.supervisor.staging.stage_out import keep_changes
from scrun.supervisor.staging.whiteouts import Whiteouts
from tests.harness.places import mounted

MIB = 1 << 20
OPAQUE = "trusted.overlay.opaque"


@pytest.fixture
def original(tmp_path: Path) -> Iterator[Path]:
    """A root file system with a file of 4 MiB, and room for 4 more."""
    path = tmp_path / "original"
    with mounted(path, "-o", "size=8m"):
        (path / "etc").mkdir()
        (path / "etc" / "old").write_bytes(b"x" * 4 * MIB)
        yield path


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    path = tmp_path / "upper"
    (path / "etc").mkdir(parents=True)
    return path


def bring_back(upper: Path, original: Path) -> None:
    bring_difference_back(
        [str(upper)], "", str(original), 0, marks=Whiteouts(OPAQUE), owners=True, whole=True,
        go_on=lambda: True,
    )  # fmt: skip


def test_it_fits(upper: Path, original: Path) -> None:
    (upper / "etc" / "new").write_bytes(b"y" * 3 * MIB)
    os.link(upper / "etc" / "new", upper / "etc" / "same")
    bring_back(upper, original)
    assert {path.name for path in (original / "etc").iterdir()} == {"old", "new", "same"}


def test_it_takes_the_place_of_what_was_there(upper: Path, original: Path) -> None:
    (upper / "etc" / "old").write_bytes(b"y" * 3 * MIB)
    (upper / "etc" / "new").write_bytes(b"y" * (MIB // 2))
    bring_back(upper, original)
    assert (original / "etc" / "old").read_bytes()[:1] == b"y"


def test_it_does_not_fit(upper: Path, original: Path) -> None:
    (upper / "etc" / "a").write_text("a")
    (upper / "etc" / "new").write_bytes(b"y" * 6 * MIB)
    with pytest.raises(StagingError, match=r"they need 7 MiB, and [34] are free there"):
        bring_back(upper, original)
    assert {path.name for path in (original / "etc").iterdir()} == {"old"}


@pytest.mark.parametrize("how", ["deleted", "opaque"])
def test_there_may_be_room_when_something_is_removed(
    upper: Path, original: Path, how: str
) -> None:
    (upper / "etc" / "new").write_bytes(b"y" * 6 * MIB)
    if how == "deleted":
        os.mknod(upper / "etc" / "gone", stat.S_IFCHR)
        (original / "etc" / "gone").write_text("x")
    else:
        (upper / "dir").mkdir()
        os.setxattr(upper / "dir", OPAQUE, b"y")
    with pytest.raises(StagingError, match="No space left"):
        bring_back(upper, original)
    space = os.statvfs(original)
    assert space.f_bavail * space.f_frsize > 3 * MIB  # no half of a file stays


@pytest.mark.parametrize("what", ["upper", "tasks", "copy", "archive", "on the node", "link"])
def test_what_is_kept(tmp_path: Path, what: str) -> None:
    record, bundle = tmp_path / "root" / "one", tmp_path / "root" / "one" / "bundle"
    overlay = bundle / "overlay"
    overlay.mkdir(parents=True)
    expected = {
        "upper": {"0-upper"}, "tasks": {"0-upper", "1-upper"}, "copy": {"0-rootfs"},
        "archive": {"0-written-0.tar"},
    }.get(what)  # fmt: skip
    for folder in {"upper": ["upper"], "tasks": ["task-0/upper", "task-1/upper"]}.get(what, []):
        (overlay / folder).mkdir(parents=True)
        (overlay / folder / "file").write_text("kept")
    if what == "copy":
        (bundle / "rootfs").mkdir()
    elif what == "link":
        (bundle / "rootfs").symlink_to("/")
    elif what in ("archive", "on the node"):
        (overlay / "upper").mkdir()
        (overlay / "place").write_text("/tmp/place")
        name = "written-0.tar" if what == "archive" else "written-0.tar.part"
        (overlay / name).write_text("kept")
    place = keep_changes(str(bundle), "one", str(record.parent))
    if expected is None:
        assert place == ""
        return
    assert Path(place).parent == tmp_path / "root"
    assert stat.S_IMODE(Path(place).stat().st_mode) == 0o700
    assert {path.name for path in Path(place).iterdir()} == expected


def test_the_longest_id(tmp_path: Path) -> None:
    bundle = tmp_path / "root" / "one" / "bundle"
    (bundle / "overlay" / "upper").mkdir(parents=True)
    place = keep_changes(str(bundle), "i" * 255, str(bundle.parent))
    assert os.listdir(place) == ["0-upper"]
