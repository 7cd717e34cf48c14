"""The environment of a container on this machine, changed by a site's scripts: spank-lua(8)."""

import json
from pathlib import Path

import pytest

from scrun.supervisor.engines.local.runtime_config import changed_environment


@pytest.mark.parametrize("own", [["A=1", "B=2", "A=3"], None])
async def test_it_is_changed_and_comes_back(tmp_path: Path, own: list[str] | None) -> None:
    file = tmp_path / "config.json"
    text = json.dumps({"process": {"env": own, "args": ["x"]}, "more": [1]}, indent=7)
    file.write_text(text)
    async with changed_environment(str(tmp_path), {"A": None, "C": "4", "B": "x=y"}):
        config = json.loads(file.read_text())
        assert config == {"process": {"env": ["C=4", "B=x=y"], "args": ["x"]}, "more": [1]}
    assert file.read_text() == text


async def test_nothing_is_touched_without_variables(tmp_path: Path) -> None:
    async with changed_environment(str(tmp_path / "none"), {}):
        pass


async def test_a_bundle_that_goes_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"process": {}}')
    async with changed_environment(str(tmp_path), {"A": "1"}):
        file.unlink()
    assert not file.exists()
