"""scrun install: what is written into the engines' files, and that undoing gives them back."""

import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.core.errors import SettingsError
from scrun.install import docker, files, launcher, podman, settings

PROGRAM = "/opt/scrun/bin/scrun"
ENTRY = {"path": PROGRAM}

DAEMON = [
    "{}",
    "{}\n",
    "{ }",
    "{\n}\n",
    '{"debug": true}',
    '{ "debug": true }\n',
    '{\n  "hosts": ["unix://", "tcp://[::1]:1"],\n  "debug" :true\n}\n',
    '{\n\t"log-opts": {"a": "}"},\n\t"x": "\\"{"\n}',
    '{\r\n  "debug": true\r\n}\r\n',
    '{"runtimes": {}}',
    '{\n    "runtimes": { },\n    "debug": true\n}\n',
    '{\n    "runtimes": {\n    }\n}\n',
    '{"runtimes": {"other": {"path": "/o"}}, "debug": false}',
    '{\n  "runtimes": {\n    "other": {\n      "path": "/o"\n    }\n  },\n  "debug": false\n}\n',
    '{\n  "debug": false,\n  "runtimes": {"a": {"path": "/a"}, "b": {"path": "/b"}}\n}\n',
]


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("text", DAEMON)
def test_docker_add_and_remove(text: str, default: bool) -> None:
    wanted = json.loads(text)
    wanted.setdefault("runtimes", {})["scrun"] = ENTRY
    if default:
        wanted["default-runtime"] = "scrun"
    new = docker.add(text, PROGRAM, "f", default=default)
    assert json.loads(new) == wanted
    assert list(json.loads(new))[: len(json.loads(text))] == list(json.loads(text))
    assert docker.add(new, PROGRAM, "f", default=default) == new
    assert docker.entry(new, "f") == PROGRAM
    assert docker.remove(new, text, "f") == text
    assert docker.remove(text, text, "f") == text
    further = docker.add(text, PROGRAM, "f", default=default)
    changed = json.dumps({**json.loads(further), "max-concurrent-uploads": 5})
    assert json.loads(docker.remove(changed, text, "f") or "") == {
        **json.loads(text), "max-concurrent-uploads": 5,
    }  # fmt: skip


@pytest.mark.parametrize("default", [False, True])
def test_docker_a_file_of_ours(default: bool) -> None:
    new = docker.add(None, PROGRAM, "f", default=default)
    assert json.loads(new)["runtimes"] == {"scrun": ENTRY}
    assert docker.remove(new, None, "f") is None
    assert docker.remove(docker.add(new, PROGRAM, "f", default=True), None, "f") is None


def test_docker_another_program() -> None:
    old = docker.add(DAEMON[4], "/old/scrun", "f")
    assert docker.add(old, PROGRAM, "f") == old.replace("/old/scrun", PROGRAM)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"runtimes": []}', "runtimes: is not an object"),
        ('{"runtimes": null}', "runtimes: is not an object"),
        ('{"runtimes": {}, "runtimes": {}}', "comes twice"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_docker_refuses(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=f"^the file: .*{complaint}|^the file: {complaint}"):
        docker.add(text, PROGRAM, "the file")


def test_docker_refuses_another_default() -> None:
    with pytest.raises(SettingsError, match="default-runtime is 'runc'"):
        docker.add('{"default-runtime": "runc"}', PROGRAM, "f", default=True)
    new = docker.add('{"default-runtime": "runc"}', PROGRAM, "f")
    assert docker.remove(new, None, "f") == '{"default-runtime": "runc"}'


def test_docker_an_entry_that_is_unclear() -> None:
    for entry in ("1", '{"path": 1}', '{"path": "/x", "runtimeArgs": []}', "{}"):
        assert docker.entry(f'{{"runtimes": {{"scrun": {entry}}}}}', "f") == ""
    assert docker.entry('{"runtimes": 1}', "f") is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=5), values, max_size=4),
    st.sampled_from([None, 0, 1, 2, 4, "\t"]),
    st.booleans(),
)
def test_docker_leaves_all_else(
    content: dict[str, object], indent: int | str | None, within: bool
) -> None:
    whole = {"runtimes": {**content, "z": {}}, **content} if within else content
    whole.pop("scrun", None)
    text = json.dumps(whole, indent=indent)
    if not isinstance(whole.get("runtimes", {}), dict):
        return
    new = docker.add(text, PROGRAM, "f")
    expected = json.loads(text)
    expected.setdefault("runtimes", {})["scrun"] = ENTRY
    assert json.loads(new) == expected
    assert [*json.loads(new)] == [*expected]
    if indent in (2, 4, "\t") and whole:
        assert new == json.dumps(expected, indent=indent)
    assert docker.remove(new, text, "f") == text
    if whole.get("runtimes") == {}:
        del whole["runtimes"]  # without the old file it might be ours
    assert json.loads(docker.remove(new, None, "f") or "{}") == whole


