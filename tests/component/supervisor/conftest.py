"""Fixtures of scripts in their worker."""

from pathlib import Path

import pytest

from scrun.settings.file.load import Lua
from tests.harness.lua import USUAL, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(params=USUAL)
def lua(request: pytest.FixtureRequest) -> Lua:
    """Versions of Lua; `pytest.mark.parametrize("lua", VERSIONS, indirect=True)` takes all."""
    return Lua(version=request.param)
