"""Where `require` looks, and what a failure says about the version of Lua."""

from pathlib import Path

import pytest

from scrun.supervisor.worker.modules import advice, cpath, library_directory, path, search_path

BUILT_IN = "./?.lua;/usr/local/share/lua/5.1/?.lua"
SITE = ("/usr/share/lua/5.1/?.lua", "/usr/share/lua/5.1/?/init.lua")


@pytest.mark.parametrize(
    ("built_in", "variable", "expected"),
    [
        (BUILT_IN, None, ["/usr/local/share/lua/5.1/?.lua", *SITE]),
        # named in the variable: wanted
        ("/own/?.lua;" + BUILT_IN, "/own/?.lua;;", ["/own/?.lua", BUILT_IN[8:], *SITE]),
        ("./?.lua;" + BUILT_IN, "./?.lua;;", ["./?.lua", BUILT_IN[8:], *SITE]),
        # instead of the default
        ("/own/?.lua", "/own/?.lua", ["/own/?.lua"]),
        ("./?.lua", "./?.lua", ["./?.lua"]),
        ("", "", [""]),
        # there already
        (f"{SITE[1]};{SITE[0]}", None, [SITE[1], SITE[0]]),
    ],
)
def test_search_path(built_in: str, variable: str | None, expected: list[str]) -> None:
    assert search_path(built_in, variable, SITE) == ";".join(expected)


def test_the_variable_of_a_version_wins() -> None:
    both = {"LUA_PATH": "/any/?.lua", "LUA_PATH_5_4": "/own/?.lua;;"}
    assert "/usr/share/lua/5.4/?.lua" in path("/own/?.lua", "5.4", both)
    assert path("/any/?.lua", "5.3", both) == "/any/?.lua"
    assert "/usr/share/lua/5.4/?.lua" in path("/built/in", "5.4", {"LUA_CPATH": "/x"})
    assert cpath("/x", "5.4", {"LUA_CPATH": "/x"}, "/usr/lib64") == "/x"


def test_modules_in_c_are_beside_the_libraries() -> None:
    assert cpath("./?.so", "5.4", {}, "/usr/lib64").split(";") == [
        "/usr/lib64/lua/5.4/?.so",
        "/usr/lib/lua/5.4/?.so",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("7f-7f r--p 0 08:01 12   /usr/lib/x86_64-linux-gnu/libc.so.6", "x86_64-linux-gnu"),
        ("7f-7f r--p 0 08:01 12   /lib/x86_64-linux-gnu/libc-2.31.so", "x86_64-linux-gnu"),
        ("7f-7f r--p 0 08:01 12   /usr/lib64/libc.so.6", ""),
        ("7f-7f r--p 0 08:01 12   /usr/lib/libcrypto.so.3", None),
    ],
)
def test_library_directory(line: str, expected: str | None, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(f"7f-7f r--p 0 08:01 1 /usr/bin/python3\n{line}\n7f-7f rw-p 0 00:00 0\n")
    wanted = {None: "/usr/lib", "": "/usr/lib64"}.get(expected, f"/usr/lib/{expected}")
    assert library_directory(str(maps)) == wanted


def test_this_machines_libraries() -> None:
    assert list(Path(library_directory()).glob("libc.so.*"))


NIL = "scrun.lua:3: attempt to call a nil value "


@pytest.mark.parametrize(
    ("version", "reason", "said"),
    [
        ("5.4", NIL + "(global 'unpack')", "Lua 5.4 has no unpack, Lua 5.1 has"),
        ("5.4", NIL + "(field 'getn')", "Lua 5.4 has no getn, Lua 5.1 has"),
        ("5.2", "scrun.lua:3: attempt to call global 'setfenv' (a nil value)", "no setfenv"),
        ("5.3", "bad argument #2 to 'format' (number has no integer representation)", "rounds"),
        ("5.4", NIL + "(global 'my_own')", ""),
        ("5.4", "unpack: no such file", ""),
        ("5.1", "scrun.lua:3: attempt to call global 'unpack' (a nil value)", ""),
        ("5.4", "module 'posix' not found:\n\tno field", "installed for Lua 5.1, 5.2: version = "),
        ("5.4", "module 'posix.unistd' not found:", "installed for Lua 5.1: version = "),
        ("5.4", "module 'other' not found:", ""),
        ("5.1", "module 'posix' not found:", ""),  # it is there, and does not want to be loaded
    ],
)
def test_advice(version: str, reason: str, said: str, tmp_path: Path) -> None:
    for file in ("5.1/posix/init.lua", "5.1/posix/unistd.lua", "5.2/posix.lua"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    words = advice(reason, version, str(tmp_path))
    assert (said in words) if said else words == ""
    if said and "posix" not in reason:
        assert words.endswith('version = "5.1" in the section [lua] of scrun.toml)')