# --- podman


def test_podman_the_file() -> None:
    text = podman.text('/opt/a "b"/ü\\scrun')
    assert podman.is_ours(text)
    assert tomllib.loads(text) == {"engine": {"runtimes": {"scrun": ['/opt/a "b"/ü\\scrun']}}}
    both = {"engine": {"runtime": "scrun", "runtimes": {"scrun": [PROGRAM]}}}
    assert tomllib.loads(podman.text(PROGRAM, default=True)) == both


def test_podman_its_files_in_order(tmp_path: Path) -> None:
    vendor, system, home = (tmp_path / name for name in ("v", "s", "h"))
    made: list[str] = []
    for place in (vendor, system, home / "containers"):
        (place / "containers.conf.d").mkdir(parents=True)
        for name in ("containers.conf", "containers.conf.d/10.conf", "containers.conf.d/9.conf"):
            (place / name).write_text(
                f'[engine.runtimes]\nscrun = ["{len(made)}"]\nx{len(made)} = []'
            )
            made.append(str(place / name))
        (place / "containers.conf.d" / "a.toml").write_text("broken")
    places = str(vendor), str(system)
    assert podman.files({}, str(home), *places) == made
    assert podman.files({}, None, *places) == made[:6]
    assert podman.files({"CONTAINERS_CONF": made[0]}, str(home), *places) == made[:1]
    over = podman.files({"CONTAINERS_CONF_OVERRIDE": made[0]}, None, *places)
    assert over == [*made[:6], made[0]]
    engine = podman.merged(made)
    assert podman.programs(engine) == ["8"]
    assert engine["scrun named by"] == made[-1]
    assert len(engine["runtimes"]) == 10  # type: ignore[arg-type]


def test_podman_files_that_are_wrong(tmp_path: Path) -> None:
    conf = tmp_path / "c"
    for text, complaint in (("[engine", "not TOML"), ("engine = 1", "not a table")):
        conf.write_text(text)
        with pytest.raises(SettingsError, match=complaint):
            podman.merged([str(conf)])
    conf.write_text("[engine]\nruntimes = 1\n")
    assert podman.programs(podman.merged([str(conf)])) == []


# --- scrun.toml


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "\n",
        'engine = "slurm"\n',
        'engine = "slurm"',
        'engine = "slurm"\n\n[slurm]\nbin = "/b"\n\n[log]\nlevel = "info"\n',
        "[slurm] # ours\n",
        "[slurm]\n[slurm.defaults]\ntime = 1",
        '[slurm.defaults]\ntime = "1"\n',
        "[log]\n[local]",
    ],
)
def test_settings_add_and_remove(text: str | None) -> None:
    conf = '/etc/"x"/slurm.conf'
    wanted = tomllib.loads(text or "")
    wanted.setdefault("slurm", {})["conf"] = conf
    new = settings.add(text, conf)
    assert new is not None
    assert tomllib.loads(new) == wanted
    assert settings.add(new, conf) == new
    assert settings.remove(new) == text
    if text is not None:
        assert settings.remove(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "slurm.bin = '/b'\n",
        "slurm = {bin = '/b'}\n",
        "[slurm]\nconf = '/c'\n",
        "broken",
        "slurm = 1",
    ],
)
def test_settings_that_cannot_be_added_to(text: str) -> None:
    assert settings.add(text, "/etc/slurm.conf") is None


def test_settings_what_was_added_since_stays() -> None:
    new = settings.add(None, "/c")
    assert settings.remove(f"{new}[log]\n") == "[log]\n"


