"""plugstack.conf(5), spank-lua(8) "CONFIGURATION": lines, includes, scripts, and what is wrong."""

import os
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file.load import Settings, Slurm, Spank
from scrun.settings.spank.plugstack import (
    PlugstackLine,
    find_plugstack,
    find_scripts,
    read_plugstack,
)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    return tmp_path / "plugstack.conf"


def read(conf: Path, text: str) -> list[PlugstackLine]:
    conf.write_text(text)
    return read_plugstack(str(conf))


@pytest.mark.covers("spank-lua CONFIGURATION: required lua.so [OPTIONS] [[GLOB] [SCRIPT OPTIONS]…")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the manual's own line
        ("required lua.so /etc/x/* verbose=1", (True, False, "/etc/x/*", ("verbose=1",))),
        ("optional\tlua.so  /a.lua", (False, False, "/a.lua", ())),
        ("required lua.so failonerror /a.lua b c", (True, True, "/a.lua", ("b", "c"))),
        ("required lua.so /a.lua failonerror", (True, False, "/a.lua", ("failonerror",))),
        ("  required /usr/lib/slurm/lua.so /a.lua # why", (True, False, "/a.lua", ())),
        ("req lua.so /a.lua", (True, False, "/a.lua", ())),
        ("o lua.so /a.lua#b", (False, False, "/a.lua", ())),
    ],
)  # fmt: skip
def test_a_line(conf: Path, text: str, expected: tuple[bool, bool, str, tuple[str, ...]]) -> None:
    [line] = read(conf, f"# a comment\n\n{text}\n")
    assert (line.required, line.fails_on_error, line.pattern, line.arguments) == expected
    assert line.where == f"{conf}:3"


@pytest.mark.covers("spank-lua CONFIGURATION: required lua.so [OPTIONS] [[GLOB] [SCRIPT OPTIONS]…")
@pytest.mark.parametrize(
    "text",
    ["", "# nothing", "required pyxis.so a b", "optional /x/notlua.so", "required x/lua.so.1"],
)
def test_lines_that_are_slurm_s_own_business(conf: Path, text: str) -> None:
    assert read(conf, text) == []


@pytest.mark.covers("spank-lua CONFIGURATION: required lua.so [OPTIONS] [[GLOB] [SCRIPT OPTIONS]…")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bogus lua.so /a", "bogus: required, optional or include expected"),
        ("Required lua.so /a", "Required: required, optional or include expected"),
        ("inc /a", "inc: required, optional or include expected"),
        ("required", "the plugin is missing"),
        ("required lua.so", "lua.so needs a script, or a pattern of scripts"),
        ("required lua.so failonerror", "lua.so needs a script, or a pattern of scripts"),
        ("required lua.so a.lua", "a.lua: an absolute path expected"),
        ("include", "include needs one file, or a pattern of files"),
        ("include a b", "include needs one file, or a pattern of files"),
    ],
)
def test_a_broken_line_is_an_error_with_its_number(conf: Path, text: str, reason: str) -> None:
    with pytest.raises(SettingsError) as error:
        read(conf, f"\noptional other.so\n{text}\n")
    assert str(error.value) == f"{conf}:3: {reason}"


@pytest.mark.covers("spank-lua plugstack.conf of spank(7): include, comments, short words")
def test_includes_with_patterns(conf: Path) -> None:
    directory = conf.parent / "plugstack.conf.d"
    directory.mkdir()
    (directory / "b.conf").write_text("required lua.so /b.lua\n")
    (directory / "a.conf").write_text("required lua.so /a.lua\n")
    (directory / "c.txt").write_text("nonsense\n")
    lines = read(
        conf, f"include plugstack.conf.d/*.conf\ninclude {directory}/none*\nopt lua.so /c.lua"
    )
    assert [line.pattern for line in lines] == ["/a.lua", "/b.lua", "/c.lua"]
    assert lines[1].where == f"{directory}/b.conf:1"


@pytest.mark.covers("spank-lua plugstack.conf of spank(7): include, comments, short words")
def test_files_that_include_themselves(conf: Path) -> None:
    with pytest.raises(SettingsError, match="included more than 10 levels deep"):
        read(conf, f"include {conf}\n")
    for number in range(1001):
        (conf.parent / f"{number}.empty").touch()
    with pytest.raises(SettingsError, match="more than 1000 files are included"):
        read(conf, "include *.empty\n")


