"""Where somebody uses scrun, tests pass, and change nothing of what is set up."""

import sys

import pytest

from tests import CHECKOUT
from tests.harness.program import run_program
from tests.harness.users import User

USED = (sys.executable, "-m", "tests.harness.used")
APART = (sys.executable, "-m", "tests.harness.apart")
SHOW = """
from pathlib import Path
from tests.harness.used import FILES, home
for name, text in FILES.items():
    path = Path(name.replace("~", home()))
    if path.exists() and path.read_text() == text:
        print(path)
"""
# Each failed there when tests looked where a machine's users have their own files
TESTS = (
    "tests/unit/supervisor/containers/test_journal_caller.py::test_levels_asked_for",
    "tests/unit/supervisor/plugins/test_plugins.py::test_the_stager_that_is_named",
    "tests/component/supervisor/nodes/test_both_ends.py::test_exec",
)


def on_a_used_machine(*command: str) -> tuple[int, str, str]:
    done = run_program([*USED, *command], cwd=CHECKOUT, timeout=100)
    return done.returncode, done.stdout, done.stderr


def test_tests_pass() -> None:
    status, said, complaints = on_a_used_machine(sys.executable, "-m", "pytest", "-q", *TESTS)
    assert (status, complaints) == (0, ""), said


def test_nothing_of_it_is_seen() -> None:
    seen = on_a_used_machine(sys.executable, "-c", SHOW)[1].splitlines()
    assert "/etc/slurm/oci.conf" in seen
    assert "/run/scrun/odd/record/state" in seen
    assert on_a_used_machine(*APART, sys.executable, "-c", SHOW) == (0, "", "")


def test_nothing_of_it_is_changed() -> None:
    change = "useradd -m somebody; touch /etc/new; mkdir /etc/scrun /run/scrun ~/.config ~/.local"
    assert on_a_used_machine(*APART, "sh", "-ec", change) == (0, "", "")
    with pytest.raises(KeyError):
        User.of("somebody")


@pytest.mark.parametrize("path", ["/etc/new", "/run/scrun/new"])
def test_what_is_changed_is_told(path: str) -> None:
    status, _, complaints = on_a_used_machine("touch", path)
    assert status == 1
    assert f"used: {path}: was None, is " in complaints
