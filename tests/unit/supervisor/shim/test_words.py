"""The root directory in what a runtime says."""

from pathlib import Path

import pytest

from scrun.supervisor.engines.slurm.shim_session import words_of
from scrun.supervisor.nodes.messages import ShimError
from scrun.supervisor.shim.words import with_root

NAMELESS = "readlink ``: No such file or directory"


def test_a_root_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("gone", "file/below"):
        root = f"{tmp_path}/{name}"
        assert with_root(NAMELESS, root) == f"{NAMELESS}: there is no {root}"
        assert with_root(f"stat {root}: no such file", root) == f"stat {root}: no such file"


@pytest.mark.parametrize("root", ["", "/", "/proc/self/fd/x\0y", "/" + "x" * 5000])
def test_another_root_directory_is_not_named(root: str) -> None:
    assert with_root(NAMELESS, root) == NAMELESS


def test_the_supervisor_passes_it_on() -> None:
    log = f'{{"msg": "{NAMELESS}", "level": "error"}}\n'
    named = f"{NAMELESS}: there is no /gone"
    assert words_of(ShimError(named, log)) == named
    assert words_of(ShimError("the OCI runtime ended with status 1", log)) == NAMELESS
