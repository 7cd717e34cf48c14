"""The client in C, given anything: no byte beyond what it was given is read or written."""

import os
from pathlib import Path

from tests.stress.fuzz import client

INPUTS = 200_000 if os.environ.get("SCRUN_NIGHTLY") else 5_000


def test_client(tmp_path: Path) -> None:
    client.build(tmp_path / "fuzzed", "cc", *client.ALONE)
    tmp_path.chmod(0o700)
    client.run_alone(tmp_path / "fuzzed", tmp_path, client.made(39, INPUTS))