@pytest.mark.covers("spank-lua GLOB")
def test_scripts_of_a_pattern_come_by_name(conf: Path) -> None:
    scripts = conf.parent / "lua.d"
    scripts.mkdir()
    for name in ("b.lua", "a.lua", "c.txt"):
        (scripts / name).write_text("")
    (scripts / "directory.lua").mkdir()
    lines = read(conf, f"required lua.so {scripts}/*.lua 1\nrequired lua.so {scripts}/c.txt 2\n")
    found = find_scripts(lines)
    assert [os.path.basename(script.path) for script in found] == ["a.lua", "b.lua", "c.txt"]
    assert [script.line.arguments for script in found] == [("1",), ("1",), ("2",)]
    assert find_scripts(read(conf, f"required lua.so {scripts}/*.no")) == []


@pytest.mark.covers("spank-lua GLOB")
def test_a_path_that_is_not_there_is_no_script(conf: Path) -> None:
    """As for glob(3), and so for the plugin."""
    line = f"required lua.so failonerror {conf.parent}/none.lua\n"
    assert find_scripts(read(conf, line)) == []


@pytest.mark.covers("security plugstack.conf and its scripts")
def test_what_anybody_could_have_written(conf: Path) -> None:
    script = conf.parent / "a.lua"
    script.write_text("")
    script.chmod(0o666)
    lines = read(conf, f"required lua.so {script}\n")
    with pytest.raises(SettingsError, match=r"a\.lua: everybody may write to it"):
        find_scripts(lines)
    conf.chmod(0o666)
    with pytest.raises(SettingsError, match=r"plugstack\.conf: everybody may write to it"):
        read_plugstack(str(conf))


def found(tmp_path: Path, slurm_conf: str | None, plugstack: str | None = None) -> str | None:
    if slurm_conf is not None:
        (tmp_path / "slurm.conf").write_text(slurm_conf)
    settings = Settings(
        slurm=Slurm(conf=str(tmp_path / "slurm.conf")), spank=Spank(plugstack=plugstack)
    )
    return find_plugstack(settings)


def test_slurm_conf_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site without scripts pays two `stat` calls for each container."""
    assert found(tmp_path, "ClusterName=x\n") is None
    settings = Settings(slurm=Slurm(conf=str(tmp_path / "slurm.conf")))

    def read(path: str) -> dict[str, str]:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("scrun.settings.spank.plugstack.read_slurm_conf", read)
    assert find_plugstack(settings) is None
    (tmp_path / "slurm.conf").write_text("PlugStackConfig=/a\n")
    with pytest.raises(AssertionError, match="is read again"):
        find_plugstack(settings)


@pytest.mark.covers("spank-lua plugstack.conf of spank(7): include, comments, short words")
def test_it_is_beside_slurm_conf(tmp_path: Path) -> None:
    assert found(tmp_path, None) is None
    assert found(tmp_path, "ClusterName=x\n") is None
    (tmp_path / "plugstack.conf").write_text("")
    assert found(tmp_path, "ClusterName=x\n") == f"{tmp_path}/plugstack.conf"


@pytest.mark.covers("spank-lua plugstack.conf of spank(7): include, comments, short words")
@pytest.mark.parametrize(("told", "path"), [("/else/p.conf", "/else/p.conf"), ("p", "{}/p")])
def test_plug_stack_config_names_it(tmp_path: Path, told: str, path: str) -> None:
    (tmp_path / "plugstack.conf").write_text("")
    assert found(tmp_path, f"PlugStackConfig={told}\n") == path.format(tmp_path)


@pytest.mark.covers("spank-lua plugstack.conf of spank(7): include, comments, short words")
def test_the_setting_counts_more(tmp_path: Path) -> None:
    (tmp_path / "plugstack.conf").write_text("")
    assert found(tmp_path, "PlugStackConfig=/else\n", "/mine") == "/mine"
    assert found(tmp_path, "PlugStackConfig=/else\n", "none") is None


def test_without_slurm_there_is_none() -> None:
    assert find_plugstack(Settings(), ()) is None
