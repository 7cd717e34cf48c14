#!/usr/bin/env bash
# lupa: Lua code raises a table, as with error({code = 7}).
#
# One would guess: Python gets a LuaError with the table among its arguments, or at least its text.
# What happens: the LuaError has an empty message, and the table is lost: nothing tells what failed
# or where. A table with __tostring does not help. pcall in Lua still sees the table.
# Seen with lupa 2.5, Lua 5.4.
#
#   LuaError.args of error({code = 7}): ('',)
. "$(dirname "$0")/common.bash" || exit 2
pips lupa==2.5
cat >program.py <<'END'
from lupa import lua54

lua = lua54.LuaRuntime()
for code in (
    "error({code = 7})",
    "error(setmetatable({}, {__tostring = function() return 'words' end}))",
):
    try:
        lua.execute(code)
    except lua54.LuaError as error:
        print(error.args)
print(lua.execute("local _, raised = pcall(error, {code = 7}) return raised.code"))
END
expect "seen by Python" "('',) ('',) 7" "$(python program.py | xargs -d'\n')"
