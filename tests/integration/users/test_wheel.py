"""The wheel, in an environment of its own beside the process manager called supervisor."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.cli.completion.scripts import SCRIPTS
from tests import CHECKOUT
from tests.harness import users
from tests.harness.program import run_program
from tests.harness.site import Site

NEEDED = [
    *("bin", "docs/examples", "docs/man", "scrun", "supervisor", "tools/docs"),
    *("MANIFEST.in", "README.md", "pyproject.toml", "setup.py"),
]
COMPLETION = {
    "bash": "bash-completion/completions/scrun",
    "fish": "fish/vendor_completions.d/scrun.fish",
    "zsh": "zsh/site-functions/_scrun",
}


def must(*command: str | Path) -> str:
    """Run a command, which succeeds; its standard output."""
    done = run_program(command, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel() -> Iterator[Path]:
    """Built from a copy: a build leaves its traces beside the sources."""
    base = Path(tempfile.mkdtemp(prefix="sc-wheel-", dir="/tmp"))
    leave_out = shutil.ignore_patterns("__pycache__")
    for name in NEEDED:
        source, target = CHECKOUT / name, base / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, ignore=leave_out)
        else:
            shutil.copy(source, target)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    must(
        *(*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index"),
        *("--wheel-dir", base, base / "source"),
    )
    yield next(base.glob("scrun-*.whl"))
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def environment(wheel: Path) -> Iterator[Path]:
    """A fresh environment with both."""
    base = Path(tempfile.mkdtemp(prefix="sc-env-", dir="/tmp"))
    base.chmod(0o755)
    must(Path(sys.executable).resolve(), "-m", "venv", base)
    pip = (base / "bin" / "python3", "-m", "pip", "--disable-pip-version-check")
    must(*pip, "install", "--quiet", wheel, "supervisor>=4,<5")
    yield base
    shutil.rmtree(base)


@pytest.mark.timeout(240)
def test_both_are_there(environment: Path) -> None:
    assert must(environment / "bin" / "supervisord", "--version").startswith("4.")
    assert must(environment / "bin" / "scrun", "--version").startswith("scrun version ")
    program = "import supervisor, scrun, scrun.supervisor as own; print(supervisor.__file__)"
    package = must(environment / "bin" / "python3", "-I", "-c", program).strip()
    assert not (Path(package).parent / "daemon").exists()


@pytest.mark.timeout(240)
def test_every_source_is_there_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"scrun"}
    kinds = (".py", ".lua", ".txt")
    sources = (path for path in (CHECKOUT / "supervisor").rglob("*") if path.suffix in kinds)
    wanted = {f"scrun/{path.relative_to(CHECKOUT)}" for path in sources}
    assert wanted == {name for name in names if name.startswith("scrun/supervisor/")}


@pytest.mark.timeout(240)
def test_a_life_by_a_bare_interpreter(environment: Path) -> None:
    packages = next((environment / "lib").glob("python3*/site-packages"))
    trap = packages / "trap.pth"  # the site module reads it
    trap.write_text("import os; os._exit(97)\n")
    site = Site("local", users.root(), binary=str(environment / "bin" / "scrun"))
    try:
        done = subprocess.run([environment / "bin" / "python3", "-c", ""], timeout=30)
        assert done.returncode == 97
        life = site.life("sh", "-c", "exit 7").created(60)
        assert life.state()["status"] == "created"
        life.start().ends(7)
    finally:
        site.clear()
        site.close()
        trap.unlink()


@pytest.mark.timeout(240)
def test_what_else_is_there(environment: Path) -> None:
    share = environment / "share"
    for page in ("man1/scrun.1", "man5/scrun.lua.5", "man5/scrun.toml.5"):
        assert (share / "man" / page).read_text().startswith(".")
    for shell, place in COMPLETION.items():
        assert (share / place).read_text() == SCRIPTS[shell]
    examples = CHECKOUT / "docs" / "examples"
    for example in (examples / "scrun.lua", *examples.glob("oci.conf/*.conf")):
        installed = share / "doc" / "scrun" / "examples" / example.relative_to(examples)
        assert installed.read_bytes() == example.read_bytes()
