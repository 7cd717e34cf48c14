"""The keeper's program; see the package. Little is imported: it begins often."""

import _signal
import _socket
import posix
import resource
import sys
import time

from scrun.core.rights import receive_fds, send_fds

BEGIN, COMPLETE = b"+", b"."
ALL, NEXT, END = b"all", b"next", b"end"
LONGEST = 1 << 18
"""Bytes of a message; a socket takes less."""

_PAUSE = 0.2
_QUIET = 1.0
_WAKE = 0
_ERROR = 2
NAME = "scrun-keeper"
ASLEEP = """\
{ printf %s "$1" >/proc/self/comm; } 2>/dev/null
limit=$3
shift 3
read -r line
until [ -x "$1" ]; do
    [ "$((limit -= 1))" -ge 0 ] || exit
    sleep 1
done
exec "$@"
"""
"""What the shell reads. Its arguments: our name, the directory of the records, a number of
seconds, and what it becomes."""

_DEAF = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP)
"""Whoever ends a session or a service sends them to us and to the supervisor, in any order."""

_GONE = (BrokenPipeError, ConnectionResetError)


class Held:
    """The deposits, by name: their content, and their descriptors by name."""

    def __init__(self, state: int) -> None:
        """`state` is a descriptor of what `written` has returned, or -1."""
        self._held: dict[bytes, tuple[bytes, dict[bytes, int]]] = {}
        self._begun: list[tuple[list[bytes], list[int]]] = []
        if state >= 0:
            for line in _content(state).splitlines():
                name, content, pairs = line.split(b"\0")
                fds = {each: int(fd) for each, _, fd in (p.partition(b"=") for p in pairs.split())}
                self._held[name] = content, fds
            posix.close(state)
            self._inherit(inherited=False)

    def close_others(self, known: "set[int]") -> None:
        """Close what is neither held nor known: what the shell has read.

        dash closes that on exec only if it has moved it: if it had a number below 10.
        """
        known.update(*(fds.values() for _, fds in self._held.values()))
        for name in posix.listdir("/proc/self/fd"):
            if int(name) > _ERROR and int(name) not in known:
                try:
                    posix.close(int(name))
                except OSError:  # it was the directory's
                    pass

    def written(self) -> int:
        """Return a file in memory with the names and numbers; all are inherited. Or OSError."""
        lines = [
            b"\0".join([name, content, b" ".join([b"%s=%d" % pair for pair in fds.items()])])
            for name, (content, fds) in self._held.items()
        ]
        state = posix.memfd_create("scrun-keeper", 0)
        rest = b"\n".join(lines)
        while rest:
            rest = rest[posix.write(state, rest) :]
        self._inherit(inherited=True)
        return state

    def _inherit(self, *, inherited: bool) -> None:
        for _, fds in self._held.values():
            for fd in fds.values():
                posix.set_inheritable(fd, inherited)

    @property
    def is_complete(self) -> bool:
        """Whether nothing was begun only."""
        return not self._begun

    def serve(self, line: _socket.socket) -> "bool | None":
        """Do what is said; return whether there was an end of file, and no `end`.

        None if there was neither for a while.
        """
        while True:
            try:
                message, fds, _ = receive_fds(line, LONGEST)
                if message == ALL:
                    self._give(line)
            except _GONE:  # with unread answers; what has come before comes still
                continue
            except (BlockingIOError, TimeoutError):
                return None
            if message == END:
                return False
            if not message:
                self._forget_begun()
                return True
            kind, *fields = message.split(b"\0")
            if fields:
                self._begun.append((fields, fds))
            if kind == COMPLETE:
                for each in self._begun:
                    self._hold(*each)
                self._begun.clear()

    def _forget_begun(self) -> None:
        while self._begun:
            for fd in self._begun.pop()[1]:
                posix.close(fd)

    def _hold(self, fields: "list[bytes]", fds: "list[int]") -> None:
        name, content, gone, new = fields
        names = new.split()
        _, held = self._held.pop(name, (b"", {}))
        whole = len(names) == len(fds)  # else we are out of descriptors
        for each in gone.split() if content and whole else [*held]:
            _close(held, each)
        if content and whole:
            for each, fd in zip(names, fds, strict=True):
                _close(held, each)
                held[each] = fd
            self._held[name] = content, held
        else:
            for fd in fds:
                posix.close(fd)

    def _give(self, line: _socket.socket) -> None:
        """Give everything, and keep it; raises OSError if whoever wanted it has gone."""
        patience = line.gettimeout()
        line.settimeout(None)
        try:
            for name, (content, fds) in self._held.items():
                send_fds(line, b"\0".join([name, content, b" ".join(fds)]), [*fds.values()])
                if line.recv(len(NEXT)) != NEXT:
                    return
            line.send(b"\0\0")
        finally:
            line.settimeout(patience)


