"""A request for a container: to whom it goes, and what is done with what comes back."""

import _socket
import os

from scrun.cli.parse import Parsed
from scrun.client.anchored import Anchored
from scrun.client.ask import record_root, setting
from scrun.client.supervisor_name import OWN, supervisor_name
from scrun.protocol import wire
from scrun.protocol.progress import CALL, TOLD


def submit(parsed: Parsed, argv: "list[str]", anchored: Anchored) -> "tuple[int, bytes, bool]":
    """Have a container created, by a supervisor that is started if need be.

    Args:
        parsed: The parsed command line, of `create` or `run`.
        argv: The same as it came.
        anchored: Its descriptors and its anchor; the pid file gets its name when the container is
            created, and the terminal is handed over then.

    Returns:
        The exit status, the reason if it is not 0, and whether standard error has that already.

    Raises:
        ScrunError: There is no supervisor.
        OSError: There is no anchor, the pid file cannot have its name, or nobody takes the
            terminal.
    """
    root = record_root(parsed)
    name, lingers = _whom_to_ask(root, parsed)
    fields = request("create", os.getpid(), argv)
    return _ask(root, name, parsed, fields, anchored, lingers=lingers)


def _whom_to_ask(root: str, parsed: Parsed) -> "tuple[str, bool]":
    """Choose a supervisor, and tell whether it stays for a while when it has nothing to do.

    Some engines wait for whatever is started below them (`is_waited_for`). A supervisor of all
    containers there would keep them, and podman from cleaning up, as long as it has anything to
    do. Therefore such a supervisor serves this one container, or pod, and goes with it; `start`,
    which podman calls itself, has the common one started meanwhile for those that follow.
    """
    group = setting(parsed, "group") or "user"
    name = supervisor_name(group, parsed)
    if group != "user":
        return name, True
    if not os.path.lexists(f"{root}/{name}"):
        from scrun.client.launch import is_waited_for

        if is_waited_for():
            return supervisor_name("pod", parsed), False
        return name, True
    if any(entry.startswith(OWN) for entry in os.listdir(root)):
        own = supervisor_name("pod", parsed)
        if os.path.lexists(f"{root}/{own}"):  # one of its pod's, with the pod's job
            return own, False
    return name, True


def _ask(
    root: str,
    name: str,
    parsed: Parsed,
    fields: "list[bytes]",
    anchored: Anchored,
    *,
    lingers: bool,
) -> "tuple[int, bytes, bool]":
    """Ask the supervisor, and start it when there is none.

    A supervisor that closes the connection without a word was on its way out (it checks for
    requests before it goes, but cannot see one that is still on its way): the next try starts
    another one.
    """
    pid_file = anchored.pid_file
    for attempt in range(3):
        try:
            sock = wire.connect_supervisor(root, name)
        except OSError:
            from scrun.client.launch import launch

            file = parsed.text("config-file") or ""
            sock = launch(root, name, settings_file=file, lingers=lingers)
        try:
            if (owner := wire.served_by(sock)) != os.geteuid():
                # root may ask about everybody's containers, but hands its environment to nobody
                from scrun.core.errors import SettingsError

                raise SettingsError.of_root(root, f"belongs to uid {owner}")
            wire.send(sock, fields, anchored.fds)
            _name_anchor(sock, anchored.name())
            status, answer, told = _hear(sock, parsed, pid_file.lock if pid_file else None)
            if status == 0:
                if answer:  # the container's first process, and no anchor
                    if pid_file:
                        pid_file.names_instead(int(answer))
                elif anchored.console:
                    anchored.console.hand_over()
                if pid_file:
                    pid_file.publish()
                wire.confirm(sock)
            return status, answer, told
        except (BrokenPipeError, ConnectionResetError):
            if attempt == 2 or os.path.lexists(f"{root}/{parsed.id}"):
                from scrun.core.errors import SupervisorLost

                raise SupervisorLost(
                    f"the supervisor died while it created container {parsed.id}; "
                    "delete it and create it again"
                ) from None
        finally:
            sock.close()
    raise AssertionError("unreachable")


def _name_anchor(sock: _socket.socket, pid: int) -> None:
    """Tell the supervisor which process the anchor is."""
    try:
        sock.send(b"%d\n" % pid)
    except BrokenPipeError:
        pass  # it has refused the request: `_hear` has why, or says that it is gone


def _hear(
    sock: _socket.socket, parsed: Parsed, lock: "int | None" = None
) -> "tuple[int, bytes, bool]":
    """Read the reply, show the messages that come before it, and do what they ask for.

    Args:
        sock: The connection to the supervisor.
        parsed: The command line.
        lock: What holds the pid file's lock, for the container's life.

    Returns:
        The exit status and the answer; and whether standard error has the reason already, from
        the runtime that was called.

    Raises:
        ConnectionError: The supervisor went away without an answer.
    """
    data = b""
    shown = told = False
    while part := sock.recv(65536):
        data += part
        while data[:1] >= TOLD and b"\0" in data:
            if data[:1] == TOLD:
                told, data = True, data[2:]
                continue
            if data[:1] == CALL:
                from scrun.client.call import call

                ended, data = call(sock, data, lock)
                told = ended > 0
                continue
            from scrun.client.progress import show

            message, _, data = data.partition(b"\0")
            show(message, parsed)
            shown = True
    if shown:
        from scrun.client.progress import clear

        clear()
    if not data or data[:1] >= TOLD:
        raise ConnectionResetError("the supervisor closed the connection")
    return data[0], data[1:], told


def request(operation: str, pid: int, argv: "list[str]") -> "list[bytes]":
    """Build a request that carries a command line, and where it was typed (`protocol.wire`)."""
    os.umask(umask := os.umask(0o077))
    fields = [operation.encode(), b"%d" % pid, b"%o" % umask, os.fsencode(os.getcwd())]
    fields += [b"%d" % len(argv)]
    fields += [os.fsencode(argument) for argument in argv]
    if operation == "create":
        fields += [name + b"=" + value for name, value in os.environb.items()]
    return fields
