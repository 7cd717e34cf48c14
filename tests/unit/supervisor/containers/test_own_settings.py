"""Which settings file holds: for the supervisor itself, and for a container that it has lost."""

from pathlib import Path

import pytest

from scrun.cli.parse import parse
from scrun.client import launch
from scrun.core.place import Place
from scrun.model.record import Record
from scrun.supervisor.containers import orphans
from scrun.supervisor.containers.ledger import first_record
from scrun.supervisor.contracts import create_request
from scrun.supervisor.contracts.create_request import read_create_request


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two settings files: what a container was created with, and what its supervisor has."""
    of_create, other = tmp_path / "create.toml", tmp_path / "other.toml"
    of_create.write_text('[slurm]\nbin = "/of/create"\n')
    other.write_text('[slurm]\nbin = "/of/another"\n')
    return of_create, other


def record_of(words: list[str], variables: dict[str, str]) -> Record:
    command = [*words, "create", "c1"]
    fields = [b"1", b"22", b"/", b"%d" % len(command), *map(str.encode, command)]
    fields += [f"{name}={text}".encode() for name, text in variables.items()]
    return first_record(read_create_request(fields, "create"), "slurm")


@pytest.mark.parametrize("way", ["option", "variable"])
def test_an_orphan_has_the_settings_of_its_create(files: tuple[Path, Path], way: str) -> None:
    of_create, other = files
    record = (
        record_of(["--config-file", str(of_create)], {})
        if way == "option"
        else record_of([], {"SCRUN_CONFIG": str(of_create)})
    )
    settings = orphans.settings_of(record, {"SCRUN_CONFIG": str(other)})
    assert settings.slurm.bin == "/of/create"


@pytest.mark.parametrize(
    ("words", "task", "engine"),
    [
        ([], "7.0.3", "local"),
        (["--engine", "slurm"], "7.0.3", "slurm"),
        ([], "", "slurm"),
    ],
)
def test_a_container_of_a_task_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str], task: str, engine: str
) -> None:
    """Whatever the settings say; only the command line asks for a step of its own."""
    file = tmp_path / "scrun.toml"
    file.write_text('engine = "slurm"\n')
    step, _, number = task.rpartition(".")
    monkeypatch.setattr(create_request, "place_of", lambda *_: Place("7", step, number))
    command = [*words, "--config-file", str(file), "create", "c1"]
    fields = [b"1", b"22", b"/", b"%d" % len(command), *map(str.encode, command)]
    found = read_create_request(fields, "create")
    assert (found.task, found.settings.engine) == (task, engine)


def test_an_orphan_of_the_usual_settings_has_those(files: tuple[Path, Path]) -> None:
    record = record_of([], {})
    assert orphans.settings_of(record, {"SCRUN_CONFIG": str(files[1])}).slurm.bin is None


def test_settings_that_are_gone_stop_no_delete(files: tuple[Path, Path]) -> None:
    record = record_of(["--config-file", str(files[0])], {})
    files[0].unlink()
    assert orphans.settings_of(record, {}).slurm.bin is None


def test_the_option_is_for_the_supervisor_too(
    monkeypatch: pytest.MonkeyPatch, files: tuple[Path, Path]
) -> None:
    """It says how long a supervisor stays that has nothing to do."""
    monkeypatch.setenv("SCRUN_CONFIG", str(files[1]))
    monkeypatch.chdir(files[0].parent)
    parsed = parse(["--config-file", files[0].name, "state", "c1"])
    file = parsed.text("config-file") or ""
    assert launch._environment(file)["SCRUN_CONFIG"] == str(files[0])
    assert launch._environment("")["SCRUN_CONFIG"] == str(files[1])
