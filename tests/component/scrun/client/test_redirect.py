"""Files in the place of standard streams, whose names may come later."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT

PROGRAM = """
import os, sys
from scrun.commands.shims import Redirected
how, early, late = sys.argv[1:]
files = Redirected(append=how == "append")
try:
    files.use(2, early)
    files.use_later(1, late)
    assert files.any_late
    os.write(1, b"out")
    os.write(2, b"err")
    if how != "none":
        files.name(lambda pattern: pattern.replace("%j", "7"))
finally:
    files.discard()
"""


def redirect(folder: Path, how: str, late: str) -> int:
    argv = [sys.executable, "-c", PROGRAM, how, "early", late]
    env = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(argv, cwd=folder, env=env, umask=0o027, check=False).returncode


@pytest.mark.parametrize(("how", "found"), [("truncate", "out"), ("append", "oldout")])
def test_names_that_come_later(tmp_path: Path, how: str, found: str) -> None:
    for name in ("early", "out.7"):
        (tmp_path / name).write_text("old")
    assert redirect(tmp_path, how, "out.%j") == 0
    assert (tmp_path / "out.7").read_text() == found
    assert (tmp_path / "early").read_text() == found.replace("out", "err")
    assert sorted(os.listdir(tmp_path)) == ["early", "out.7"]
    assert (tmp_path / "out.7").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("how", "late"),
    [("truncate", "%j/out"), ("none", "out.%j"), ("truncate", "missing/%j")],
)
def test_nothing_is_left_without_a_name(tmp_path: Path, how: str, late: str) -> None:
    redirect(tmp_path, how, late)
    assert os.listdir(tmp_path) == ["early"]
