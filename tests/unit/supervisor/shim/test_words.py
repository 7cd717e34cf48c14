"""The root directory in what a runtime says."""

from pathlib import Path

import pytest

from scrun.supervisor.engines.slurm.shim_session import words_of
from scrun.supervisor.nodes.messages import ShimError
from scrun.supervisor.shim.runtime import needs, with_missing

NAMELESS = "readlink ``: No such file or directory"


def test_what_the_node_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    (tmp_path / "file").touch()
    for name in ("gone", "file/below"):
        path = f"{tmp_path}/{name}"
        expected = f"{NAMELESS}: there is no {path} on the node n7"
        assert with_missing(NAMELESS, ["/", path, f"{path}/more"]) == expected


@pytest.mark.parametrize("path", ["/", "/proc/self/fd/x\0y", "/" + "x" * 5000])
def test_what_may_be_there_is_not_named(path: str) -> None:
    assert with_missing(NAMELESS, [path]) == NAMELESS
    assert with_missing(NAMELESS, []) == NAMELESS


def test_what_a_container_needs_of_its_node() -> None:
    config = {
        "root": {"path": "rootfs"},
        "mounts": [
            {"type": "bind", "source": "/a"},
            {"source": "b", "options": ["ro", "rbind"]},
            {"type": "tmpfs", "source": "tmpfs"},
        ],
        "linux": {"devices": [{"path": "/dev/x"}]},
    }
    assert needs(config, "/p") == ["/p/rootfs", "/a", "/p/b", "/dev/x"]
    assert needs({}, "/p") == ["/p/"]


def test_the_supervisor_passes_it_on() -> None:
    log = f'{{"msg": "{NAMELESS}", "level": "error"}}\n'
    named = f"{NAMELESS}: there is no /gone"
    assert words_of(ShimError(named, log)) == named
    assert words_of(ShimError("the OCI runtime ended with status 1", log)) == NAMELESS
