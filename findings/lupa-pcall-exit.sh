#!/usr/bin/env bash
# A program in Python runs a script in Lua with lupa. SIGTERM makes it end, as usual: a handler that raises SystemExit.
# The script calls functions of Python within pcall, to go on after an error.
#
# One would guess: pcall catches what `except Exception` would catch; SystemExit, KeyboardInterrupt and a cancellation
# of asyncio or trio are for the program, and go through Lua.
# What happens: pcall catches them too, and the script goes on. Ctrl-C, SIGTERM and a cancellation are lost if they
# come while such a function runs.
# Seen with lupa 2.8, Lua 5.5.
#
#   pcall of a function that raises SystemExit, KeyboardInterrupt or CancelledError: false, as after a ValueError
#   SIGTERM in the third of ten calls: all ten are made, status 0
. "$(dirname "$0")/common.bash" || exit 2
pips lupa==2.8
cat >program.py <<'END'
import asyncio
import os
import signal
import sys

from lupa import LuaRuntime

lua = LuaRuntime()
pcall = lua.eval("function(call) return (pcall(call)) end")


def raising(error):
    def function():
        raise error

    return function


for error in ValueError(), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError():
    print(type(error).__name__, pcall(raising(error)))

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
calls = 0


def call():
    global calls
    calls += 1
    if calls == 3:
        os.kill(os.getpid(), signal.SIGTERM)


lua.eval("function(call) for _ = 1, 10 do pcall(call) end end")(call)
print("calls", calls)
END
status=0
python program.py >out || status=$?
expect "caught" "ValueError False SystemExit False KeyboardInterrupt False CancelledError False" \
	"$(head -n 4 out | xargs)"
expect "after SIGTERM" "calls 10, status 0" "$(tail -n 1 out), status $status"
