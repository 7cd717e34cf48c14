"""Both forms of the command start the interpreter of their installation, in every layout."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scrun.native.build import build
from tests import CHECKOUT
from tests.harness.program import output_of, run_program

PYTHON = Path(sys.executable).resolve()
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
MAIN = """
import sys

def main():
    print(*sys.argv, "bare" if sys.flags.isolated and sys.flags.no_site else "site", sep="|")
"""


@pytest.fixture(scope="module", params=["client", "script"])
def launcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client in C, or the script of an installation without a compiler."""
    if request.param == "script":
        return CHECKOUT / "bin" / "scrun"
    built = tmp_path_factory.mktemp("client") / "scrun"
    assert not build(built)
    return built


def put(launcher: Path, prefix: Path) -> Path:
    """Put the command into an installation, with what it starts."""
    program = prefix / "bin" / "scrun"
    program.parent.mkdir(exist_ok=True)
    program.write_bytes(launcher.read_bytes())
    program.chmod(0o755)
    share = prefix / "share" / "scrun"
    share.mkdir(parents=True)
    (share / "main.py").write_bytes((CHECKOUT / "bin" / "main.py").read_bytes())
    return program


def install(launcher: Path, prefix: Path, *, venv: bool = True) -> Path:
    """Make an environment with a scrun that tells how it is run, and return its command."""
    package = prefix / "lib" / VERSION / "site-packages" / "scrun"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(MAIN)
    program = put(launcher, prefix)
    if venv:
        (prefix / "pyvenv.cfg").write_text(f"home = {PYTHON.parent}\n")
        (program.parent / "python3").symlink_to(PYTHON)
    return program


def call(program: str | Path, *arguments: str, **environment: str) -> list[str]:
    """Run it, and return what it says."""
    said = output_of([program, *arguments], env={"PATH": os.defpath, **environment})
    return said.rstrip("\n").split("|")


def test_it_is_called_directly(
    launcher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = install(launcher, tmp_path / "an environment")
    assert call(program, "a  b", "$c", "") == [str(program), "a  b", "$c", "", "bare"]
    monkeypatch.chdir(program.parent)
    assert call("./scrun") == ["./scrun", "bare"]
    found = ["sh", "-c", "scrun a"]  # a shell does not say where it has found it
    said = output_of(found, env={"PATH": f"{program.parent}:{os.defpath}"})
    assert said == f"{program}|a|bare\n"


@pytest.mark.parametrize("name", ["share/pipx/venvs/scrun", "share/uv/tools/scrun", "else where"])
def test_it_is_called_by_a_link(launcher: Path, tmp_path: Path, name: str) -> None:
    program = install(launcher, tmp_path / name)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to("/nowhere")
    link = tmp_path / "bin" / "scrun"
    link.symlink_to(program)
    assert call(link, "state") == [str(link), "state", "bare"]
    further = tmp_path / "further"
    further.symlink_to("bin/scrun")
    assert call(further) == [str(further), "bare"]


def test_the_caller_s_variables_for_python_do_not_count(launcher: Path, tmp_path: Path) -> None:
    program = install(launcher, tmp_path / "environment")
    assert call(program, PYTHONHOME="/nowhere", PYTHONPATH="/nowhere")[-1] == "bare"


def test_outside_of_an_environment_the_site_module_counts(launcher: Path, tmp_path: Path) -> None:
    program = install(launcher, tmp_path / "local", venv=False)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / VERSION).symlink_to(PYTHON)
    path = f"{tmp_path}/path:{os.defpath}"
    assert call(program, PATH=path) == [str(program), "site"]


def test_an_editable_installation(launcher: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "environment"
    subprocess.run([PYTHON, "-m", "venv", "--without-pip", prefix], check=True, timeout=60)
    program = put(launcher, prefix)
    source = tmp_path / "source"
    (source / "scrun").mkdir(parents=True)
    (source / "scrun" / "main.py").write_text(MAIN)
    packages = prefix / "lib" / VERSION / "site-packages"
    (packages / "scrun.pth").write_text(f"{source}\n")
    assert call(program, "state") == [str(program), "state", "site"]


def test_a_copy_elsewhere_says_why(launcher: Path, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "scrun"
    program.parent.mkdir()
    program.write_bytes(launcher.read_bytes())
    program.chmod(0o755)
    done = run_program([program, "state", "x"], env={"PATH": os.defpath})
    assert (done.returncode, done.stdout) == (1, "")
    assert f"scrun: {program}: its packages are not in {tmp_path}" in done.stderr
    assert "make a symbolic link" in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_an_interpreter_it_says_why(launcher: Path, tmp_path: Path) -> None:
    program = install(launcher, tmp_path)
    (program.parent / "python3").unlink()
    done = run_program([program, "state", "x"], env={"PATH": os.defpath})
    assert done.returncode
    assert f"{program.parent}/python3" in done.stderr