# --- files


def test_files_replaced_as_they_were(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old\r\n", newline="")
    real.chmod(0o640)
    link.symlink_to(real)
    assert files.read(str(link)) == "old\r\n"
    files.apply(files.Change(str(link), "old\r\n", "new\n"), str(tmp_path))
    assert (link.is_symlink(), real.read_text(), real.stat().st_mode & 0o777) == (
        True, "new\n", 0o640,
    )  # fmt: skip
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


@pytest.mark.by_root
def test_what_root_installs_all_can_read(tmp_path: Path) -> None:
    """Others' engines fail if they cannot enter a directory of their configuration."""
    before = os.umask(0o077)
    try:
        files.apply(files.Change(f"{tmp_path}/a/b/c", None, "text"), str(tmp_path))
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "a/b/c")]
    assert modes == [0o755, 0o755, 0o644]


def test_files_made_and_removed_with_their_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    files.apply(files.Change(str(path), None, "text"), str(tmp_path))
    assert path.read_text() == "text"
    assert path.stat().st_mode & 0o777 == 0o644
    files.apply(files.Change(str(path), "text", None), str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_files_that_are_left_alone(tmp_path: Path) -> None:
    dangling, binary = tmp_path / "dangling", tmp_path / "binary"
    dangling.symlink_to("nowhere")
    binary.write_bytes(b"\xff")
    for path, complaint in ((dangling, "link to nothing"), (binary, "not UTF-8")):
        with pytest.raises(SettingsError, match=complaint):
            files.read(str(path))
    assert files.read(str(tmp_path / "none")) is None
    theirs = tmp_path / "theirs"
    theirs.symlink_to("/proc/1/comm")
    if os.stat("/proc/1/comm").st_uid == os.geteuid():
        other = tmp_path / "other"
        other.write_text("x")
        os.chown(other, 20001, 20001)
        theirs = other
    with pytest.raises(SettingsError, match="belongs to uid"):
        files.apply(files.Change(str(theirs), "x", "y"), str(tmp_path))


# --- the launcher


@pytest.fixture
def program() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # pytest's own is nobody else's
        os.chmod(directory, 0o755)
        found = Path(directory) / "bin" / "scrun"
        found.parent.mkdir()
        found.write_text("#!/bin/sh\nexec python3 share/scrun/main.py\n")
        found.chmod(0o755)
        yield found


def test_launcher(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert launcher.find(str(program), None) == str(program)
    monkeypatch.chdir(program.parent)
    assert launcher.find("./scrun", None) == str(program)
    assert launcher.find("scrun", str(program.parent)) == str(program)
    link = program.with_name("link")
    link.symlink_to(program)
    assert launcher.find(str(link), None) == str(link)


def test_launcher_that_is_none(program: Path) -> None:
    for argv0, path in (("-c", "/nowhere"), ("/bin/sh", None), (f"{program}x", None)):
        with pytest.raises(SettingsError, match="install scrun"):
            launcher.find(argv0, path)
    program.chmod(0o644)
    with pytest.raises(SettingsError, match="install scrun"):
        launcher.find(str(program), None)
    program.chmod(0o755)
    odd = program.rename(program.with_name("a\nb"))
    with pytest.raises(SettingsError, match="cannot be written into an engine"):
        launcher.find(str(odd), None)


@pytest.mark.by_root
def test_launcher_for_all(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher.check_for_all(str(program), os.__file__)
    for path, mode, complaint in (
        (program.parent, 0o700, f"cannot reach {program.parent}"),
        (program, 0o750, f"cannot reach {program};"),
        (program, 0o757, "everybody may write"),
    ):
        path.chmod(mode)
        with pytest.raises(SettingsError, match=complaint):
            launcher.check_for_all(str(program), os.__file__)
        path.chmod(0o755)
    interpreter = program.parent / "python"
    interpreter.write_text("")
    monkeypatch.setattr(sys, "executable", str(interpreter))
    with pytest.raises(SettingsError, match=f"cannot reach {interpreter}"):
        launcher.check_for_all(str(program), os.__file__)


@pytest.mark.parametrize(
    ("content", "env", "driver"),
    [
        (None, {}, "overlay"),
        ('[storage]\ndriver = "vfs"\n', {}, "vfs"),
        ("[storage]\n", {}, "overlay"),
        ('[storage]\ndriver = "vfs"\n', {"STORAGE_DRIVER": "btrfs"}, "btrfs"),
    ],
)
def test_podmans_storage_driver(
    tmp_path: Path, content: str | None, env: dict[str, str], driver: str
) -> None:
    path = tmp_path / "containers" / "storage.conf"
    path.parent.mkdir()
    path.write_text(content or "[storage]\n")
    assert podman.storage(env, str(tmp_path), "/home/a").driver == driver


@pytest.mark.parametrize(
    ("content", "env", "place"),
    [
        ("", {}, "/home/a/.local/share/containers/storage"),
        ("", {"XDG_DATA_HOME": "/data"}, "/data/containers/storage"),
        ('graphroot = "/own"\n', {}, "/own"),
        ('graphroot = "$HOME/s/$USER"\n', {"HOME": "/home/a"}, "/home/a/s/a"),
        ("graphroot = 1\n", {}, "/home/a/.local/share/containers/storage"),
    ],
)
def test_where_podmans_storage_is(
    tmp_path: Path, content: str, env: dict[str, str], place: str
) -> None:
    path = tmp_path / "containers" / "storage.conf"
    path.parent.mkdir()
    path.write_text(f"[storage]\n{content}")
    assert podman.storage(env, str(tmp_path), "/home/a").graphroot == place


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('graphroot = "/everybodys"\n', "/home/a/.local/share/containers/storage"),
        ('rootless_storage_path = "/storage/$USER"\n', "/storage/a"),
    ],
)
def test_where_a_site_has_podmans_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, place: str
) -> None:
    monkeypatch.setattr(podman, "_SYSTEM", str(tmp_path))
    (tmp_path / "storage.conf").write_text(f"[storage]\n{content}")
    assert podman.storage({}, f"{tmp_path}/none", "/home/a").graphroot == place
    root = "/everybodys" if "graphroot" in content else "/var/lib/containers/storage"
    assert podman.storage({}, None, "/root").graphroot == root


