"""The supervisor's outermost scope: its socket and its signals."""

import os
import signal

import trio

from scrun.core.errors import SettingsError
from scrun.supervisor.containers.records import remove_half_made
from scrun.supervisor.core.limits import raise_limits
from scrun.supervisor.daemon.listening import listen
from scrun.supervisor.daemon.server import Server, own_settings
from scrun.supervisor.daemon.starter import Starter
from scrun.supervisor.log.files import finish

_LAST_WORDS = 2.0


def serve(root: str, name: str, starter: Starter, idle: float | None = None) -> None:
    """Serve the socket ROOT/NAME until nobody needs it any more.

    Args:
        root: The directory of the records.
        name: The socket's name in it.
        starter: Who is told `ready` once callers can connect.
        idle: Seconds to stay without a container; None leaves that to the settings.

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
    settings = own_settings()
    idle = settings.idle_timeout if idle is None else idle
    server = Server(root, name, listener, idle, settings.stop_timeout)
    trio.run(_serve, server, starter)
    finish(_LAST_WORDS)


async def _serve(server: Server, starter: Starter) -> None:
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:

            async def obey() -> None:
                asked = await anext(signals)
                nursery.start_soon(server.stop)
                # at the end of a session systemd sends both, and means one
                told = int(asked != signal.SIGHUP)
                while told < 2:
                    told += await anext(signals) != signal.SIGHUP
                server.leave()

            def serving() -> None:
                nursery.start_soon(obey)
                # not before: until here SIGTERM ends us with our socket's name left behind
                starter.tell("ready")

            await server.serve(serving)
            nursery.cancel_scope.cancel()
