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
from scrun.supervisor.plugins.choose import Engines, Stagers
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


NO_JOB = StateError, r"state\.json: .* is damaged, or another scrun's"
NO_PLUGIN = PluginUnavailable, r"newer is not installed|is not a plugin type"


@pytest.mark.parametrize(
    ("record", "refusal"),
    [
        # scancel would take it for an option, or for the jobs of somebody
        (Record(id="c", engine="slurm", job_id="--user=me"), NO_JOB),
        (Record(id="c", engine="slurm", job_id="1 2"), NO_JOB),
        (Record(id="c", engine="slurm", job_id="9" * 5000), NO_JOB),
        (Record(id="c", engine="", job_id="1"), NO_JOB),
        (Record(id="c", engine="--help", job_id="1"), NO_JOB),
        # only a plugin that is gone knows what is left to undo
        (Record(id="c", engine="newer", job_id="1"), NO_PLUGIN),
        (Record(id="c", engine="local", stager="newer"), NO_PLUGIN),
        (Record(id="c", engine="local", stager="../x\n"), NO_PLUGIN),
    ],
    ids=range(8),
)
def test_a_record_that_nobody_can_undo(
    tmp_path: Path, record: Record, refusal: tuple[type[Exception], str]
) -> None:
    directory = tmp_path / "c"
    directory.mkdir()
    (directory / "supervisor").symlink_to("../@user")
    write_record(str(directory), record)
    error, words = refusal
    with pytest.raises(error, match=words):
        trio.run(_delete, directory)
    assert directory.exists()


async def _delete(directory: Path) -> None:
    async with plugins() as loaded:
        engines = Engines(str(directory.parent), loaded)
        await orphans.delete(str(directory), engines, Stagers(loaded), "@user")
