"""Forwards `state`, `start`, `kill`, `delete`, `pause` and `resume` to a container's supervisor.

`go_on` finishes where the client in C has stopped (`scrun/native`), which has asked the
supervisor. It hands over what it has no words for: as options of the interpreter, by name.

* `answered=FD`: a file with the answer, and with the messages for the log before it;
* `failed=ERRNO`: there was no whole answer;
* `again`: the supervisor of a forwarded operation died before it answered;
* `lost=old`, `lost=new`: that of a `create` died; whether there was a record before it;
* `stays=FD`, `left=PID`: that of an `exec` died before it answered; the socket of this process,
  which is the program's anchor, or the pid of an anchor that was left behind;
* `untaken=SIGNAL`: nobody takes a signal for the program of an `exec`.

It imports built-in modules only.
"""

import _socket
import posix
import sys

from scrun.anchor.foreground import gone, stay
from scrun.anchor.pid_file import PidFile
from scrun.cli.failure import report, report_failure
from scrun.cli.parse import Parsed, record_root
from scrun.client.reach import fetch_answer, run_unserved
from scrun.client.submit import lost
from scrun.core.errors import NotTaken
from scrun.core.output import say
from scrun.protocol import wire
from scrun.protocol.wire import REASON_SHOWN


def forward(parsed: Parsed, *, again: bool = False) -> int:
    """Forward an operation and print the answer; `again`: the supervisor asked before has died."""
    container = parsed.id or ""
    directory = record_root(parsed) + "/" + container
    fields = build_request(parsed, container)
    if again:
        fields = wire.asked_again(fields)
    asked = [parsed.command] * again

    def meanwhile() -> None:
        asked.append(parsed.command)

    try:
        status, answer = wire.ask(directory, "supervisor", fields, meanwhile)
    except wire.NOBODY:
        if "delete" in asked and not posix.access(directory, posix.F_OK):
            return 0  # its supervisor died before it could say that it is deleted
        unserved = run_unserved(parsed, directory)
        return forward(parsed, again=bool(asked)) if unserved is None else unserved
    return conclude(parsed, directory, status, answer)


def conclude(parsed: Parsed, directory: str, status: int, answer: bytes) -> int:
    """Print the answer to a forwarded operation, or report what it says; return the status."""
    if status:
        return report_failure(answer, status, parsed)
    if parsed.command == "start" and _is_of_a_pod(directory):
        from scrun.client.launch import launch_common

        launch_common(parsed)
    if answer:
        if parsed.command == "delete":
            report(answer.decode(errors="replace"), log=None, log_format="text")
            return 0
        say(answer)
    return 0


def _is_of_a_pod(directory: str) -> bool:
    """Tell whether a pod's supervisor serves a container, if that has not been deleted already."""
    try:
        return "/@pod-" in posix.readlink(directory + "/supervisor")
    except OSError:
        return False


def build_request(parsed: Parsed, container: str) -> "list[bytes]":
    """Build the request for a forwarded operation (see `scrun.protocol.wire`)."""
    fields = [parsed.command, container]
    if parsed.command == "kill":
        fields.append(parsed.operands[0] if parsed.operands else "TERM")
        fields += ["1"] * bool(parsed.options.get("all"))
    elif parsed.command == "delete":
        fields.append("1" if parsed.options.get("force") else "")
    return [wire.encoded(field) for field in fields]


def go_on(parsed: Parsed) -> int:
    """Finish a command, or raise what the client has met; return its exit status."""
    told = sys._xoptions
    directory = f"{record_root(parsed)}/{parsed.id}"
    if "answered" in told:
        return _report(parsed, directory, int(told["answered"]))
    if "failed" in told:
        raise wire.incomplete(int(told["failed"]))
    if "untaken" in told:
        raise NotTaken.of(int(told["untaken"]))
    if "lost" in told:
        raise lost(parsed, directory, is_ours=told["lost"] == "new")
    if "gone" in told:
        raise gone()
    if "again" in told:
        return forward(parsed, again=True)
    status = _ask_whether_it_runs(parsed, directory, int(told.get("left", posix.getpid())))
    if status or "stays" not in told:
        return status
    return stay(_socket.socket(fileno=int(told["stays"])))


def _report(parsed: Parsed, directory: str, fd: int) -> int:
    size = posix.fstat(fd).st_size
    data = b""
    while len(data) < size and (part := posix.pread(fd, size - len(data), len(data))):
        data += part
    posix.close(fd)
    reason_shown = False
    while data[:1] >= REASON_SHOWN:
        message, _, data = data.partition(b"\0")
        if message == REASON_SHOWN:
            reason_shown = True
            continue
        from scrun.client.progress import show

        show(message, parsed)
    if parsed.command not in ("create", "exec"):
        return conclude(parsed, directory, data[0], data[1:])
    if data[0]:
        return report_failure(data[1:], data[0], parsed, reason_shown=reason_shown)
    return 0


def _ask_whether_it_runs(parsed: Parsed, directory: str, pid: int) -> int:
    fields = [b"runs", wire.encoded(parsed.id or ""), b"%d" % pid]
    status, answer = fetch_answer(directory, fields)
    if status:
        return report_failure(answer, status, parsed)
    if path := parsed.text("pid-file"):
        file = PidFile(path)
        file.write(pid)
        file.publish()
    return 0
