import os
import posix
import pwd
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrun.core.errors import SettingsError
from scrun.settings.file import quick
from scrun.settings.file.load import load
from tests.harness.program import run_program

UID = os.geteuid()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for the real user, and no system file."""
    entry = list(pwd.getpwuid(0))
    entry[5] = str(tmp_path)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(entry))
    monkeypatch.setattr(quick, "SYSTEM_FILE", str(tmp_path / "system.toml"))
    (tmp_path / ".config/scrun").mkdir(parents=True)
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / quick.USER_FILE
    path.write_text(text)
    path.chmod(0o644)
    return path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", {}),
        ("# nothing\n\n", {}),
        ('root = "/x"', {"root": "/x"}),
        ("root='/x' # y\r\n\tgroup =\"pod\"\r\n", {"root": "/x", "group": "pod"}),
        ('idle_timeout = 5.0\nengine = "slurm"\nroot="/x"\n', {"root": "/x"}),
        ('root = "/x"\n[log]\nroot = "/y"\n', {"root": "/x"}),
        ('[staging]\nhost_only = [\n "/run",\n]\n[slurm.defaults]\n', {}),
        ('root = "/x\\u0041"', None),
        ("root = 5", None),
        ('root = "relative"', None),
        ('group = "nobody"', None),
        ('group = "/x"', None),
        ('root = "user"', None),
        ('root = """/x"""', None),
        ('"root" = "/x"', None),
        ('a.root = "/x"', None),
        ('root = "/x" y', None),
        ('root = "/x\nroot="/y"', None),
        ('root = "/x"\nroot = "/y"', None),
        ('x = """\nroot = "/x"\n"""', None),
        ("x = [\n]", None),
        ("[root]\nx = 1", None),
        ("[root.x]", None),
        ("[[group]]", None),
        ('["root"]', None),
        ("[ root ]", None),
        ("root", None),
    ],
)
def test_scan(text: str, found: dict[str, str] | None) -> None:
    assert quick.scan(text.encode()) == found


def test_scan_of_what_is_not_text() -> None:
    assert quick.scan(b'root = "/\xff"') is None


PIECES = [
    "root", "group", '"root"', "x", ".", " ", "\t", "=", '"', "'", '"""', "'''", "\\", "/a",
    '"/b"', "'/c'", "pod", '"user"', "\n", "\n", "\r\n", "#", "[", "]", "[[", "]]", "[a]", "{",
    "}", ",", "5", "true", "é", "\\u0041",
]  # fmt: skip
LINES = [
    'root = "/a"', "root='/b' # c", 'group = "pod"', "x = 1", 'y = "z"', "# c", "", "[t]",
    'root = """', '"""', "x = '''", "'''", "x = [", "]", "[root]", '"root" = 1', "[t.group]",
    'root.x = "/a"', 'root = "/a', "\troot = '/d'\t", "x = {root = '/e'}",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(PIECES)).map("".join)
    | st.lists(st.sampled_from(LINES)).map("\n".join)
    | st.lists(st.sampled_from(LINES)).map("\r\n".join)
    | st.text()
)
@example("x='''\nroot='/a'\n'''")
def test_agrees_with_tomllib(text: str) -> None:
    found = quick.scan(text.encode("utf-8", "surrogatepass"))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # the loader complains, if it is ever asked
    if found is not None:
        assert found == {key: table[key] for key in ("root", "group") if key in table}


def test_user_over_system(home: Path) -> None:
    assert quick.quick({}) == {}
    (home / "system.toml").write_text('root = "/s"\ngroup = "pod"\n')
    write(home, 'root = "/u"\n')
    assert quick.quick({}) == {"root": "/u", "group": "pod"}
    assert quick.quick({"SCRUN_ROOT": "/e"}) == {"root": "/e", "group": "pod"}
    settings = load({})
    assert (settings.root, settings.group) == ("/u", "pod")


