"""What the frequent operations cost: no interpreter, or one that imports next to nothing."""

import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.machinery import FrozenImporter
from pathlib import Path

import pytest

from tests.harness.installation import Installation
from tests.harness.site import Site

pytestmark = pytest.mark.covers("promise frequent commands import little")

one_each = pytest.mark.parametrize("site", ["local-root", "slurm-user"], indirect=True)

FOR_NAMESPACES = {"_ctypes"}  # and not ctypes


def imported(site: Site, *command: str) -> set[str]:
    """Run the Python program so that it tells what it imports."""
    place = Path(site.command[0]).parent
    # as the client does where it steps aside
    python = [str(place / "python3"), "-IS", "-X", f"prefix={place}/..", "-X", "called=scrun"]
    program = [*python, "-X", "importtime", str(place.parent / "share" / "scrun" / "main.py")]
    told = site.base / "l" / "imports"
    with told.open("w+") as errors:
        done = subprocess.run(
            [*site.user.prefix, *program, *site.command[1:], *command],
            env=site.environment, cwd=site.base, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=errors, timeout=30,
        )  # fmt: skip
        errors.seek(0)
        lines = errors.read().splitlines()
    assert done.returncode == 0, lines
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}


def heavy(modules: set[str]) -> set[str]:
    """Those that are neither built in, nor frozen, nor ours."""
    return {
        name
        for name in modules
        if name not in sys.builtin_module_names
        and FrozenImporter.find_spec(name) is None
        and not name.startswith("scrun")
        and not name.startswith("encodings")
        and name != "imported package"
    }


def begin(site: Site) -> None:
    """Have a supervisor, and the settings remembered, which must not be of this very second."""
    settings = site.base / "scrun.toml"
    while time.time() - settings.stat().st_ctime < 1.1:
        time.sleep(0.1)
    site.life("true", container="first").created()


@pytest.mark.covers("plugin-api Performance: functions are quick")
@one_each
def test_frequent_operations_import_nothing_heavy(site: Site) -> None:
    begin(site)
    bundle = site.bundle_of("sleep", "600")
    for command in (
        ("create", "--bundle", bundle, "--pid-file", str(site.base / "l" / "pid"), "fast"),
        ("state", "fast"),
        ("start", "fast"),
        ("exec", "fast", "true"),
        ("kill", "fast", "KILL"),
        ("delete", "--force", "fast"),
    ):
        modules = imported(site, *command)
        assert "scrun.main" in modules
        if command[0] in ("create", "exec"):  # in the process that makes the anchor, 0.6 ms
            modules -= FOR_NAMESPACES
        assert not heavy(modules), command
        for package in (
            "trio",
            "lupa",
            "msgspec",
            "daemon",
            "argparse",
            "json",
            "os",
            "re",
            "typing",
        ):
            assert package not in modules, command
        assert not [name for name in modules if name.startswith("scrun.supervisor")]
        site.run("delete", "--force", "first")


@pytest.fixture
def without_python() -> Iterator[Installation]:
    """An installation whose client has nothing to step aside to."""
    installation = Installation()
    (installation.base / "bin" / "python3").unlink()
    yield installation
    installation.close()


@one_each
def test_frequent_operations_need_no_interpreter(site: Site, without_python: Installation) -> None:
    begin(site)
    bundle = site.bundle_of("sleep", "600")
    pid_file = site.base / "l" / "pid"
    client = [*site.user.prefix, without_python.binary, *site.command[1:]]
    for command in (
        ("create", "--bundle", bundle, "--pid-file", str(pid_file), "fast"),
        ("state", "fast"),
        ("start", "fast"),
        ("exec", "--detach", "fast", "true"),
        ("exec", "fast", "sleep", "1"),  # meanwhile the other one has ended
        ("kill", "fast", "KILL"),
        ("delete", "--force", "fast"),
    ):
        with (site.base / "l" / "errors").open("w+") as errors:  # the container has it, too
            done = subprocess.run(
                [*client, *command], env=site.environment, cwd=site.base, timeout=30,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip
            errors.seek(0)
            assert (done.returncode, errors.read()) == (0, ""), command
    # an error needs its words, and so the interpreter
    refused = subprocess.run(
        [*client, "state", "unknown"], env=site.environment, cwd=site.base, timeout=30,
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert "python3: cannot be executed" in refused.stderr
    site.run("delete", "--force", "first")
