"""Scripts as sites have them: with modules of Debian's packages, for other versions of Lua."""

import re

import msgspec
import pytest

from scrun.settings.file.load import Lua
from tests.harness.lua import ALL, HEAD, OUT, WITH_POSIX, Bench


def settings(version: str) -> Lua:
    return msgspec.convert({"version": version}, Lua)


@pytest.mark.parametrize(
    ("version", "code"),
    [
        # lua-cjson, lua-lpeg: in C; lua-json: needs lua-lpeg
        ("5.1", "print(require 'cjson'.encode({1, 2}))"),
        ("5.3", "print(require 'cjson'.encode({1, 2}))"),
        ("5.4", "print(require 'cjson'.encode({1, 2}))"),
        ("5.4", "print(require 'lpeg'.match(require 'lpeg'.P 'a', 'a') == 2 and '[1,2]')"),
        ("5.1", "print(require 'json.encode'({1, 2}))"),
        ("5.3", "print(require 'json.encode'({1, 2}))"),
        *((one, "print(require 'posix'.getpid('pid') > 1 and '[1,2]')") for one in WITH_POSIX[:2]),
    ],
)
async def test_modules_of_packages(bench: Bench, version: str, code: str) -> None:
    assert await bench.says(code, settings(version)) == ["[1,2]"]


async def test_json_is_scruns_whatever_is_installed(bench: Bench) -> None:
    code = "print(require 'json'.null and require 'json'.object and 'ours')"
    assert await bench.says(code, settings("5.1")) == ["ours"]


async def test_a_module_for_another_version(bench: Bench) -> None:
    without = next(one for one in ALL if one not in WITH_POSIX)
    said = await bench.fails("require 'posix'", settings(without))
    found = re.search(
        r'installed for Lua ([0-9., ]+): version = "([0-9.]+)" in the section \[lua\]', said
    )
    assert found, said
    assert len(WITH_POSIX) >= 3
    assert found[1].split(", ") == WITH_POSIX
    assert found[2] == WITH_POSIX[-1]


@pytest.mark.parametrize(
    "code",
    [
        "local a = unpack({1})",
        "setfenv(1, {slurm = slurm})",
        "loadstring('return 1')()",
        "print(table.getn({1}))",
        "print(string.format('%d', 2.5))",
    ],
)
async def test_the_idioms_of_5_1(bench: Bench, code: str) -> None:
    said = await bench.fails(code, settings("5.4"))
    assert said.endswith('version = "5.1" in the section [lua] of scrun.toml)')
    await bench.stage_in(code, settings("5.1"))


async def test_what_lies_in_the_working_directory_is_nobodys_module(bench: Bench) -> None:
    (bench.directory / "planted.lua").write_text("print('planted')")
    assert "module 'planted' not found" in await bench.fails("require 'planted'", settings("5.4"))
    script = f"package.path = './?.lua;' .. package.path\n{HEAD}return 0 end\n{OUT}"
    async with bench.loaded(script + "require 'planted'"):
        pass
    assert bench.said.texts("info") == ["planted"]


@pytest.mark.parametrize("version", ["5.1", "5.4"])
async def test_numbers_do_as_strings(bench: Bench, version: str) -> None:
    code = "print(slurm.allocator_command(5)) slurm.set_root_path(7)"
    _, root = await bench.stage_in(code, settings(version))
    assert root == "7"
    assert bench.said.texts()[0].startswith("127\t")  # 5: not found