def _close(held: "dict[bytes, int]", name: bytes) -> None:
    if name in held:
        posix.close(held.pop(name))


def _content(file: int) -> bytes:
    posix.lseek(file, 0, 0)
    content = b""
    while part := posix.read(file, 1 << 20):
        content += part
    return content


def named(fd: int) -> str:
    """Return a name of a file that a descriptor has open, for a program."""
    return f"/proc/self/fd/{fd}"


def main(words: "list[str]", command: "list[str]") -> None:
    """Hold deposits; when the supervisor has died, call a successor until one has all.

    Args:
        words: The numbers of the descriptors of this program, of that of the shell, and of LINE;
            that of the earlier content, or -1; the soft limit of open files with which the
            successor is to start, or -1 for ours; and for how many seconds it is called.
        command: The program that calls one (`scrun.client.hand_over`). Its standard input is a
            socket like LINE; it exits with 0 if there is nothing more to do.
    """
    *programs, number, state, limit, seconds = words
    own = [int(fd) for fd in programs]
    _name_us()
    for signal in _DEAF:
        _signal.signal(signal, _signal.SIG_IGN)  # it stays so when we become the shell
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = soft if int(limit) < 0 else int(limit)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    for fd in (*own, int(number)):
        posix.set_inheritable(fd, False)
    held, line = Held(int(state)), _socket.socket(fileno=int(number))
    held.close_others({*own, int(number)})
    line.settimeout(_QUIET)
    while (ended := held.serve(line)) is None:
        if not _is_woken():
            line.settimeout(None)
            continue
        line.settimeout(0)  # what has come before the pipe was empty
        if (ended := held.serve(line)) is not None:
            break
        line.settimeout(_QUIET)
        if held.is_complete:
            _sleep(held, line, words, soft)
    if ended:
        line.close()
        _call(held, command, float(seconds), (soft, hard))


def _is_woken() -> bool:
    """Empty the pipe; return whether more can arrive."""
    posix.set_blocking(_WAKE, False)
    try:
        while posix.read(_WAKE, 1 << 16):
            pass
    except BlockingIOError:
        return True
    finally:
        posix.set_blocking(_WAKE, True)
    return False


def _name_us() -> None:
    """Have `ps` show our name (proc(5), comm)."""
    try:
        comm = posix.open("/proc/self/comm", posix.O_WRONLY | posix.O_CLOEXEC)
        posix.write(comm, NAME.encode())
        posix.close(comm)
    except OSError:
        pass


def _sleep(held: Held, line: _socket.socket, words: "list[str]", soft: int) -> None:
    """Become the shell, unless that is not possible now."""
    *_, seconds = words
    kept = [int(fd) for fd in words[:3]]
    python = [sys.executable, *sys.orig_argv[1 : -len(words)], *words[:3]]
    shell = ["/bin/sh", named(kept[1]), *sys.argv[1:3], str(int(float(seconds)))]
    state = -1
    try:
        state = held.written()
        for fd in kept:
            posix.set_inheritable(fd, True)
        posix.execv(shell[0], [*shell, *python, str(state), str(soft), seconds])
    except OSError:
        for fd in kept:
            posix.set_inheritable(fd, False)
        if state >= 0:
            posix.close(state)
        line.settimeout(None)


def _call(held: Held, command: "list[str]", seconds: float, limits: "tuple[int, int]") -> None:
    """Call a successor, until one has all or there is nothing more to do."""
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    while True:
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        try:
            called = posix.posix_spawn(
                command[0],
                [*command, str(began)],
                posix.environ,
                file_actions=[(posix.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
                setsigdef=_DEAF,
            )
        except OSError:  # it may just be being installed anew, or there is no memory
            called = 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (limits[1], limits[1]))
        theirs.close()
        if not held.serve(ours):
            return
        ours.close()
        if called and posix.waitpid(called, 0)[1] == 0:
            return
        if time.clock_gettime(time.CLOCK_BOOTTIME) - began > seconds:
            return
        time.sleep(_PAUSE)
