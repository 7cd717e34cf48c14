"""podman's service of Docker's API: its socket, and what listens there.

podman-system-service(1): by systemd, the unit podman.socket starts it when somebody connects.
Where there is no manager of units, the service runs until it is ended.
"""

import http.client
import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from scrun.core.errors import SettingsError
from scrun.core.place import contents
from scrun.oci.signals import its_end
from scrun.protocol import wire

UNIT = "podman.socket"
_SERVES = ("system", "service")
_STARTS, _ENDS, _AGAIN = 20.0, 10.0, 0.05
_LONGEST = 1 << 20


def socket_path(env: Mapping[str, str], uid: int) -> str:
    """Return the path of the socket, as podman and its unit have it."""
    if uid == 0:
        return "/run/podman/podman.sock"
    runtime = env.get("XDG_RUNTIME_DIR", "")
    if not runtime.startswith("/"):
        raise SettingsError(
            "XDG_RUNTIME_DIR: not set, and the socket of podman's API is there; log in again, or "
            "see `scrun doctor`"
        )
    return f"{runtime.rstrip('/')}/podman/podman.sock"


def url(path: str) -> str:
    """Return what DOCKER_HOST says."""
    return f"unix://{path}"


class Api(http.client.HTTPConnection):
    """A connection to a socket at which an engine serves its API."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("engine", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)

    def ask(
        self, method: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer, or how that begins."""
        self.request(method, path, body, {"Content-Type": kind} if body else {})
        answer = self.getresponse()
        return answer.status, answer.read(_LONGEST)


def answers(path: str, timeout: float = 10) -> str:
    """Return why nobody serves the API at a socket; "" if somebody does."""
    api = Api(path, timeout)
    try:
        status, text = api.ask("GET", "/_ping")
    except (OSError, http.client.HTTPException) as error:
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
    finally:
        api.close()
    return "" if (status, text) == (200, b"OK") else f"its answer is {status}"


def has_manager(env: Mapping[str, str], uid: int) -> bool:
    """Tell whether systemd manages units of this user, or root's."""
    if uid == 0:
        return os.path.isdir("/run/systemd/system")
    return os.path.exists(f"{env.get('XDG_RUNTIME_DIR', '')}/systemd/private")


def by_unit(verb: str, uid: int) -> None:
    """Enable or disable the unit, now and for later."""
    command = ["systemctl", *(["--user"] if uid else []), verb, "--now", UNIT]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise SettingsError(f"systemctl: {error.strerror}") from error
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or [f"it {its_end(done.returncode)}"]
        raise SettingsError(f"{' '.join(command)}: {said[0]}")


def start(podman: str, path: str) -> None:
    """Start the service, which outlives us."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    null = subprocess.DEVNULL
    command = [podman, *_SERVES, "--time=0", url(path)]
    service = subprocess.Popen(
        command, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True
    )
    late = time.monotonic() + _STARTS
    while answers(path):
        status = service.poll()
        if status is not None or time.monotonic() > late:
            service.kill()
            what = f"does not answer within {_STARTS:g} s" if status is None else "has ended"
            raise SettingsError(f"`{' '.join(command)}` {what}; call it to see why")
        time.sleep(_AGAIN)
    service.returncode = 0  # it is nobody's child when we have ended


def stop(path: str) -> bool:
    """End the service that listens at a socket, if `start` has started it; tell whether it did."""
    pid = _listener(path)
    if not pid or not _serves(pid):
        return False
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        import select
        import signal

        if _serves(pid):
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        if not waiting.poll(_ENDS * 1000):
            raise SettingsError(f"podman's service (process {pid}) does not end; kill it")
    finally:
        os.close(pidfd)
    return True


def _listener(path: str) -> int:
    """Return the process that listens at a socket, if it is this user's; else 0."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_ENDS)
        try:
            sock.connect(path)
        except OSError:
            return 0
        return wire.peer_pid(sock) if wire.peer_uid(sock) == os.geteuid() else 0


def _serves(pid: int) -> bool:
    """Tell whether a process is podman's service, and not a manager of units."""
    return _is_service(contents(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0"))


def _is_service(words: Sequence[str]) -> bool:
    return os.path.basename(words[0] if words else "") == "podman" and tuple(words[1:3]) == _SERVES