def test_one_file_instead(home: Path) -> None:
    write(home, 'root = "/u"\n')
    named = home / "named.toml"
    named.write_text('group = "container"')
    for found in (quick.quick({"SCRUN_CONFIG": str(named)}), quick.quick({}, str(named))):
        assert found == {"group": "container"}
    assert load({}, str(named)).root is None
    assert quick.quick({"SCRUN_CONFIG": ""}) == {"root": "/u"}


@pytest.mark.parametrize("env", [{"SCRUN_CONFIG": "/nowhere/x"}, {"SCRUN_ROOT": "relative"}])
def test_the_loader_complains(home: Path, env: dict[str, str]) -> None:
    assert quick.quick(env) is None
    with pytest.raises(SettingsError):
        load(env)


@pytest.mark.by_root
def test_a_file_of_others_is_refused(home: Path) -> None:
    path = write(home, 'root = "/u"\n')
    for mode, group in (0o664, pwd.getpwnam("games").pw_gid), (0o646, 0):
        os.chown(path, -1, group)
        path.chmod(mode)
        assert quick.quick({}) is None
        with pytest.raises(SettingsError, match="may write to it"):
            load({})
    path.chmod(0o600)
    assert quick.quick({}) == {"root": "/u"}
    os.chown(path, 12345, -1)
    with pytest.raises(SettingsError, match="belongs to uid 12345"):
        load({})


def test_not_a_file(home: Path) -> None:
    os.mkfifo(home / quick.USER_FILE, 0o600)
    assert quick.quick({}) is None
    with pytest.raises(SettingsError, match="not a regular file"):
        load({})


@pytest.mark.parametrize(
    ("euid", "uid_map", "env", "uid"),
    [
        (1000, "0 5 1\n", {"_CONTAINERS_ROOTLESS_UID": "7"}, 1000),
        (0, "         0          0 4294967295\n", {"_CONTAINERS_ROOTLESS_UID": "7"}, 0),
        (0, "         0       1000          1\n         1     100000      65536\n", {}, 1000),
        (0, "1 100000 65536\n0 1000 1\n", {"_CONTAINERS_ROOTLESS_UID": "7"}, 1000),
        (0, None, {"_CONTAINERS_ROOTLESS_UID": "7"}, 7),
        (0, None, {"_CONTAINERS_ROOTLESS_UID": "x"}, 0),
        (0, None, {}, 0),
    ],
)
def test_real_uid(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    euid: int,
    uid_map: str | None,
    env: dict[str, str],
    uid: int,
) -> None:
    monkeypatch.setattr(posix, "geteuid", lambda: euid)
    path = tmp_path / "uid_map"
    if uid_map is not None:
        path.write_text(uid_map)
    assert quick.real_uid(env, str(path)) == uid


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --root")
def test_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    assert quick.default_root({"XDG_RUNTIME_DIR": "/r"}, "/given") == "/given"
    monkeypatch.setattr(quick, "real_uid", lambda env: 0)
    assert quick.default_root({"XDG_RUNTIME_DIR": "/r"}) == "/run/scrun"
    monkeypatch.setattr(quick, "real_uid", lambda env: 987654)
    assert quick.default_root({"XDG_RUNTIME_DIR": "/r/"}) == "/r/scrun"
    for env in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}):
        with pytest.raises(SettingsError, match=r"set XDG_RUNTIME_DIR, or give --root"):
            quick.default_root(env)
    is_directory = posix.stat("/")
    monkeypatch.setattr(posix, "stat", lambda path: is_directory)
    assert quick.default_root({}) == "/run/user/987654/scrun"


def test_imports_nothing_but_built_in_modules() -> None:
    code = (
        "import sys, os; before = set(sys.modules); import scrun.settings.file.quick as quick;"
        "quick.quick(os.environ); quick.default_root(os.environ, '/x');"
        "print(*sorted(set(sys.modules) - before))"
    )
    answer = run_program([sys.executable, "-c", code], check=True)
    assert set(answer.stdout.split()) <= {
        "scrun", "scrun.core", "scrun.settings", "scrun.settings.file",
        "scrun.settings.file.quick", "scrun.core.paths", "errno", "pwd",
    }  # fmt: skip
