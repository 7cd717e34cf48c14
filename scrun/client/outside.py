"""Ask a process outside of our network for a supervisor.

rootlesskit gives rootless docker a network namespace that no node reaches, and nobody leaves one
without privileges in the user namespace that owns the next one. A process outside may enter our
user and mount namespaces, and keeps its network.

Wire: one packet: the version, ROOT, NAME, "1" or "" (whether it lingers), and variables as
NAME=VALUE, separated by NUL; with the supervisor's descriptors, and those of the namespaces. What
cannot be done is said in the first descriptor. The end of the connection before the supervisor has
daemonized itself kills it.
"""

import _socket
import os

from scrun.core.errors import SettingsError, why
from scrun.core.paths import ENGINES_NETWORK, OUTSIDE
from scrun.core.rights import send_fds
from scrun.core.version import VERSION
from scrun.protocol import wire

NAMESPACES = ("user", "mnt", "pid")
"""What a supervisor enters, in this order."""


class Asked:
    """A supervisor that is starting; see `launch.Spawned`."""

    def __init__(
        self,
        root: str,
        name: str,
        fds: "list[int]",
        environment: "dict[str, str]",
        *,
        lingers: bool,
    ) -> None:
        """Ask for it; SettingsError if nobody is there."""
        path = os.environ[OUTSIDE]
        self._line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        network = os.stat("/proc/self/ns/net").st_ino
        variables = {**environment, ENGINES_NETWORK: str(network)}
        fields = [VERSION, root, name, "1" if lingers else ""]
        fields += [f"{key}={value}" for key, value in variables.items()]
        entered = [
            os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in NAMESPACES
        ]
        try:
            self._line.connect(path)
            wire.check_peer(self._line)
            request = b"\0".join([wire.encoded(field) for field in fields])
            send_fds(self._line, request, [*fds, *entered])
        except (BrokenPipeError, ConnectionResetError) as error:
            self._line.close()
            raise SettingsError(
                f"{OUTSIDE}={path}: hangs up, as it can start no process; see `ulimit -u`"
            ) from error
        except OSError as error:
            self._line.close()
            raise SettingsError(
                f"{OUTSIDE}={path}: {why(error, 'start the engine again, by `scrun outside`')}"
            ) from error
        finally:
            for fd in entered:
                os.close(fd)

    def kill(self) -> None:
        """End it, unless it has daemonized itself."""
        self._line.shutdown(_socket.SHUT_RDWR)

    def close(self) -> None:
        self._line.close()
