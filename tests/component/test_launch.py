"""Supervisors as `create` starts them."""

import os
from pathlib import Path

import pytest

from scrun.commands.launch import launch
from scrun.errors import SupervisorLost


def test_one_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    """A lock that stays would be one more file for each name that was tried."""
    (tmp_path / "root" / "@container-x").mkdir(parents=True)
    with pytest.raises(SupervisorLost, match="does not start"):
        launch(str(tmp_path / "root"), "@container-x")
    assert os.listdir(tmp_path / "root") == ["@container-x"]
