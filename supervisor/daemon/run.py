"""The supervisor's main function: its socket and its signals."""

import os
import signal
from functools import partial

import trio

from scrun.core.errors import SettingsError
from scrun.supervisor.containers.records import remove_half_made
from scrun.supervisor.core.limits import raise_limits
from scrun.supervisor.core.own_key import keep_key_in
from scrun.supervisor.daemon.listening import listen
from scrun.supervisor.daemon.server import Server, own_settings
from scrun.supervisor.daemon.starter import Starter
from scrun.supervisor.daemon.watchdog import watchdogs
from scrun.supervisor.log.files import finish

_LAST_WORDS = 2.0


def serve(root: str, name: str, starter: Starter, idle: float | None = None) -> None:
    """Serve the socket ROOT/NAME until it is no longer needed.

    Args:
        root: The directory of the records.
        name: The socket's name in it.
        starter: Is told `ready` once callers can connect.
        idle: Seconds to stay without a container; None: the settings decide.

    Raises:
        SettingsError: The socket cannot be made there.
    """
    os.umask(0o077)
    raise_limits()
    try:
        listener = listen(root, name)
    except OSError as error:
        raise SettingsError.of_root(root, f"{name}: {error.strerror}") from error
    remove_half_made(root, name)
    keep_key_in(root)
    settings = own_settings()
    lingers = idle is None
    idle = settings.idle_timeout if idle is None else idle
    server = Server(
        root,
        name,
        listener,
        idle,
        settings.stop_timeout,
        settings.restore_timeout,
        lingers=lingers,
    )
    trio.run(_serve, server, starter, instruments=watchdogs())
    finish(_LAST_WORDS)


async def _serve(server: Server, starter: Starter) -> None:
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:

            async def handle_signals() -> None:
                """SIGTERM leaves the containers to a successor, SIGINT ends them."""
                number = await anext(signals)
                # at the end of a session systemd sends SIGHUP as well, and means one signal
                twice = number != signal.SIGHUP
                while True:
                    leave = number != signal.SIGINT
                    async with trio.open_nursery() as stopping:
                        stopping.start_soon(partial(server.stop, leave=leave))
                        while (number := await anext(signals)) == signal.SIGHUP:
                            pass
                        if twice and not (leave and number == signal.SIGINT):
                            server.exit_now(leave=leave)
                        twice = True
                        stopping.cancel_scope.cancel()

            def serving() -> None:
                nursery.start_soon(handle_signals)
                # not before: until here SIGTERM ends us and leaves our socket behind
                starter.tell("ready")

            await server.serve(serving)
            nursery.cancel_scope.cancel()
