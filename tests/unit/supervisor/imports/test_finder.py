"""Modules are found where they are known to be, and else by the interpreter's own finder."""

import importlib
import py_compile
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from scrun.supervisor.imports import finder
from scrun.supervisor.imports.finder import Finder
from tests import CHECKOUT


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that is one of those that we know."""
    folder = tmp_path / "known_one"
    (folder / "below").mkdir(parents=True)
    for name in ("__init__", "plain", "below/__init__", "below/deep"):
        path = folder / f"{name}.py"
        path.write_text(f"name = {name!r}\ndef fail(): raise ValueError(name)\n")
        py_compile.compile(str(path))
    monkeypatch.setattr(finder, "_PACKAGES", finder._PACKAGES | {"known_one"})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    finder.install()
    yield folder
    for name in [name for name in sys.modules if name.startswith("known_one")]:
        del sys.modules[name]


def imported(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", ["known_one.plain", "known_one.below", "known_one.below.deep"])
def test_it_is_as_the_interpreters(package: Path, name: str) -> None:
    ours = imported(name)
    assert type(ours.__loader__).__name__ == "_Loader"
    found = {key: vars(ours)[key] for key in ("name", "__file__", "__cached__", "__package__")}
    path = vars(ours).get("__path__")
    sys.meta_path[:] = [it for it in sys.meta_path if it is not Finder]
    theirs = importlib.reload(ours)
    assert type(theirs.__loader__).__name__ == "SourceFileLoader"
    assert {key: vars(theirs)[key] for key in found} == found
    assert vars(theirs).get("__path__") == path


def test_a_source_that_has_changed(package: Path) -> None:
    (package / "plain.py").write_text("name = 'another'\n")
    assert imported("known_one.plain").name == "another"


@pytest.mark.parametrize("at", [0, 4, 8, 12])
def test_compiled_code_of_another_kind(package: Path, at: int) -> None:
    """Of another version, checked by its hash, older, or of another size."""
    path = Path(importlib.util.cache_from_source(str(package / "plain.py")))
    content = bytearray(path.read_bytes())
    content[at] ^= 2
    path.write_bytes(content)
    spec = Finder.find_spec("known_one.plain", [str(package)])
    assert spec is None
    if at != 4:
        assert imported("known_one.plain").name == "plain"


def test_compiled_code_that_was_cut_off(package: Path) -> None:
    path = Path(importlib.util.cache_from_source(str(package / "plain.py")))
    path.write_bytes(path.read_bytes()[:40])
    assert Finder.find_spec("known_one.plain", [str(package)]) is None


def test_the_line_of_an_error(package: Path) -> None:
    with pytest.raises(ValueError, match="plain") as caught:
        imported("known_one.plain").fail()
    assert caught.traceback[-1].path == package / "plain.py"
    assert str(caught.traceback[-1].statement) == "def fail(): raise ValueError(name)"


def test_a_module_that_is_read_again(package: Path) -> None:
    module = imported("known_one.plain")
    assert module.__loader__ is not None
    again = module.__loader__.get_code("known_one.plain")  # type: ignore[attr-defined]
    assert again.co_filename == str(package / "plain.py")
    assert importlib.reload(module).name == "plain"


@pytest.mark.parametrize("name", ["numpy", "known_one.nothing", "known_one.below.nothing"])
def test_what_is_not_there(package: Path, name: str) -> None:
    assert Finder.find_spec(name, [str(package)] if "." in name else None) is None


def test_a_package_in_several_places(package: Path) -> None:
    assert Finder.find_spec("known_one.plain", [str(package), str(package)]) is None


@pytest.mark.parametrize("options", [["-O"], ["-X", "pycache_prefix=/nowhere"], []])
def test_what_the_interpreter_was_told(options: list[str]) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})\n"
        "from scrun.supervisor.imports import finder\n"
        "before = len(sys.meta_path); finder.install(); print(len(sys.meta_path) - before)\n"
        "import json, sqlite3.dbapi2, encodings.punycode, curses\n"
    )
    argv = [sys.executable, *options, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == ("0\n" if options else "1\n")
