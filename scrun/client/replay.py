"""A container of a task's that is made from a template, in the foreground, without a supervisor.

This process makes the record, has crun create and start the container, and is the parent of its
first process, to the end. A shell, its keepalive, removes the container if this process is killed.
The record leads to a socket of this process's: whoever asks anything but `state` gets a
supervisor, to which this process hands the container over (`scrun.client.give_over`). From then on
it is what any `run` in the foreground is: the container's anchor.

A template is the dictionary that `scrun.supervisor.containers.templates` writes. Its texts contain
the id of the first container, which the id of this one replaces.
"""

import _signal
import _socket
import fcntl
import posix
import select
import time
from _blake2 import blake2s
from _json import encode_basestring

from scrun.client.template import Template, is_current
from scrun.core.errors import ScrunError
from scrun.core.job_numbers import next_job
from scrun.core.place import Place, contents, is_of_task, stat_fields
from scrun.protocol.anchor import PASSED_ON
from scrun.protocol.wire import peer_uid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Stay = Callable[[list[int]], int]
    """Is the anchor of a container, with the signals so far; returns its exit status."""

    GiveOver = Callable[["Replayed", list[_socket.socket]], Stay | None]
    """Hands a container to a supervisor, and those who ask for it; None if nobody takes it."""

SOCKET = "own"
"""The name of this process's socket in the record."""

_GRACE = 5.0
"""Seconds to the end after a signal that a program does not handle (see `containers.anchors`)."""
_TWICE = 1.0

_FATAL = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM)
_SIGNALS = tuple({*range(1, 65)} - {9, 19, 32, 33})  # as in `scrun.client.launch`
_PR_SET_CHILD_SUBREAPER = 36
_DEEPEST = 16
_KEEPALIVE = """\
text=$1
shift
"$@" 3<&- 4>&-
echo $? >&4
exec <&3 3<&- 4>&- >/dev/null 2>&1
while IFS= read -r line; do text=$line; done
exec /bin/sh -c "$text" </dev/null
"""
"""Has crun start the container, and is then its keepalive (`supervisor.engines.local.engine`).
If this process is killed meanwhile, crun has ended before the container is removed."""

_NEW = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
_FOLDER = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC


def replay(template: Template, place: Place, give_over: "GiveOver") -> "int | None":
    """Run a container; return its exit status, or None if it has to be made the usual way."""
    assert template.content is not None
    container = Replayed(template.root, template.content, place)
    try:
        try:
            has_begun = container.begin()
        except (OSError, UnicodeError, AttributeError):  # a Python without `_ctypes` as we know it
            has_begun = False
        if not has_begun:
            template.discard()
            container.remove()
            return container.killed_early()
        status = container.stay(give_over)
        if container.is_ours:
            container.remove()
        return status
    finally:
        container.let_go()


