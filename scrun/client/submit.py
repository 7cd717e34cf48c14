"""Send the request for a new container to its supervisor, and handle the reply."""

import _socket
import posix

from scrun.cli.parse import Parsed, record_root, setting
from scrun.client.anchored import Anchored, build_call
from scrun.client.reach import was_deleted
from scrun.client.supervisor_name import OWN, beside, place, supervisor_name, withheld
from scrun.core.errors import SettingsError, SupervisorLost
from scrun.core.rights import send_fds
from scrun.protocol import wire
from scrun.protocol.wire import CALL, REASON_SHOWN

_DIGITS = 10  # of the length of a command, with the byte before them


def submit(parsed: Parsed, anchored: Anchored) -> "tuple[int, bytes, bool]":
    """Create a container; start a supervisor if necessary.

    When it is created, its pid file is published and its terminal handed over.

    Returns:
        The exit status, the reason if it is not 0, and whether standard error already shows that.
    """
    root = record_root(parsed)
    fields = build_call("create", posix.getpid(), parsed.argv)
    fields += [name + b"=" + value for name, value in withheld().items()]
    return _ask(root, parsed, fields, anchored)


def _reach(root: str, parsed: Parsed, *, anywhere: bool) -> "tuple[_socket.socket, list[int]]":
    """Connect to the supervisor for a new container; start it if necessary.

    Some engines wait for all that is started below them (`is_waited_for`). There, a supervisor of
    all containers would keep conmon running, and podman from cleaning up, for as long as any of
    them lives. So that supervisor serves only this container, or pod, and ends with it. `start`,
    which podman calls itself, starts the common one for later containers. A step of a build has
    mounts of its own, which another supervisor enters; that of the first step may keep its job for
    the others; it ends if buildah waits for it.

    `anywhere` says whether it may have other mounts.

    Returns:
        The connection, and what goes with the request: our mount namespace, or nothing.

    Raises:
        SupervisorLost, OSError: See `launch`.
    """
    group = setting(parsed, "group") or "user"
    # what lingers at the end of a task is killed
    name, lingers = supervisor_name(group, parsed), not place().task
    if group == "user" and not _is_there(f"{root}/{name}"):
        from scrun.client.launch import is_below_buildah, is_below_conmon

        if is_below_conmon():
            name, lingers = supervisor_name("pod", parsed), False
        elif is_below_buildah():
            if anywhere and (sock := _connect_beside(root, name)):
                return sock, [posix.open("/proc/self/ns/mnt", posix.O_RDONLY | posix.O_CLOEXEC)]
            kind = "build" if _jobs_linger(parsed) else "pod"
            name, lingers = supervisor_name(kind, parsed), False
    elif (
        group == "user"
        and b"_OCI_SYNCPIPE" in posix.environ  # of conmon, whose pods may have their own
        and any(entry.startswith(OWN) for entry in posix.listdir(root))
    ):
        own = supervisor_name("pod", parsed)
        if _is_there(f"{root}/{own}"):  # the pod's, which holds the pod's job
            name, lingers = own, False
    try:
        return wire.connect_supervisor(root, name), []
    except OSError:
        from scrun.client.launch import launch

        file = parsed.text("config-file")
        return launch(root, name, settings_file=file, lingers=lingers), []


def _is_there(path: str) -> bool:
    """Tell whether something has this name, even a link that leads nowhere."""
    try:
        posix.lstat(path)
    except OSError:
        return False
    return True


def _connect_beside(root: str, name: str) -> "_socket.socket | None":
    """Connect to a supervisor that sees other mounts; return None if there is none."""
    for other in beside(root, name):
        try:
            return wire.connect_supervisor(root, other)
        except OSError:
            pass  # it has died
    return None


def _jobs_linger(parsed: Parsed) -> bool:
    """Tell whether `[slurm] linger` is set; the whole settings are read only if it may be."""
    from scrun.settings.file import sources

    environment, config_file = sources.environment(), parsed.text("config-file")
    texts = (sources.read(*file) for file in sources.files(environment, config_file))
    if not any(text and b"linger" in text for text in texts):
        return False
    from scrun.settings.file.load import load

    return load(environment, config_file).slurm.linger > 0


