"""What the frequent operations import: next to nothing."""

import subprocess
import sys
from importlib.machinery import FrozenImporter
from pathlib import Path

import pytest

from tests.harness.site import Site

pytestmark = pytest.mark.covers("promise frequent commands import little")

one_each = pytest.mark.parametrize("site", ["local-root", "slurm-user"], indirect=True)

FOR_NAMESPACES = {"_ctypes"}  # and not ctypes
OURS = ("scrun", "scrun.main", "scrun.protocol.wire", "scrun.anchor.shell")
OF_STATE = {
    f"scrun.{name}"
    for name in ("_fast", "cli.grammar", "cli.parse", "client.ask", "core.output", "protocol.wire")
}  # scrun.main has a shorter way to find them


def imported(site: Site, *command: str) -> set[str]:
    """Run the installed scrun so that it tells what it imports."""
    launcher = site.command[0]
    place = Path(launcher).parent
    # as its shell does
    python = [str(place / "python3"), "-IS", "-X", f"prefix={place}/..", "-X", "importtime"]
    told = site.base / "l" / "imports"
    with told.open("w+") as errors:
        done = subprocess.run(
            [
                *site.user.prefix, *python, launcher, *site.command[1:], *command,
            ],
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


@pytest.mark.covers("plugin-api Performance: functions are quick")
@one_each
def test_frequent_operations_import_nothing_heavy(site: Site) -> None:
    site.life("true", container="first").created()  # the supervisor is there from now on
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
        if command[0] == "state":
            assert {name for name in modules if name.startswith("scrun")} == OF_STATE
        site.run("delete", "--force", "first")
