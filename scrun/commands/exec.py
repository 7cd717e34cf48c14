"""scrun exec and shell: run one more program in a running container.

The program joins the container where that runs. In the foreground this process stays, forwards
signals, and exits with the program's status; with `--detach` it leaves an anchor behind for an
engine to watch, as `create` does. `shell` is `exec --tty` of the best shell found there.

Wire: `exec PID UMASK CWD COUNT ARGUMENT...` with four descriptors, as for `create`. The answer
comes when the program runs. If there is none, because the supervisor has died, `runs ID PID` asks
its successor whether it runs, with the anchor's pid.

Errors: exit status 127 when there is no such program, 126 when it cannot be executed, as for a
shell.
"""

import _socket
import posix

from scrun.anchor.foreground import CarriedTerminal, own_terminal, pass_signals_on, stay
from scrun.cli.failure import report_failure
from scrun.cli.parse import Parsed, record_root
from scrun.client.anchored import Anchored, build_call
from scrun.client.reach import connect_served, fetch_answer
from scrun.core.errors import UsageError
from scrun.core.paths import LIMIT
from scrun.oci.ids import check_id
from scrun.protocol import wire


def run(parsed: Parsed) -> int:
    container, argv = check_id(parsed.id or ""), parsed.argv
    if process := parsed.text("process"):
        argv = _with_copied_file(argv, process)
    elif parsed.count("tty") or parsed.command == "shell":
        container, argv = _with_whole_id(parsed, argv)
    if parsed.command == "shell":
        argv = _with_term(parsed, argv)
    wants_terminal = bool(parsed.count("tty")) or parsed.command == "shell"
    console, detach = parsed.text("console-socket"), bool(parsed.count("detach"))
    if fault := _fault(parsed, wants_terminal=wants_terminal):
        raise UsageError(fault)
    directory = record_root(parsed) + "/" + container
    own = None
    with Anchored(parsed) as anchored:
        try:
            if wants_terminal and not console:
                own = own_terminal()
            carried = own if isinstance(own, CarriedTerminal) else None
            anchored.begin(carried, leave=detach)
            if anchored.console:
                anchored.console.hand_over()
            status, answer = ask(anchored, directory, argv, carried, detach=detach)
            if status == 0:
                _publish(anchored)
                if not detach:
                    return stay(anchored.socket, carried)
        finally:
            if own:
                own.restore()
    if status:
        return report_failure(answer, status, parsed)
    return 0


def ask(
    anchored: Anchored,
    directory: str,
    argv: "list[str]",
    carried: CarriedTerminal | None = None,
    *,
    detach: bool = False,
) -> "tuple[int, bytes]":
    """Ask for one more program in a container; return the answer when it runs."""
    pid = anchored.name()
    sock = connect_served(directory)
    try:
        if not detach:  # the program may run before the answer is here
            pass_signals_on(anchored.socket, carried)
        wire.send(sock, build_call("exec", pid, argv), anchored.fds)
        anchored.sent()
        if carried:
            carried.begin()
        return _answer(sock, directory, pid)
    finally:
        sock.close()


def _fault(parsed: Parsed, *, wants_terminal: bool) -> str:
    """Return what is wrong with the command line, or ""."""
    console, process = parsed.text("console-socket"), parsed.text("process")
    if parsed.command == "exec" and not parsed.operands and not process:
        return "exec needs a command, or --process FILE: see 'scrun exec --help'"
    if wants_terminal and parsed.count("detach") and not console:
        return "--tty with --detach needs --console-socket, to send the terminal to"
    if console and not wants_terminal and not process:
        return "--console-socket has no use without --tty"
    return ""


def _with_whole_id(parsed: Parsed, argv: "list[str]") -> "tuple[str, list[str]]":
    """Complete an id that was typed; return it, and the command line for the supervisor."""
    given = parsed.id or ""
    if not (posix.isatty(0) and posix.isatty(1)):
        return given, argv
    from scrun.client.find import resolve

    position = len(argv) - len(parsed.operands) - 1  # whatever follows the id is an operand
    container, _ = resolve(parsed)
    return container, [*argv[:position], container, *argv[position + 1 :]]


def _with_term(parsed: Parsed, argv: "list[str]") -> "list[str]":
    """Give a shell the caller's TERM, unless `--env` has another."""
    term = wire.decoded(posix.environ.get(b"TERM", b""))
    if not term or any(entry.startswith("TERM=") for entry in parsed.texts("env")):
        return argv
    # the supervisor parses argv again; options come before the operands
    position = argv.index(parsed.command) + 1 if parsed.command in argv else len(argv)
    return [*argv[:position], "--env", f"TERM={term}", *argv[position:]]


def _with_copied_file(argv: "list[str]", path: str) -> "list[str]":
    """Copy a file of this process alone, `-p <(…)`; return the command line with the copy."""
    import _stat as stat

    try:
        mode = posix.stat(path).st_mode
    except OSError:
        return argv  # the supervisor reports why
    # any other pipe may have no writer
    is_readable = stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
    if not (is_readable and path.startswith(("/dev/", "/proc/"))):
        return argv
    with open(path, "rb") as file:
        content = file.read(LIMIT + 1)
    copy = posix.memfd_create("process")
    while content:
        content = content[posix.write(copy, content) :]
    position = next(
        number
        for number in range(len(argv) - 1, -1, -1)
        if argv[number] == path or argv[number] in (f"--process={path}", f"-p{path}", f"-p={path}")
    )
    named = argv[position].removesuffix(path) + f"/proc/{posix.getpid()}/fd/{copy}"
    return [*argv[:position], named, *argv[position + 1 :]]


def _publish(anchored: Anchored) -> None:
    """Publish the pid file of a running program; on failure end the program, by its anchor."""
    try:
        if anchored.pid_file:
            anchored.pid_file.publish()
    except OSError:
        if anchored.anchor:
            posix.kill(anchored.anchor.pid, 9)
        raise


def _answer(sock: _socket.socket, directory: str, pid: int) -> "tuple[int, bytes]":
    """Wait for the answer; if the supervisor dies, for that of its successor."""
    try:
        return wire.receive(sock)
    except ConnectionError:
        container = directory.rpartition("/")[2]
        fields = [b"runs", wire.encoded(container), b"%d" % pid]
        return fetch_answer(directory, fields)
