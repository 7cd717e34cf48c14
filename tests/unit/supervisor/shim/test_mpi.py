"""What a container gets of a task that is a rank of an MPI program."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.shim.mpi import Mpi


@pytest.fixture
def pmi() -> Iterator[int]:
    """A descriptor as slurmstepd gives one; closed by who takes it."""
    ours, theirs = socket.socketpair()
    with ours:
        fd = theirs.detach()
        os.set_inheritable(fd, True)
        yield fd
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)


def config(*env: str, dev: str = "tmpfs") -> dict[str, Any]:
    return {"process": {"env": [*env]}, "mounts": [{"destination": "/dev", "type": dev}]}


def test_the_first_container_gets_the_descriptor(pmi: int) -> None:
    environment = {"PMI_FD": str(pmi), "PMI_RANK": "0"}
    mpi = Mpi(environment)
    assert environment == {"PMI_RANK": "0"}  # nobody else has use for the number
    assert not os.get_inheritable(pmi)
    first, second = config("A=1"), config("A=1")
    assert mpi.give(first) == [pmi]
    assert first["process"]["env"] == ["A=1", "PMI_FD=3"]
    mpi.given()
    assert mpi.give(second) == []
    assert second == config("A=1")


@pytest.mark.parametrize("text", ["", "x", "-1", "99999", "null"])
def test_what_is_no_descriptor(text: str) -> None:
    with open(os.devnull) as null:
        environment = {"PMI_FD": str(null.fileno()) if text == "null" else text}
        mpi = Mpi(environment)
        assert environment == {}
        assert mpi.give(config()) == []
        mpi.given()


def test_a_container_without_a_program(pmi: int) -> None:
    mpi = Mpi({"PMI_FD": str(pmi), "PMIX_SERVER_TMPDIR": "/tmp"})
    whole: dict[str, Any] = {"root": {}}
    assert mpi.give(whole) == []
    assert whole == {"root": {}}
    mpi.given()


@pytest.mark.parametrize(("dev", "place"), [("tmpfs", "/dev/pmix"), ("bind", "DIRECTORY")])
def test_the_directory_of_the_server(tmp_path: Path, dev: str, place: str) -> None:
    """In memory if there is such a place: the root file system may be somebody else's."""
    directory = str(tmp_path)
    place = place.replace("DIRECTORY", directory)
    mpi = Mpi({"PMIX_SERVER_TMPDIR": directory})
    own = config(
        f"PMIX_SERVER_TMPDIR={directory}", f"PMIX_DSTORE_21_BASE_PATH={directory}/ds",
        f"PMIX_OTHER={directory}2", f"HOME={directory}", dev=dev,
    )  # fmt: skip
    assert mpi.give(own) == []
    options = ["rbind", "nosuid", "nodev"]
    mount = {"destination": place, "type": "bind", "source": directory, "options": options}
    assert own["mounts"][1:] == [mount]
    assert own["process"]["env"] == [
        f"PMIX_SERVER_TMPDIR={place}", f"PMIX_DSTORE_21_BASE_PATH={place}/ds",
        f"PMIX_OTHER={directory}2", f"HOME={directory}",
    ]  # fmt: skip


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    own = config()
    assert Mpi({"PMIX_SERVER_TMPDIR": str(tmp_path / "missing")}).give(own) == []
    assert own == config()