def _ask(
    root: str, parsed: Parsed, fields: "list[bytes]", anchored: Anchored
) -> "tuple[int, bytes, bool]":
    """Send the request to the supervisor; start one if necessary.

    A supervisor that closes the connection without an answer was about to exit: it checks for
    requests first, but cannot see one that arrives later. The next attempt starts another one.
    """
    pid_file, record = anchored.pid_file, f"{root}/{parsed.id}"
    is_ours = not _is_there(record)  # if it comes
    for attempt in range(3):
        sock, mounts = _reach(root, parsed, anywhere=not attempt)
        try:
            if (owner := wire.peer_uid(sock)) != posix.geteuid():
                # root may operate on everybody's containers, but gives its environment to nobody
                raise SettingsError.of_root(root, f"belongs to uid {owner}")
            wire.send(sock, fields, [*anchored.fds, *mounts])
            _name_anchor(sock, anchored.name())
            status, answer, reason_shown = _read_reply(
                sock, parsed, pid_file.lock if pid_file else None
            )
            if status == 0:
                if answer:  # the container's first process, and no anchor
                    if pid_file:
                        pid_file.name_process(int(answer))
                elif anchored.console:
                    anchored.console.hand_over()
                if pid_file:
                    pid_file.publish()
                wire.confirm(sock)
            return status, answer, reason_shown
        except (BrokenPipeError, ConnectionResetError):
            if attempt == 2 or _is_there(record):
                raise lost(parsed, record, is_ours=is_ours) from None
        finally:
            sock.close()
            for fd in mounts:
                posix.close(fd)
    raise AssertionError("unreachable")


def lost(parsed: Parsed, record: str, *, is_ours: bool) -> Exception:
    """Return the error for a supervisor that died in `create`; our own `record` is removed."""
    is_gone = not is_ours or was_deleted(parsed, record)
    remedy = "" if is_gone else "delete it and "
    return SupervisorLost(
        f"the supervisor died while it created container {parsed.id}; {remedy}create it again"
    )


def _name_anchor(sock: _socket.socket, pid: int) -> None:
    try:
        sock.send(b"%d\n" % pid)
    except BrokenPipeError:
        pass  # it has refused the request: `_read_reply` has the reason


def _read_reply(
    sock: _socket.socket, parsed: Parsed, lock: "int | None" = None
) -> "tuple[int, bytes, bool]":
    """Read the reply; show the messages before it and run the commands among them.

    `lock` holds the pid file's lock, for the container's life.

    Returns:
        The exit status, the answer, and whether standard error already shows the reason, from the
            runtime that was called.
    """
    data = b""
    shown = reason_shown = False
    try:
        while part := sock.recv(65536):
            data += part
            while data[:1] >= REASON_SHOWN and b"\0" in data:
                if data[:1] == REASON_SHOWN:
                    reason_shown, data = True, data[2:]
                    continue
                if data[:1] == CALL:
                    ended, data = _call(sock, data, lock)
                    reason_shown = ended > 0
                    continue
                from scrun.client.progress import show

                message, _, data = data.partition(b"\0")
                shown = True  # before: an interrupt comes as soon as somebody sees the line
                show(message, parsed)
    finally:  # at an interrupt, too
        if shown:
            from scrun.client.progress import clear

            clear()
    if not data or data[:1] >= REASON_SHOWN:
        raise ConnectionResetError("the supervisor closed the connection")
    return data[0], data[1:], reason_shown


def _run(words: "list[bytes]") -> int:
    posix.umask(posix.umask(0o077) & 0o077)  # it enters directories that it makes
    pid = posix.posix_spawnp(words[0], words, posix.environ)
    return posix.waitstatus_to_exitcode(posix.waitpid(pid, 0)[1])


def _call(sock: _socket.socket, data: bytes, lock: "int | None") -> "tuple[int, bytes]":
    """Run the OCI runtime of this machine, on behalf of the supervisor.

    So the container's first process becomes a child of the subreaper above `create` (conmon or
    containerd's shim) and not of the supervisor, which is not below the engine. The engine waits
    for it, signals it and finds its namespaces as with crun or runc.

    Wire: the supervisor sends CALL (`scrun.protocol.wire`), the length of the command as a
    decimal number, NUL, and the command's words separated by NUL. The answer is a line with its
    exit status, negative if a signal ended it, together with the descriptor that holds the lock of
    the pid file, if there is one. Standard input, output and error are those of `create`.

    `data` is what was received so far: the message, perhaps without its end. `lock` is the
    descriptor that holds the pid file's lock.

    Returns:
        The exit status, and what was received after the message.

    Raises:
        ConnectionError: The supervisor closed the connection, or sends what is not a command.
    """
    head, _, rest = data.partition(b"\0")
    length = int(head[1:]) if head[1:].isdigit() and len(head) <= _DIGITS else 0
    if not 0 < length <= wire.LIMIT:
        raise ConnectionResetError("the supervisor sent what is not a command")
    while len(rest) < length:
        if not (part := sock.recv(65536)):
            raise ConnectionResetError("the supervisor closed the connection")
        rest += part
    status = _run(rest[:length].split(b"\0"))
    send_fds(sock, b"%d\n" % status, [] if lock is None else [lock])
    return status, rest[length:]
