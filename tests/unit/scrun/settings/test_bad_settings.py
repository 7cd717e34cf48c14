"""Settings files that ended a command with a fault, took for ever, or all of the memory."""

import contextlib
import os
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file.load import load, parse
from scrun.settings.oci_conf.patterns import substitute
from scrun.settings.slurm_conf import read_slurm_conf
from tests.harness.limits import limited


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"x = 1" + b"0" * 5000, "not TOML: Exceeds the limit"),
        (b'root = "/a\\u0000b"', "root: contains a NUL character"),
        (b'[staging]\nhost_only = ["/a", "/\\u0000"]', "staging.host_only[1]: contains a NUL"),
        (b"idle_timeout = nan", "idle_timeout: is not a number"),
        (b"[slurm.defaults]\nntasks = 0x" + b"f" * 5000, "slurm.defaults.ntasks: is too large"),
        (b"a." * 20_000 + b"a = 1", "line 1 has more than 100 dots"),
        (b"\n\nx = {" + b"a." * 20_000 + b"a = 1}", "line 3 has more than 100 dots"),
        (b"#" * ((1 << 20) + 1), "is larger than 1 MiB"),
        (b"x = " + b"[" * 100_000, "not TOML: "),
    ],
    ids=range(9),
)
def test_scrun_toml_that_did_harm(tmp_path: Path, content: bytes, reason: str) -> None:
    path = str(tmp_path / "scrun.toml")
    (tmp_path / "scrun.toml").write_bytes(content)
    with limited(2, 100), pytest.raises(SettingsError) as caught:
        load({}, path)
    assert str(caught.value).startswith(f"{path}: {reason}")


def test_a_hundred_megabytes(tmp_path: Path) -> None:
    for name in ("scrun.toml", "slurm.conf"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(100_000_000)
    with limited(1, 50):
        with pytest.raises(SettingsError, match="is larger than 1 MiB"):
            load({}, str(tmp_path / "scrun.toml"))
        with pytest.raises(SettingsError, match="is larger than 16 MiB"):
            read_slurm_conf(str(tmp_path / "slurm.conf"))


@pytest.mark.parametrize("text", ['root = "/a\x01b"', 'root = "/a"\r', "# \x00", 'root = "/\x7f"'])
def test_control_characters_are_refused(text: str) -> None:
    with pytest.raises(SettingsError):
        parse(text.encode(), "x")


def test_a_long_pattern_is_filled_in_quickly() -> None:
    for pattern in ("a" * 500_000, "'" * 500_001, '"$(' * 100_000, "\\" * 200_001, "`" * 200_001):
        with limited(2), contextlib.suppress(SettingsError):
            substitute(pattern + "%u", {"u": "x y"})


def test_includes_that_multiply(tmp_path: Path) -> None:
    for level in range(9):
        (tmp_path / str(level)).write_text(f"include {level + 1}\n" * 50)
    (tmp_path / "9").write_text("ClusterName=x\n")
    with limited(), pytest.raises(SettingsError, match="more than 1000 files are included"):
        read_slurm_conf(str(tmp_path / "0"))


@pytest.mark.parametrize("kind", ["fifo", "directory", "missing", "null"])
def test_a_slurm_conf_that_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "slurm.conf"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "null":
        path.symlink_to("/dev/zero")
    with limited(1, 50), pytest.raises(SettingsError, match=f"^{path}: "):
        read_slurm_conf(str(path))


@pytest.mark.parametrize("variable", ["SCRUN_DEBUG", "SCRUN_STDERR_DEBUG", "SCRUN_FILE_DEBUG"])
def test_a_variable_that_is_not_utf8(tmp_path: Path, variable: str) -> None:
    (tmp_path / "scrun.toml").touch()
    with pytest.raises(SettingsError, match=f"^{variable}: .*: is not UTF-8"):
        load({variable: os.fsdecode(b"\xff")}, str(tmp_path / "scrun.toml"))
