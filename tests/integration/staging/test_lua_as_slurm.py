"""What a scrun.lua finds, beside what Slurm's own Lua plugins here give their scripts."""

import os
from pathlib import Path
from subprocess import run

import pytest

from scrun.supervisor.worker import constants
from scrun.supervisor.worker.modules import cpath, library_directory, path
from tests.harness.users import PATH

CONF = """ClusterName=tux
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
AuthType=auth/none
CliFilterPlugins=lua
NodeName=localhost
PartitionName=all Nodes=localhost
"""
SCRIPT = """
local file = io.open("@BASE@/seen", "w")
for name, value in pairs(slurm) do
    if type(value) == "number" then file:write(string.format("%s %.0f\\n", name, value)) end
end
file:write("path ", package.path, "\\n", "cpath ", package.cpath, "\\n")
file:write("version ", _VERSION, "\\n")
file:close()
return slurm.ERROR
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The numbers in the table `slurm` of a cli_filter.lua, and where it looks for modules."""
    base: Path = tmp_path_factory.mktemp("plugin")
    (base / "slurm.conf").write_text(CONF)
    (base / "cli_filter.lua").write_text(SCRIPT.replace("@BASE@", str(base)))
    environment = {"PATH": PATH, "SLURM_CONF": str(base / "slurm.conf")}
    told = run(["srun", "true"], env=environment, capture_output=True, timeout=60, check=False)
    assert (base / "seen").exists(), told.stderr
    lines = (base / "seen").read_text().splitlines()
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def test_every_number_of_slurms_is_there(seen: dict[str, str]) -> None:
    ours = {**constants.errors(), **constants.OF_JOBS, **constants.USUAL}
    numbers = {name: value for name, value in seen.items() if value.lstrip("-").isdigit()}
    assert len(numbers) > 30
    assert {name: f"{ours.get(name, -9):.0f}" for name in numbers} == numbers


def test_modules_are_looked_for_in_the_same_places(seen: dict[str, str]) -> None:
    version = seen["version"].removeprefix("Lua ")
    libraries = library_directory()
    theirs = {entry for entry in seen["path"].split(";") if entry[0] == "/"}
    theirs_c = {entry for entry in seen["cpath"].split(";") if entry[0] == "/"}
    local = f"/usr/local/share/lua/{version}/?.lua"
    ours = path(local, version, {}).split(";")
    ours_c = cpath("", version, {}, libraries).split(";")
    assert {entry for entry in theirs if not entry.startswith("/usr/local/")} <= {*ours}
    assert {entry for entry in theirs_c if not entry.startswith("/usr/local/")} <= {*ours_c}
    assert all(os.path.isabs(entry) for entry in ours if entry)
