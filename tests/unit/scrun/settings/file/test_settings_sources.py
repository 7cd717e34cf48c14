import os
import posix
import pwd
import sys
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file import sources
from scrun.settings.file.load import load, load_and_remember
from tests.harness.program import run_program

UID = os.geteuid()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for the real user, and no system file."""
    entry = list(pwd.getpwuid(0))
    entry[5] = str(tmp_path)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: pwd.struct_passwd(entry))
    monkeypatch.setattr(sources, "SYSTEM_FILE", str(tmp_path / "system.toml"))
    (tmp_path / ".config/scrun").mkdir(parents=True)
    return tmp_path


def write(home: Path, text: str) -> Path:
    path = home / sources.USER_FILE
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_user_over_system(home: Path) -> None:
    assert load_and_remember({}, None) == {"group": "user"}
    (home / "system.toml").write_text('root = "/s"\ngroup = "pod"\n')
    write(home, 'root = "/u"\n')
    assert load_and_remember({}, None) == {"root": "/u", "group": "pod"}
    assert load_and_remember({"SCRUN_ROOT": "/e"}, None) == {"root": "/u", "group": "pod"}
    settings = load({})
    assert (settings.root, settings.group) == ("/u", "pod")


def test_one_file_instead(home: Path) -> None:
    write(home, 'root = "/u"\n')
    named = home / "named.toml"
    named.write_text('group = "container"')
    assert load_and_remember({"SCRUN_CONFIG": str(named)}, None) == {"group": "container"}
    assert load_and_remember({}, str(named)) == {"group": "container"}
    assert load({}, str(named)).root is None
    assert load({"SCRUN_CONFIG": ""}).root == "/u"


@pytest.mark.parametrize("env", [{"SCRUN_CONFIG": "/nowhere/x"}, {"SCRUN_ROOT": "relative"}])
def test_the_loader_complains(home: Path, env: dict[str, str]) -> None:
    del home
    with pytest.raises(SettingsError):
        load_and_remember(env, None)


@pytest.mark.by_root
def test_a_file_of_others_is_refused(home: Path) -> None:
    path = write(home, 'root = "/u"\n')
    for mode, group in (0o664, pwd.getpwnam("games").pw_gid), (0o646, 0):
        os.chown(path, -1, group)
        path.chmod(mode)
        with pytest.raises(SettingsError, match="may write to it"):
            load({})
    path.chmod(0o600)
    assert load({}).root == "/u"
    os.chown(path, 12345, -1)
    with pytest.raises(SettingsError, match="belongs to uid 12345"):
        load({})


def test_not_a_file(home: Path) -> None:
    os.mkfifo(home / sources.USER_FILE, 0o600)
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
    assert sources.real_uid(env, str(path)) == uid


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --root")
def test_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sources.default_root({"XDG_RUNTIME_DIR": "/r"}, "/given") == "/given"
    monkeypatch.setattr(sources, "real_uid", lambda env: 0)
    assert sources.default_root({"XDG_RUNTIME_DIR": "/r"}) == "/run/scrun"
    monkeypatch.setattr(sources, "real_uid", lambda env: 987654)
    assert sources.default_root({"XDG_RUNTIME_DIR": "/r/"}) == "/r/scrun"
    for env in ({}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "relative"}):
        with pytest.raises(SettingsError, match=r"set XDG_RUNTIME_DIR, or give --root"):
            sources.default_root(env)
    is_directory = posix.stat("/")
    monkeypatch.setattr(posix, "stat", lambda path: is_directory)
    assert sources.default_root({}) == "/run/user/987654/scrun"


def test_imports_nothing_but_built_in_modules() -> None:
    code = (
        "import sys, os; before = set(sys.modules);"
        "from scrun.settings.file import sources;"
        "sources.recall(os.environ); sources.default_root(os.environ, '/x');"
        "print(*sorted(set(sys.modules) - before))"
    )
    answer = run_program([sys.executable, "-c", code], check=True)
    assert set(answer.stdout.split()) <= {
        "scrun", "scrun.core", "scrun.core.errors", "scrun.core.paths", "scrun.core.rights",
        "scrun.core.version", "scrun.protocol", "scrun.protocol.wire", "scrun.settings",
        "scrun.settings.file", "scrun.settings.file.sources", "_socket", "errno", "pwd",
    }  # fmt: skip


AUDIT = '[log]\naudit = "/var/log/audit"\naudit_required = true\n'


@pytest.mark.covers("promise an audit of each container")
def test_the_audit_is_the_site_s(home: Path) -> None:
    """Neither another file nor a variable takes it away, and none may ask for it."""
    named = home / "named.toml"
    named.write_text('[log]\nlevel = "debug"\n')
    (home / "system.toml").write_text(AUDIT + 'level = "quiet"\n')
    for log, level in ((load({}).log, "quiet"), (load({}, str(named)).log, "debug")):
        assert (log.audit, log.audit_required) == ("/var/log/audit", True)
        assert log.level == level
    for key, text in (("audit", AUDIT), ("audit_required", "[log]\naudit_required = false\n")):
        named.write_text(text)
        said = rf"named.toml: log.{key}: only .*/system.toml may have it"
        with pytest.raises(SettingsError, match=said):
            load({}, str(named))
        write(home, text)
        with pytest.raises(SettingsError, match=said.replace("named", "scrun")):
            load({})


@pytest.mark.parametrize("text", ["[log\n", "\xff", "log = 7\naudit = 3"])
def test_a_site_s_file_that_cannot_be_read_hides_no_audit(home: Path, text: str) -> None:
    named = home / "named.toml"
    named.write_text("")
    (home / "system.toml").write_bytes(text.encode("latin-1"))
    if "audit" in text:
        assert load({}, str(named)).log.audit is None
    else:
        with pytest.raises(SettingsError, match=r"system\.toml: not TOML"):
            load({}, str(named))
    (home / "system.toml").write_text('[log]\naudit = "here"\n')
    with pytest.raises(SettingsError, match="expected an absolute path, syslog or journald"):
        load({}, str(named))