def test_a_storage_conf_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "containers" / "storage.conf"
    path.parent.mkdir()
    path.write_text("driver: vfs\n")
    with pytest.raises(SettingsError, match=r"storage\.conf"):
        podman.storage({}, str(tmp_path), "/home/a")


UNIT = """\
[Unit]
Description=Docker Application Container Engine (Rootless)

[Service]
Environment=PATH=/usr/bin:/sbin:/usr/sbin:/home/one/bin
ExecStart=/usr/share/docker.io/contrib/dockerd-rootless.sh --storage-driver vfs
ExecReload=/bin/kill -s HUP $MAINPID
Type=notify
"""


def test_the_unit_of_rootless_docker() -> None:
    """systemd.service(5): a quoted path may have blanks; `%` begins a specifier."""
    made = docker.drop_in(UNIT, "/opt/100% of it/scrun")
    assert made is not None
    assert docker.is_drop_in(made)
    assert made.splitlines()[1:] == [
        "[Service]",
        "ExecStart=",
        'ExecStart="/opt/100%% of it/scrun" outside '
        "/usr/share/docker.io/contrib/dockerd-rootless.sh --storage-driver vfs",
    ]
    assert docker.drop_in("[Unit]\n", PROGRAM) is None
    assert not docker.is_drop_in(UNIT)


@pytest.mark.parametrize(
    ("unit", "line"),
    [
        ("ExecStart=/d \\\n# why\n  --data-root /x \\\n\t--debug\nRestart=no\n",
         f'"{PROGRAM}" outside /d  --data-root /x  --debug'),
        ("# ExecStart=/no \\\nExecStart = -/d\n", f'-"{PROGRAM}" outside /d'),
        ("ExecStart=/no\nExecStart=\nExecStart=/d\n", f'"{PROGRAM}" outside /d'),
    ],
)  # fmt: skip
def test_what_a_unit_starts(unit: str, line: str) -> None:
    made = docker.drop_in(f"[Service]\n{unit}", PROGRAM)
    assert made is not None
    assert made.splitlines()[3:] == [f"ExecStart={line}"]
