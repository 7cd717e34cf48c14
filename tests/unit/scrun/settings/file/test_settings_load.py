import re
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file.load import Settings, load, merge, parse

FULL = """
engine = "slurm"
root = "/r"
group = "pod"
idle_timeout = 5
[log]
level = "debug2"
format = "json"
file = "/l"
[slurm]
conf = "/c"
bin = "/opt/slurm/bin"
release_timeout = 1.5
[slurm.defaults]
partition = "long"
job_num_nodes = 2
exclusive = true
[local]
runtime = "runc"
oci_conf = "/o"
[staging]
scratch = "/scratch/%u"
host_only = ["/run"]
timeout = 60
"""


def read(tmp_path: Path, text: str) -> Settings:
    path = tmp_path / "scrun.toml"
    path.write_text(text)
    return load({}, str(path))


def test_defaults(tmp_path: Path) -> None:
    settings = read(tmp_path, "")
    assert settings == Settings()
    assert settings.engine == "auto"
    assert settings.group == "user"
    assert settings.idle_timeout == 60
    assert settings.restore_timeout == 600
    assert settings.slurm.release_timeout == 30
    assert settings.staging.host_only == ()


def test_all_keys(tmp_path: Path) -> None:
    settings = read(tmp_path, FULL)
    assert settings.root == "/r"
    assert settings.log.level == "debug2"
    assert settings.slurm.release_timeout == 1.5
    assert settings.slurm.defaults == {
        "SCRUN_PARTITION": "long",
        "SCRUN_JOB_NUM_NODES": "2",
        "SCRUN_EXCLUSIVE": "yes",
    }
    assert settings.local.runtime == "runc"
    assert settings.staging.scratch == "/scratch/%u"
    assert settings.staging.host_only == ("/run",)


def test_what_a_container_may_ask_for(tmp_path: Path) -> None:
    allowed = read(tmp_path, 'slurm.allow = ["account", "qos"]').slurm.allow
    assert allowed == ("SCRUN_ACCOUNT", "SCRUN_QOS")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "not TOML: "),
        ("rot = '/'", "rot: unknown key (is it root?)"),
        ("zzz = 1", "zzz: unknown key"),
        ("[slurm]\nconfig = '/x'", "slurm.config: unknown key (is it conf?)"),
        ("root = 5", "root: expected string, got int"),
        ("root = 'x'", "root: expected an absolute path"),
        ("engine = 'Kube'", "engine: expected the name of a plugin"),
        ("stager = 'a/b'", "stager: expected the name of a plugin"),
        ("plugins.queue = 1", "plugins....: expected object, got int"),
        ("idle_timeout = -1", "idle_timeout: expected number >= 0.0"),
        ("restore_timeout = -1", "restore_timeout: expected number >= 0.0"),
        ("slurm = 1", "slurm: expected object, got int"),
        ("[slurm]\ndefaults = 1", "slurm.defaults: expected object, got int"),
        (
            "slurm.defaults.partiton = 'x'",
            "slurm.defaults.partiton: unknown key (is it partition?)",
        ),
        ("slurm.defaults.gres = []", "slurm.defaults.gres: expected string, int or boolean"),
        ("slurm.allow = ['acount']", "slurm.allow: acount: unknown request (is it account?)"),
        ("slurm.allow = [1]", "slurm.allow[0]: expected string, got int"),
        ("slurm.allow = 'qos'", "slurm.allow: expected array, got string"),
        ("[staging]\nhost_only = ['run']", "staging.host_only[0]: expected an absolute path"),
        ("[log]\nlevel = 'loud'", "log.level: is not one of quiet, fatal, error"),
    ],
)
def test_refused_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    expected = re.escape(f"{tmp_path}/scrun.toml: {message}")
    with pytest.raises(SettingsError, match=f"^{expected}"):
        read(tmp_path, text)


def test_bytes_that_are_not_text() -> None:
    with pytest.raises(SettingsError, match=r"^f: not TOML"):
        parse(b"\xff", "f")


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --slurm-conf")
def test_environment_and_command_line() -> None:
    env = {
        "SCRUN_ENGINE": "local",
        "SCRUN_ROOT": "/e",
        "SCRUN_DEBUG": "5",
        "SLURM_CONF": "/e.conf",
        "OTHER": "",
    }
    settings = merge(Settings(root="/f"), env=env)
    assert (settings.engine, settings.root) == ("local", "/e")
    assert (settings.log.level, settings.slurm.conf) == ("debug", "/e.conf")
    options = {"root": "/o", "slurm.conf": "/o.conf", "log.level": "ERROR", "idle_timeout": "3"}
    settings = merge(settings, options=options, env=env)
    assert (settings.engine, settings.root) == ("local", "/o")
    assert (settings.log.level, settings.slurm.conf) == ("error", "/o.conf")
    assert settings.idle_timeout == 3
    assert merge(Settings(root="/f"), env={"SCRUN_ROOT": ""}).root == "/f"


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SCRUN_ENGINE", "x/y", "expected the name of a plugin"),
        ("SCRUN_STAGER", "../x", "expected the name of a plugin"),
        ("SCRUN_ROOT", "x", "expected an absolute path"),
        ("SCRUN_DEBUG", "10", "is not one of quiet, fatal, error, .*, debug5"),
    ],
)
def test_variables_refused(variable: str, value: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}: {value}: {reason}$"):
        merge(Settings(), env={variable: value})


def test_option_that_is_no_setting() -> None:
    with pytest.raises(SettingsError, match=r"slurm\.cnf: unknown key"):
        merge(Settings(), options={"slurm.cnf": "x"}, env={})
