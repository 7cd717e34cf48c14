"""Hands a container that this process runs by itself over to a supervisor, which somebody wants.

The supervisor is started, or found, by the name that the task's has, and adopts the container as
one of a supervisor that has died: this process plays the keeper (`scrun.supervisor.keeper`). It
stays the parent of the container's first process, so it writes its exit status to a pipe.
"""

import _signal
import _socket
import json
import os
import select
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from scrun.anchor.foreground import gone, parse_status, pass_signals_on
from scrun.cli.parse import Parsed
from scrun.client.launch import launch
from scrun.client.reach import delete_own
from scrun.client.replay import SOCKET, Replayed
from scrun.client.supervisor_name import supervisor_name
from scrun.core.errors import ScrunError
from scrun.core.rights import receive_fds, send_fds
from scrun.core.version import VERSION
from scrun.protocol import wire
from scrun.protocol.anchor import PASSED_ON

_ALL, _END = b"all", b"end"
_LONGEST = 4096


def give_over(
    container: Replayed, parsed: Parsed, callers: list[_socket.socket]
) -> Callable[[list[int]], int] | None:
    """Hand a container over to a supervisor, with its `callers`, of whom nothing was read.

    Returns what makes this process its anchor, with the signals of the meantime, and returns its
    exit status; None if no supervisor has taken it.
    """
    anchor, theirs = _socket.socketpair()
    told, tells = os.pipe()
    said, says = os.pipe()
    os.close(says)  # the keepalive says nothing
    pidfd = os.pidfd_open(container.keepalive)
    request = os.memfd_create("scrun-request", os.MFD_CLOEXEC)
    os.write(request, zlib.compress(_request(container), 1))
    assert container.line is not None
    held = {
        "own.stderr": 2, "own.anchor": theirs.fileno(), "own.request": request,
        "own.lock": container.lock, "job.line": container.line.fileno(),
        "job.keepalive": pidfd, "job.keepalive_said": said,
        "job.first": container.pidfd, "job.told": told,
    }  # fmt: skip
    try:
        name = supervisor_name("user", parsed)
        file = parsed.text("config-file")
        sock = launch(container.root, name, settings_file=file, lingers=False)
        ours, line = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        wire.send(sock, [b"adopt"], [line.fileno()])
        line.close()
        has_it = _serve(ours, container, held) and wire.receive(sock)[0] == 0
        ours.close()
        sock.close()
        has_it = has_it and os.readlink(f"{container.record}/supervisor") == f"../{name}"
    except (ScrunError, OSError):
        has_it = False
    finally:
        theirs.close()
        for fd in (told, said, pidfd, request):
            os.close(fd)
    if not has_it:
        anchor.close()
        os.close(tells)
        return None
    # who has the record's old link comes no further, and who was waiting is answered
    with suppress(OSError):
        os.unlink(f"{container.record}/{SOCKET}")
    for caller in (*callers, *container.waiting()):
        _have_served(container.root, name, caller)
    container.line.close()  # else its keepalive would see no end of file
    container.line = None
    container.keepalive = 0
    container.is_ours = False
    return partial(_stay, container, parsed, anchor, tells)


def _have_served(root: str, name: str, caller: _socket.socket) -> None:
    """Have the supervisor answer somebody who has called us."""
    try:
        sock = wire.connect_supervisor(root, name)
        wire.send(sock, [b"serve"], [caller.fileno()])
        wire.receive(sock)
    except OSError:
        pass  # it has died, and its successor will be asked
    finally:
        caller.close()


def _request(container: Replayed) -> bytes:
    known = json.loads(container.ours(container.content["remembered"]))
    known["request"]["child_env"]["environment"] = dict(os.environ)
    known["request"]["task"] = container.task
    return json.dumps(known).encode()


def _facts(container: Replayed) -> bytes:
    facts = json.loads(container.ours(container.content["facts"]))
    facts |= {
        "job": container.job, "target": container.id, "first": container.pid,
        "keepalive": container.keepalive, "phase": "RUNNING", "alone": True,
    }  # fmt: skip
    return json.dumps({"facts": facts, "version": VERSION}).encode()


def _serve(line: _socket.socket, container: Replayed, held: dict[str, int]) -> bool:
    """Give all that is held, until the supervisor has it; return whether it has."""
    while True:
        message, _, _ = receive_fds(line, _LONGEST)
        if message == _END:
            return True
        if not message:
            return False
        if message == _ALL:
            names = " ".join(held).encode()
            content = b"\0".join([container.id.encode(), _facts(container), names])
            send_fds(line, content, [*held.values()])
            if not line.recv(16):
                return False
            line.send(b"\0\0")


def _stay(
    container: Replayed, parsed: Parsed, anchor: _socket.socket, tells: int, signals: list[int]
) -> int:
    _signal.set_wakeup_fd(-1)
    pass_signals_on(anchor)
    names = {int(getattr(_signal, f"SIG{name}")): name for name in PASSED_ON}
    for number in signals:
        os.write(anchor.fileno(), names[number].encode() + b"\n")
    poller = select.poll()
    poller.register(container.pidfd, select.POLLIN)
    poller.register(anchor.fileno(), select.POLLIN)
    line = b""
    while not line.endswith(b"\n"):
        ready = [fd for fd, _ in poller.poll()]
        if container.pidfd in ready:
            poller.unregister(container.pidfd)
            _, status, used = os.wait4(container.pid, 0)
            code = os.waitstatus_to_exitcode(status)
            figures = used.ru_utime, used.ru_stime, used.ru_maxrss  # as reapers tell them
            os.write(tells, b"%d %f %f %d" % (code if code >= 0 else 128 - code, *figures))
            os.close(tells)
        if anchor.fileno() in ready:
            try:
                part = anchor.recv(64)
            except OSError:
                part = b""
            if not part:
                raise gone()
            line += part
    delete_own(parsed, container.record, b"%d" % os.getpid())
    return parse_status(line)
