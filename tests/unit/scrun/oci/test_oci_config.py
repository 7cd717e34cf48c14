import contextlib
import copy
import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrun.core.errors import BundleError
from scrun.core.paths import LIMIT
from scrun.oci.config import load_bundle, parse

MINIMAL: dict[str, Any] = {
    "ociVersion": "1.0.2",
    "process": {"args": ["sh"], "cwd": "/"},
    "root": {"path": "rootfs"},
}


def with_member(path: str, value: object) -> bytes:
    config = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    at = config
    for parent in parents:
        at = at.setdefault(parent, {})
    at[last] = value
    return json.dumps(config).encode()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "rootfs").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(MINIMAL))
    return tmp_path


def test_minimal(bundle: Path) -> None:
    loaded = load_bundle(str(bundle))
    assert loaded.rootfs == f"{bundle}/rootfs"
    assert loaded.config_file == f"{bundle}/config.json"
    assert loaded.config.process.args == ["sh"]
    assert loaded.config.mounts == []
    assert loaded.raw == MINIMAL


def test_unknown_members_order_and_integers_survive(bundle: Path) -> None:
    text = json.dumps({"z": {"new": [2**64 - 1, -(2**63), None]}, **MINIMAL, "a": 1})
    (bundle / "config.json").write_text(text)
    assert json.dumps(load_bundle(str(bundle)).raw) == text


def test_another_file(bundle: Path) -> None:
    (bundle / "config.json").rename(bundle / "other")
    assert load_bundle(str(bundle), str(bundle / "other")).rootfs == f"{bundle}/rootfs"


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("process.args", [1], "process.args[0]: expected string, got int"),
        ("process.args", "sh", "process.args: expected array, got string"),
        ("process.args", [], "process.args: is empty"),
        ("process.args", None, "process.args: is missing"),
        ("process.args", [""], "process.args[0]: is empty"),
        ("process.args", ["a", "b\0"], "process.args[1]: contains a NUL character"),
        ("process.env", ["A=1", {}], "process.env[1]: expected string, got object"),
        ("process.cwd", "x", "process.cwd: x: is not an absolute path"),
        ("process.cwd", None, "process.cwd: is missing"),
        ("process.terminal", "yes", "process.terminal: expected boolean, got string"),
        ("process.user.uid", -1, "process.user.uid: expected int >= 0"),
        ("process.rlimits", [{"type": "x", "soft": 1}], "process.rlimits[0].hard: is missing"),
        ("process", None, "process: is missing"),
        ("root", None, "root: is missing"),
        ("root.path", "", "root.path: is empty"),
        ("ociVersion", None, "ociVersion: is missing"),
        ("ociVersion", "0.6.0", "ociVersion: 0.6.0: is not supported, 1.x is"),
        ("ociVersion", "10.0", "ociVersion: 10.0: is not supported"),
        ("mounts", [{"destination": 1}], "mounts[0].destination: expected string, got int"),
        ("annotations", {"a": 1}, "annotations.a: expected string, got int"),
        ("linux.uidMappings", [{"containerID": 0, "hostID": 0}], "linux.uidMappings[0].size: is"),
        ("hooks.prestart", [{}], "hooks.prestart[0].path: is missing"),
    ],
)
def test_members(member: str, value: object, message: str) -> None:
    with pytest.raises(BundleError, match="^" + re.escape(f"config.json: {message}")):
        parse(with_member(member, value))


@pytest.mark.parametrize("version", ["1.0.0", "1.0", "1.0.2-dev", "1.2.1+dev", "1.3.0-rc.1"])
def test_versions(version: str) -> None:
    parse(with_member("ociVersion", version))


@pytest.mark.parametrize("member", ["mounts", "process.env", "hooks", "linux", "hostname"])
def test_null_is_absent(member: str) -> None:
    assert parse(with_member(member, None))[1] == parse(json.dumps(MINIMAL).encode())[1]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"{'a': 1}", b"[" * 10**6])
def test_not_json(content: bytes) -> None:
    with pytest.raises(BundleError, match=r"config.json: (is not|has more than) "):
        parse(content)


def test_bundle_must_be_absolute() -> None:
    with pytest.raises(BundleError, match="bundle: x: is not an absolute path"):
        load_bundle("x")


def test_root(bundle: Path) -> None:
    (bundle / "rootfs").rmdir()
    expected = f"^{bundle}/config.json: root.path: {bundle}/rootfs: "
    with pytest.raises(BundleError, match=expected + "does not exist"):
        load_bundle(str(bundle))
    (bundle / "rootfs").touch()
    with pytest.raises(BundleError, match=expected + "is not a directory"):
        load_bundle(str(bundle))
    (bundle / "rootfs").unlink()
    (bundle / "rootfs").symlink_to("/usr")
    assert load_bundle(str(bundle)).rootfs == f"{bundle}/rootfs"


def test_absolute_root(bundle: Path) -> None:
    (bundle / "config.json").write_bytes(with_member("root.path", "/usr/../usr"))
    assert load_bundle(str(bundle)).rootfs == "/usr"


def test_what_is_no_file(bundle: Path) -> None:
    path = bundle / "config.json"
    path.unlink()
    with pytest.raises(BundleError, match=f"^{path}: No such file or directory"):
        load_bundle(str(bundle))
    os.mkfifo(path)
    with pytest.raises(BundleError, match="is not a regular file"):
        load_bundle(str(bundle))
    path.unlink()
    path.mkdir()
    with pytest.raises(BundleError, match="is not a regular file"):
        load_bundle(str(bundle))
    path.rmdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        with pytest.raises(BundleError, match="is not a regular file"):
            load_bundle(str(bundle))


def test_too_large(bundle: Path) -> None:
    os.truncate(bundle / "config.json", LIMIT + 1)
    with pytest.raises(BundleError, match="is larger than 16 MiB"):
        load_bundle(str(bundle))


def test_odd_names(bundle: Path) -> None:
    with pytest.raises(BundleError, match="not a file name"):
        load_bundle(str(bundle), "a\0b")


def test_what_runc_writes(bundle: Path) -> None:
    (bundle / "config.json").unlink()
    subprocess.run(["runc", "spec"], check=True, cwd=bundle)
    loaded = load_bundle(str(bundle)).config
    assert loaded.process.args == ["sh"]
    assert loaded.process.terminal
    assert loaded.process.rlimits[0].type == "RLIMIT_NOFILE"
    assert "pid" in [namespace.type for namespace in loaded.linux.namespaces]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NAMES = """
    ociVersion process process.args process.env process.cwd process.user process.user.uid root
    root.path mounts hooks hooks.prestart linux linux.namespaces linux.resources annotations
    hostname process.rlimits process.capabilities
"""
MEMBERS = st.sampled_from(NAMES.split())


@given(MEMBERS, JSON)
def test_any_value_of_any_member(member: str, value: object) -> None:
    with contextlib.suppress(BundleError):
        parse(with_member(member, value))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_file(bundle: Path, content: bytes) -> None:
    (bundle / "config.json").write_bytes(content)
    with pytest.raises(BundleError):
        load_bundle(str(bundle))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text())
def test_any_root(bundle: Path, path: str) -> None:
    (bundle / "config.json").write_bytes(with_member("root.path", path))
    with contextlib.suppress(BundleError):
        load_bundle(str(bundle))
