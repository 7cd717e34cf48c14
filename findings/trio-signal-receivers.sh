#!/usr/bin/env bash
# Two parts of a program on trio wait for one signal, each with trio.open_signal_receiver: a server and a library in it
# want to hear of SIGTERM, or of SIGHUP, which says that a file was changed.
#
# One would guess: both hear it: the function gives each its own receiver, and may be called anywhere, any number of
# times; or the second call is an error.
# What happens: the one that was opened last hears it, the other one nothing, without a word, until the last is closed.
# Seen with trio 0.35.0.
#
#   two receivers, one signal: the second      the second is closed, one more signal: the first
. "$(dirname "$0")/common.bash" || exit 2
pips trio==0.35.0
cat >program.py <<'END'
import os
import signal

import trio
import trio.testing


async def main() -> None:
    async def hear(name: str, receiver: object) -> None:
        async for _ in receiver:
            print(name, flush=True)

    async def send() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await trio.sleep(0.2)

    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGHUP) as first:
            nursery.start_soon(hear, "first", first)
            with trio.open_signal_receiver(signal.SIGHUP) as second:
                nursery.start_soon(hear, "second", second)
                await trio.testing.wait_all_tasks_blocked()
                await send()
            print("closed", flush=True)
            await send()
            nursery.cancel_scope.cancel()


trio.run(main)
END
expect "who hears" "second closed first" "$(python program.py | xargs)"
