"""scrun outside: run rootless docker's daemon, and start its supervisors outside of its network.

The daemon takes the place of this process, with a variable that names a socket. A child listens
there as long as the daemon lives. Whatever supervisor a command below the daemon asks it for it
starts in that command's namespaces, except the network (`scrun.client.outside`). Only the user may
connect, who could start the same by hand.

Errors: UsageError, if the program cannot run; SettingsError, if the socket has no place, or no
child can be started.
"""

import os
import select
import shutil
import signal
import socket
import stat
from typing import NoReturn

from scrun.cli.parse import Parsed
from scrun.client.launch import Spawned
from scrun.client.outside import NAMESPACES
from scrun.core import namespaces as ns
from scrun.core.errors import SettingsError, UsageError, described, why
from scrun.core.output import discard
from scrun.core.paths import OUTSIDE
from scrun.core.rights import receive_fds
from scrun.core.version import VERSION
from scrun.protocol import wire

_KINDS = {"user": ns.NEW_USER, "mnt": ns.NEW_MOUNT, "pid": ns.NEW_PID}
_LONGEST = 1 << 18
_FDS = 2 + len(NAMESPACES)
_LONGEST_PATH = 107  # bytes; unix(7)
_PATIENCE = 10
_QUEUE = 128


def run(parsed: Parsed) -> int:
    program = shutil.which(parsed.operands[0])
    if program is None:
        raise UsageError(f"{parsed.operands[0]}: there is no such program")
    path = _place()
    listener = _listening(path)
    pidfd = os.pidfd_open(os.getpid())
    try:
        child = os.fork()
    except OSError as error:
        os.unlink(path)
        raise SettingsError(f"outside: {error.strerror}: see `ulimit -u`") from error
    if child:
        listener.close()
        os.close(pidfd)
        os.environ[OUTSIDE] = path
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execv(program, [program, *parsed.operands[1:]])
        except OSError as error:
            raise UsageError(f"{program}: {why(error)}") from error
    try:
        _stand_by(listener, pidfd)
    finally:
        os.unlink(path)
        os._exit(0)


def _place() -> str:
    directory = os.environ.get("XDG_RUNTIME_DIR", "")
    if not directory.startswith("/"):  # the daemon has another working directory
        raise SettingsError(
            f"XDG_RUNTIME_DIR={directory}: not a path from /; set it to your directory in /run"
        )
    path = f"{directory}/scrun-outside-{os.getpid()}"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise SettingsError(
            f"XDG_RUNTIME_DIR={directory}: too long for the path of a socket; set it to your "
            "directory in /run"
        )
    try:
        found = os.stat(directory)
    except OSError as error:
        raise SettingsError(
            f"XDG_RUNTIME_DIR={directory}: {why(error, 'it has to be your directory in /run')}"
        ) from error
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(f"XDG_RUNTIME_DIR={directory}: others may write there")
    return path


def _listening(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        if os.path.lexists(path):  # of a process with our pid that was killed
            os.unlink(path)
        mask = os.umask(0o177)
        listener.bind(path)
        os.umask(mask)
        listener.listen(_QUEUE)
    except OSError as error:
        listener.close()
        raise SettingsError(f"{path}: {why(error)}") from error
    return listener


def _stand_by(listener: socket.socket, pidfd: int) -> None:
    """Serve until the daemon ends; each request by a child, which may go into namespaces."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the daemon's end is ours
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    discard(0, 1, 2)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    while pidfd not in [fd for fd, _ in poll.poll()]:
        try:
            line, _ = listener.accept()
        except OSError:  # it has gone, or there is no descriptor for it
            continue
        with line:
            try:
                child = os.fork()
            except OSError:  # too many processes for now: who asks sees the line's end
                continue
            if not child:
                listener.close()  # whoever asks when we have been killed must not wait
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _serve(line)


def _serve(line: socket.socket) -> NoReturn:
    try:
        wire.check_peer(line)
        line.settimeout(_PATIENCE)
        request, fds, _ = receive_fds(line, _LONGEST)
        if len(fds) == _FDS:
            _start(line, [wire.decoded(field) for field in request.split(b"\0")], fds)
    finally:
        os._exit(0)


def _start(line: socket.socket, fields: list[str], fds: list[int]) -> None:
    """Start a supervisor, and end it if the other end goes before it has daemonized itself."""
    version, root, name, lingers, *variables = fields
    told, lock, *entered = fds
    try:
        if version != VERSION:
            raise SettingsError(
                f"this is scrun {version}, and the engine runs by {VERSION}: start it again"
            )
        for kind, fd in zip(NAMESPACES, entered, strict=True):
            if not os.path.sameopenfile(fd, own := os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)):
                ns.enter(fd, _KINDS[kind])
            os.close(own)
        os.chdir("/")
        environment = dict(variable.split("=", 1) for variable in variables)
        started = Spawned(root, name, [told, lock], environment, lingers=bool(lingers))
    except Exception as error:
        os.write(told, described(error).encode(errors="replace"))
        return
    os.close(told)
    os.close(lock)
    pidfd = os.pidfd_open(started.pid)
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    if pidfd not in [fd for fd, _ in poll.poll()]:
        started.kill()
    started.close()
