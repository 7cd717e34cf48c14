from pathlib import Path

import pytest

from scrun.supervisor.staging.layers import Whiteouts

KERNELS, FUSES = Whiteouts("user.overlay.opaque"), Whiteouts("user.overlay.opaque", by_fuse=True)


@pytest.mark.parametrize(
    ("names", "files", "removed"),
    [
        ([], [], []),
        (["a", "b"], ["a", "b"], []),
        (["a", ".wh.b"], ["a"], ["b"]),
        ([".wh..wh..opq", "a"], ["a"], []),
        ([".wh..b"], [], [".b"]),
        # made by somebody else than fuse-overlayfs, which refuses the names
        ([".wh.", ".wh..", ".wh..."], [], []),
        ([".wh.a", "a"], ["a"], []),
    ],
)
def test_names(names: list[str], files: list[str], removed: list[str]) -> None:
    assert FUSES.parted(names) == (files, removed)
    assert KERNELS.parted(names) == (names, [])


def test_a_name_hides_all(tmp_path: Path) -> None:
    assert not FUSES.hide_all(str(tmp_path))
    (tmp_path / ".wh..wh..opq").touch()
    assert FUSES.hide_all(str(tmp_path))
    assert not KERNELS.hide_all(str(tmp_path))
