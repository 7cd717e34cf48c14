"""Records and names of pods that ended a command with a fault, or worse."""

import os
from pathlib import Path

import pytest
import trio

from scrun.client.supervisor_name import _digest
from scrun.core.errors import PluginUnavailable, StateError
from scrun.core.pods import pod_of
from scrun.model.record import Record, write_record
from scrun.supervisor.containers import orphans
from scrun.supervisor.plugins.choose_engine import Engines
from scrun.supervisor.plugins.choose_stager import Stagers
from scrun.supervisor.plugins.registry import plugins
from tests.harness.limits import limited


@pytest.mark.parametrize("content", [b"[" * 100_000, b'{"annotations": 5}', b"\xff", b"null", b""])
def test_a_config_of_no_pod(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert pod_of(str(tmp_path), None) is None


def test_a_config_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with limited(1, 50):
        assert pod_of(str(tmp_path), None) is None
        assert pod_of(str(tmp_path), "/dev/zero") is None


def test_a_pod_with_half_a_character(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'{"annotations":{"org.scrun.pod":"\\ud800"}}')
    name = pod_of(str(tmp_path), None)
    assert name
    assert len(_digest(name)) == 17


@pytest.mark.parametrize(
    "record",
    [
        Record(id="c", engine="slurm", job_id="--user=me"),
        Record(id="c", engine="slurm", job_id="1 2"),
        Record(id="c", engine="slurm", job_id="9" * 5000),
        Record(id="c", engine="", job_id="1"),
        Record(id="c", engine="--help", job_id="1"),
    ],
    ids=range(5),
)
def test_a_record_with_a_job_that_is_none(tmp_path: Path, record: Record) -> None:
    """scancel would take it for an option, or for the jobs of somebody."""
    directory = tmp_path / "c"
    directory.mkdir()
    (directory / "supervisor").symlink_to("../@user")
    write_record(str(directory), record)

    with pytest.raises(StateError, match=r"state\.json: .* is damaged, or another scrun's"):
        trio.run(_delete, directory)
    assert directory.exists()


@pytest.mark.parametrize(
    "record",
    [
        Record(id="c", engine="newer", job_id="1"),
        Record(id="c", engine="local", stager="newer"),
        Record(id="c", engine="local", stager="../x\n"),
    ],
    ids=range(3),
)
def test_a_record_with_a_plugin_that_is_gone(tmp_path: Path, record: Record) -> None:
    """Only that one knows what is left to undo."""
    directory = tmp_path / "c"
    directory.mkdir()
    (directory / "supervisor").symlink_to("../@user")
    write_record(str(directory), record)
    with pytest.raises(PluginUnavailable, match=r"newer is not installed|is not a plugin type"):
        trio.run(_delete, directory)
    assert directory.exists()


async def _delete(directory: Path) -> None:
    async with plugins() as loaded:
        engines = Engines(str(directory.parent), loaded)
        await orphans.delete(str(directory), engines, Stagers(loaded), "@user")