class Replayed:
    """One container.

    Attributes:
        task: The task that it belongs to, `JOB.STEP.TASK`.
        pid, pidfd: Its first process.
        is_ours: Whether no supervisor has it.
        lock: Holds the lock of its record.
        line: The keepalive's socket.
    """

    def __init__(self, root: str, content: "dict[str, Any]", place: Place) -> None:
        self.content = content
        self.root = root
        self._before = content["id"]
        self.id = f"{self._before.rpartition('-')[0]}-{posix.urandom(4).hex()}"
        self.record = f"{root}/{self.id}"
        self.job = ""
        self.pid, self.pidfd, self.lock, self.keepalive = 0, -1, -1, 0
        self.line: _socket.socket | None = None
        self.is_ours = True
        self.task = place.name
        self._name = f"@task-{posix.getpid()}"
        self._made = self._lease = ""
        self._listener = _socket.socket(_socket.AF_UNIX)
        self._woken, self._wakes = posix.pipe()
        self._signals: list[int] = []
        self._first = self._killed_by = 0  # signals that end programs
        self._ends_at = self._told_at = self._began = 0.0

    # Its beginning

    def begin(self) -> bool:
        """Make it, and start its program; return whether that runs.

        Raises:
            OSError: It cannot be made.
        """
        for end in (self._woken, self._wakes):
            posix.set_blocking(end, False)
        _signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for name in PASSED_ON:
            _signal.signal(getattr(_signal, f"SIG{name}"), _noted)
        self.job = next_job(self.root)
        umask = posix.umask(0o077)
        try:
            own_lock = self._make_record()
        finally:
            posix.umask(umask & 0o077)  # crun enters directories that it makes
        try:
            posix.rename(self._made, self.record)
            self._made = self.record
        finally:
            posix.unlink(f"{self.root}/{self._name}.lock")
            posix.close(own_lock)
        return self.killed_early() is not None or self._have_made()

    def _make_record(self) -> int:
        """Make the record under another name; return the lock that keeps it from removal."""
        flags = posix.O_RDWR | posix.O_CREAT | posix.O_CLOEXEC | posix.O_NOFOLLOW
        own_lock = posix.open(f"{self.root}/{self._name}.lock", flags, 0o600)
        fcntl.flock(own_lock, fcntl.LOCK_EX)
        made = f"{self.root}/@tmp{self._name}{posix.urandom(4).hex()}"
        posix.mkdir(made, 0o700)
        self._made = made
        self.lock = posix.open(f"{made}/lock", flags, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self._take_lease()
        if not is_current(self.content):
            raise OSError(116, "the image has changed")
        times = []
        for kind, name, mode, at, more, data in self.content["tree"]:
            path = f"{made}/{name}"
            if kind == "directory":
                posix.mkdir(path, 0o700)
                if at:
                    times.append((path, mode, at))
            elif kind == "link":
                posix.symlink(self.ours(data), path)
            else:
                self._write(path, self.ours(data))
                times.append((path, mode, at))
            for attribute, value in more:
                posix.setxattr(path, attribute, value, follow_symlinks=False)
        for path, mode, at in reversed(times):
            posix.chmod(path, mode)
            posix.utime(path, ns=(at, at))
        before, after = self.content["config"]
        self._write(
            f"{made}/config.json", self.ours(before) + self._variables() + self.ours(after)
        )
        self._write(f"{made}/state.json", self._state())
        self._write(f"{made}/log", b"")
        folder = posix.open(made, posix.O_PATH | posix.O_CLOEXEC)
        try:
            self._listener.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        finally:
            posix.close(folder)
        self._listener.listen(64)
        self._listener.setblocking(False)
        posix.symlink(SOCKET, f"{made}/supervisor")
        return own_lock

    def _write(self, path: str, content: bytes) -> None:
        file = posix.open(path, _NEW, 0o600)
        try:
            while content:
                content = content[posix.write(file, content) :]
        finally:
            posix.close(file)

    def ours(self, text: bytes) -> bytes:
        """Return a text of the first container's for this one."""
        return text.replace(self._before.encode(), self.id.encode())

    def _variables(self) -> bytes:
        """Return what Slurm says of this task, as entries of a list in JSON."""
        entries = []
        for name, value in posix.environ.items():
            # PMI's descriptor is with whoever called us; some of these tell of the container
            if is_of_task(name) and name not in (b"PMI_FD", *self.content["variables"]):
                try:
                    text = (name + b"=" + value).decode()
                except UnicodeDecodeError:  # left out, as `of_slurm` does
                    continue
                entries.append(encode_basestring(text).encode())
        return b",".join(entries)

    def _state(self) -> bytes:
        now = time.time()
        date = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        env = posix.environ
        texts = {
            "created": f"{date}.{int(now % 1 * 1e6):06}Z",
            "job": self.job,
            "task": self.task,
            "called_in": env.get(b"SLURM_JOB_ID", b"").decode(errors="replace"),
            "restarts": env.get(b"SLURM_RESTART_COUNT", b"").decode(errors="replace"),
            "node": env.get(b"SLURM_JOB_NODELIST", b"").decode(errors="replace"),
        }
        numbers = {"pid": posix.getpid(), "started": _started()}
        state = self.ours(self.content["state"])
        marks = self.content["marks"]
        for name, text in texts.items():
            state = state.replace(
                encode_basestring(marks[name]).encode(), encode_basestring(text).encode()
            )
        for name, number in numbers.items():
            state = state.replace(b"%d" % marks[name], b"%d" % number)
        return state

    def _take_lease(self) -> None:
        """Keep the image in its store (`scrun.images.leases`); OSError if it is gone."""
        folder = self.content["leases"]
        if not folder:
            return
        host, pid, started = posix.uname().nodename, posix.getpid(), _started()
        whose = f"{host}\0{pid}\0{started}\0{self.root}\0{self.id}"
        name = blake2s(whose.encode(errors="surrogateescape"), digest_size=12).hexdigest()
        taker = self.content["taker"].replace(b"@pid", b"%d" % pid)
        taker = taker.replace(b"@started", b"%d" % started)
        try:
            posix.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        self._write(f"{folder}/.{name}", self.ours(taker))
        self._lease = f"{folder}/{name}"
        posix.rename(f"{folder}/.{name}", self._lease)
        if used := self.content["used"]:
            posix.utime(used)

    def _have_made(self) -> bool:
        """Have crun create it, and start it; return whether it runs."""
        _become_subreaper()
        crun = [*self.content["crun"], "--root", f"{self.record}/runtime"]
        pid_file = f"{self.record}/runtime.pid"
        logged = ["--log", f"{self.record}/runtime.log", "--log-format", "json"]
        bundle = ["--bundle", self.content["bundle"], "--config", f"{self.record}/config.json"]
        words = [*crun, *logged, "create", *bundle, "--pid-file", pid_file, "--", self.id]
        removal = " ".join(map(_quoted, [*crun, "delete", "--force", "--", self.id]))
        if self._call([removal, *words]) != b"0\n":
            return False
        self.pid = int(contents(pid_file))
        self.pidfd = posix.pidfd_open(self.pid)
        try:
            # crun from 1.25 on gives it all processors of its control group
            posix.sched_setaffinity(self.pid, posix.sched_getaffinity(0))
        except OSError:
            pass  # it is somebody else's, or its control group has none of them
        return self._start()

    def _start(self) -> bool:
        """Do what crun's `start` does: see `supervisor.shim.runtime`."""
        fifo = f"{self.record}/runtime/{self.id}/exec.fifo"
        try:
            fd = posix.open(fifo, posix.O_WRONLY | posix.O_NONBLOCK | posix.O_CLOEXEC)
        except OSError:  # nobody reads any more: it was killed
            return False
        try:
            posix.unlink(fifo)
            self._began = time.monotonic()
            posix.write(fd, b"\0")
        finally:
            posix.close(fd)
        return True

    def _call(self, words: "list[str]") -> bytes:
        """Begin the keepalive; return what it says of crun's end."""
        self.line, theirs = _socket.socketpair()
        said, says = posix.pipe()
        above = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (theirs.fileno(), says)]
        theirs.close()
        posix.close(says)
        try:
            self.keepalive = posix.posix_spawn(
                "/bin/sh",
                ["/bin/sh", "-c", _KEEPALIVE, "sh", *words],
                posix.environ,
                file_actions=[
                    (posix.POSIX_SPAWN_DUP2, fd, 3 + number) for number, fd in enumerate(above)
                ],
                setsid=True,
                setsigmask=(),
                setsigdef=_SIGNALS,
            )
        finally:
            for fd in above:
                posix.close(fd)
        answer = posix.read(said, 16)
        posix.close(said)
        return answer

    # Its life

    def stay(self, give_over: "GiveOver") -> int:
        if (early := self.killed_early()) is not None and not self.pid:
            return early
        poller = select.poll()
        watched = {self.pidfd, self._woken, self._listener.fileno()}
        callers: dict[int, _socket.socket] = {}
        late: list[_socket.socket] = []
        for fd in watched:
            poller.register(fd, select.POLLIN)
        while True:
            for number in self._signals:
                self._pass_on(number)
            self._signals.clear()
            rest = None
            if self._ends_at and not self._killed_by:
                rest = max(0.0, self._ends_at - time.monotonic()) * 1e3
            ready = [fd for fd, _ in poller.poll(rest)]
            if not ready and rest is not None:
                self._kill()
            if self.pidfd in ready:
                status = self._reaped()
                self._end_keepalive()
                if self._killed_by:
                    return 128 + self._killed_by
                return status if status >= 0 else 128 - status
            if self._woken in ready:
                self._read_signals()
            if self._listener.fileno() in ready and (caller := self._accepted()):
                callers[caller.fileno()] = caller
                poller.register(caller.fileno(), select.POLLIN)
            for fd in callers.keys() & set(ready):
                poller.unregister(fd)
                if self._is_answered(caller := callers.pop(fd)):
                    caller.close()
                    continue
                if self._ends_at:
                    late.append(caller)  # it has been told to end: in seconds there is none
                    continue
                asking = [caller, *callers.values()]
                if status_after := self._hand_over(give_over, asking):
                    return status_after[0]
                caller.close()

    def _reaped(self) -> int:
        if self.content.get("tells_usage"):
            from scrun.client.tell_usage import reap

            return reap(self.pid, self._began)
        return posix.waitstatus_to_exitcode(posix.waitpid(self.pid, 0)[1])

    def _pass_on(self, number: int) -> None:
        """Pass a signal on; a second one that ends programs kills what does not handle it."""
        if number == _signal.SIGWINCH:
            return
        if number == _signal.SIGTERM:
            before, self._told_at = self._told_at, time.monotonic()
            if self._told_at < before + _TWICE:
                return
        if number in _FATAL:
            if not _handles(self.pid, number):
                if self._first:
                    self._kill()
                    return
                self._ends_at = time.monotonic() + _GRACE
            self._first = self._first or number
        _signal.pidfd_send_signal(self.pidfd, number)

    def _kill(self) -> None:
        self._killed_by = self._first
        _signal.pidfd_send_signal(self.pidfd, _signal.SIGKILL)

    def _hand_over(self, give_over: "GiveOver", asking: "list[_socket.socket]") -> "list[int]":
        """Give it to a supervisor, and be its anchor; return its exit status, or nothing."""
        stay = give_over(self, asking)
        if stay is None:
            return []
        self._listener.close()
        self._read_signals()
        return [stay(self._signals)]

    def killed_early(self) -> "int | None":
        """Return the exit status if a signal that ends programs has come before it ran."""
        self._read_signals()
        return next((128 + number for number in self._signals if number in _FATAL), None)

    def _accepted(self) -> "_socket.socket | None":
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return None
        caller = _socket.socket(fileno=fd)
        if peer_uid(caller) in (0, posix.geteuid()):
            return caller
        caller.close()
        return None

    def waiting(self) -> "list[_socket.socket]":
        """Return those who have called, and were not heard yet."""
        found = []
        while caller := self._accepted():
            found.append(caller)
        return found

    def _is_answered(self, caller: _socket.socket) -> bool:
        """Answer `state`, and whoever only looks whether somebody listens."""
        try:
            request = caller.recv(4096, _socket.MSG_PEEK | _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        asked = b"state\0" + self.id.encode()
        if request == len(asked).to_bytes(4, "big") + asked:
            from scrun.model.record import living_state, read_record

            try:
                caller.recv(4096)
                caller.sendall(b"\0" + living_state(read_record(self.record)))
            except OSError:
                pass  # it has gone
            return True
        return not request

    def _read_signals(self) -> None:
        try:
            while part := posix.read(self._woken, 256):
                self._signals += part
        except BlockingIOError:
            pass

    # Its end

    def _end_keepalive(self) -> None:
        """Nothing is left that it would have to remove."""
        if self.keepalive:
            posix.kill(self.keepalive, _signal.SIGKILL)
            posix.waitpid(self.keepalive, 0)
            self.keepalive = 0

    def remove(self) -> None:
        """Remove all there is of it; its program has ended, or never began."""
        if self.line is not None:
            self.line.close()
        if self.keepalive and self.pid == 0:  # crun may have left something
            posix.waitpid(self.keepalive, 0)
            self.keepalive = 0
        self._end_keepalive()
        if self._made:
            removed = f"@tmp{self._name}{posix.urandom(4).hex()}"
            try:
                posix.rename(self._made, f"{self.root}/{removed}")
                self._made = ""
                self._remove_tree(removed)
            except FileNotFoundError:
                pass  # somebody else has removed it
        if self.lock >= 0:
            posix.close(self.lock)
            self.lock = -1

    def _remove_tree(self, name: str) -> None:
        folder = posix.open(self.root, _FOLDER)
        try:
            _remove_folder(folder, name, _mount_of(folder), 0)
        except OSError:
            from scrun.client.images import discard

            try:
                discard(f"{self.root}/{name}")  # it is deep, or has files of subordinate users
            except (ScrunError, OSError):
                pass  # the next supervisor tries again
        finally:
            posix.close(folder)

    def let_go(self) -> None:
        if self._lease:
            try:
                posix.unlink(self._lease)
            except OSError:
                pass
            self._lease = ""
        _signal.set_wakeup_fd(-1)
        for name in PASSED_ON:
            _signal.signal(getattr(_signal, f"SIG{name}"), _signal.SIG_DFL)
        for fd in (self._woken, self._wakes):
            posix.close(fd)
        self._listener.close()


def _noted(number: int, frame: object) -> None:
    """Do nothing: `set_wakeup_fd` has written the number down."""


def _handles(pid: int, number: int) -> bool:
    """Do what `scrun.supervisor.shim.processes.handles` does, for crun."""
    masks = {}
    for line in contents(f"/proc/{pid}/status").splitlines():
        name, _, value = line.partition(b":")
        if name in (b"SigBlk", b"SigIgn", b"SigCgt"):
            masks[name] = int(value, 16)
    if masks.get(b"SigBlk", 0) >> (_signal.SIGSEGV - 1) & 1:
        del masks[b"SigBlk"]  # it is crun at work
    return any(mask >> (number - 1) & 1 for mask in masks.values())


def _become_subreaper() -> None:
    """Become the parent of what crun leaves (prctl(2)); ctypes would take 4 ms to import."""
    import _ctypes

    own = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
    prctl = _ctypes.dlsym(own, "prctl")
    if _ctypes.call_function(prctl, (_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)):
        raise OSError(22, "cannot become a subreaper")


def _started() -> int:
    """Return when this process started, as in `scrun.model.identity`."""
    return int(stat_fields("self")[19])


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _mount_of(folder: int) -> bytes:
    """Return the mount of a descriptor, as `scrun.core.trees` does."""
    return contents(f"/proc/self/fdinfo/{folder}").partition(b"mnt_id:")[2].split()[0]


def _remove(folder: int, mount: bytes, depth: int) -> None:
    """Remove all in a directory, without following links or entering mounts."""
    if _mount_of(folder) != mount or depth > _DEEPEST:
        raise OSError(18, "is not to be entered")
    with posix.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if not is_folder:
            posix.unlink(name, dir_fd=folder)
            continue
        try:
            posix.rmdir(name, dir_fd=folder)
        except OSError:  # it is not empty
            _remove_folder(folder, name, mount, depth)


def _remove_folder(parent: int, name: str, mount: bytes, depth: int) -> None:
    folder = posix.open(name, _FOLDER, dir_fd=parent)
    try:
        _remove(folder, mount, depth + 1)
    finally:
        posix.close(folder)
    posix.rmdir(name, dir_fd=parent)
