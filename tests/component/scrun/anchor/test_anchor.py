"""What `create` leaves behind: the client in C or a shell, its socket, signals, terminal."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from scrun.anchor.pid_file import PidFile
from scrun.native.build import build
from scrun.protocol.anchor import LOST, PASSED_ON
from tests import CHECKOUT
from tests.harness.nightly import nightly, often
from tests.harness.wait import wait_until

SIGNALS = [signal.Signals["SIG" + name] for name in PASSED_ON]
ALL_BUT_WINCH = [number for number in SIGNALS if number != signal.SIGWINCH]

# as scrun create: starts the anchor, closes what it has of it; then waits, as a subreaper does
CREATE = """
import ctypes, json, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
sys.path.insert(0, sys.argv[1])
asked = json.loads(sys.argv[2])
from scrun.anchor import shell as anchor
sys.executable = asked["python"] or sys.executable
sock = asked["sock"]
if asked["number"]:
    os.dup2(sock, asked["number"])
    os.close(sock)
    sock = asked["number"]
from scrun.anchor.pid_file import PidFile
file = PidFile(asked["pid_file"]) if asked["pid_file"] else None
left = anchor.AnchorProcess("c1", sock, file.lock if file else None, asked["terminal"])
pid = left.pid
if file:
    file.name_anchor(pid, left)
    file.publish()
    os.close(file.lock)
left.settle()
os.write(1, b"%d\\n" % pid)
os.write(1, b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
# as scrun exec of a program that ends while the anchor's maker has no processor
TOLD = """
import ctypes, os, signal, socket, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
sys.path.insert(0, sys.argv[1])
from scrun.anchor.shell import AnchorProcess
ours, theirs = socket.socketpair()
left = AnchorProcess("c1", theirs.detach(), None, None)
pid = left.pid
os.kill(left._maker, signal.SIGSTOP)
ours.sendall(b"7\\n")
deadline = time.monotonic() + 10
while open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[0] != "Z":
    assert time.monotonic() < deadline
    time.sleep(0.01)
os.kill(left._maker, signal.SIGCONT)
left.settle()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
# /bin/sh is another shell for this process and its children only
WITH_SHELL = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
BLOCKING = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))
os.execv(sys.argv[1], sys.argv[1:])
"""


class Left:
    """An anchor, and the supervisor's end of its socket."""

    def __init__(self, create: "subprocess.Popen[bytes]", line: socket.socket) -> None:
        assert create.stdout is not None
        self.line = line
        self._create = create
        self._told = create.stdout
        self._heard = b""
        self.pid = int(self._told.readline() or 0)

    def ready(self) -> "Left":
        """Wait until it has its traps, as it has long before there is a job."""
        wanted = sum(1 << (number - 1) for number in SIGNALS)
        wait_until("traps", lambda: int(self._status("SigCgt"), 16) & wanted == wanted)
        self.reads()
        return self

    def reads(self) -> None:
        """Wait until it sleeps: in the moment before, a shell has looked for signals already."""
        wait_until("sleep", lambda: self.stat[0] == "S")

    def _status(self, name: str) -> str:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
        raise AssertionError(name)

    @property
    def socket(self) -> str:
        """Its end of the pair, as /proc shows it."""
        return os.readlink(f"/proc/{self.pid}/fd/3")

    @property
    def held(self) -> set[str]:
        """What it has open. (While it reads, a shell moves descriptor 0 out of the way.)"""
        place = f"/proc/{self.pid}/fd"
        self.reads()
        return {os.readlink(f"{place}/{name}") for name in os.listdir(place)}

    @property
    def stat(self) -> list[str]:
        """proc(5), /proc/PID/stat, from the third field, the state, on."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    def passes_on(self, number: int) -> str:
        """Send it a signal while it reads; return the name of the one that it tells of."""
        self.reads()
        self.kill(number)
        return f"SIG{self.next()}"

    def next(self) -> str:
        """The next line that it says; "" when it is dead."""
        while b"\n" not in self._heard:
            data = self.line.recv(4096)
            if not data:
                return ""
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def end(self, status: int) -> int:
        self.line.sendall(b"%d\n" % status)
        return self.status()

    def status(self) -> int:
        """How it ended, as its parent saw it."""
        status = int(self._told.readline())
        assert self._create.wait(10) == 0
        return status


class Pty(NamedTuple):
    """A terminal; the test may close its master."""

    master: int
    slave: int
    name: str


Leave = Callable[..., Left]


@pytest.fixture(scope="module")
def client() -> Iterator[str]:
    """The client, which is the anchor's program where it could be built; for every user."""
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        assert not build(Path(place, "scrun"))
        yield f"{place}/scrun"


@pytest.fixture(params=["client", "dash", nightly("bash")])
def shell(request: pytest.FixtureRequest) -> list[str]:
    """What comes before a command whose /bin/sh is to be this shell."""
    if request.param == "client":
        return []
    path = shutil.which(request.param)
    assert path is not None
    real = os.path.realpath("/bin/sh")
    unshare = ["unshare", "--mount", "--propagation", "private", "--"]
    return [*unshare, "/bin/sh", "-c", WITH_SHELL, "sh", os.path.realpath(path), real]


@pytest.fixture
def errors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IO[bytes]]:
    """What the processes say that leave anchors behind."""
    with (tmp_path_factory.mktemp("errors") / "errors").open("w+b") as file:
        yield file


@pytest.fixture
def leave(shell: list[str], errors: IO[bytes], client: str) -> Iterator[Leave]:
    """Makes anchors; they end with the test."""
    with contextlib.ExitStack() as stack:

        def make(
            *before: str,
            pid_file: Path | None = None,
            terminal: str | None = None,
            number: int = 0,
            inherited: tuple[int, ...] = (),
            interpreter: str = "",
        ) -> Left:
            ours, theirs = socket.socketpair()
            ours.settimeout(5)
            asked = {
                "sock": theirs.fileno(),
                "number": number,
                "pid_file": pid_file and str(pid_file),
                "terminal": terminal,
                "python": interpreter,
            }
            python = [
                sys.executable,
                "-I",
                "-S",
                "-c",
                CREATE,
                str(CHECKOUT),
                json.dumps(asked),
            ]
            if not shell:
                python[1:1] = ["-X", f"client={interpreter or client}"]
            with theirs:
                create = subprocess.Popen(
                    [*shell, *before, *python],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    pass_fds=[theirs.fileno(), *inherited],
                )
            stack.enter_context(create)  # waits for it
            stack.callback(ours.close)  # and this is what ends the anchor, and it
            return Left(create, ours)

        yield make


def bash_restarts_its_read(request: pytest.FixtureRequest) -> None:
    """Mark a test that needs every SIGWINCH (bash, lib/sh and sig.c: set_signal_handler)."""
    if request.node.callspec.params["shell"] == "bash":
        reason = "bash has SA_RESTART for SIGWINCH: the trap waits for the next signal"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))


@pytest.mark.parametrize("status", [0, 7, 255])
def test_exits_with_the_status(leave: Leave, status: int) -> None:
    """Which may be there before it looks."""
    assert leave().end(status) == status


@pytest.mark.parametrize("ready", [True, False])
def test_supervisor_dies(leave: Leave, ready: bool) -> None:
    left = leave()
    if ready:
        left.ready()
    left.line.close()
    assert left.status() == LOST == 125


def test_a_line_without_its_end_is_no_status(leave: Leave) -> None:
    left = leave().ready()
    left.line.sendall(b"0")
    left.line.close()
    assert left.status() == LOST


@pytest.mark.parametrize("number", SIGNALS, ids=PASSED_ON)
def test_passes_a_signal_on(
    leave: Leave, number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    if number == signal.SIGWINCH:
        bash_restarts_its_read(request)
    left = leave().ready()
    for _ in range(3):
        assert left.passes_on(number) == number.name
    assert left.end(7) == 7


def test_many_signals_at_once(leave: Leave) -> None:
    left = leave().ready()
    for number in ALL_BUT_WINCH:
        left.kill(number)
    assert {"SIG" + left.next() for _ in ALL_BUT_WINCH} == {n.name for n in ALL_BUT_WINCH}
    assert left.end(0) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGWINCH])
def test_a_signal_and_the_end_at_the_same_moment(leave: Leave, number: int) -> None:
    for _ in range(often(5, 20)):
        left = leave().ready()
        left.kill(number)
        left.line.sendall(b"9\n")
        with contextlib.suppress(ProcessLookupError):
            left.kill(number)
        assert left.status() == 9


def test_signals_when_the_supervisor_has_died(leave: Leave) -> None:
    for _ in range(20):
        left = leave().ready()
        left.kill(signal.SIGTERM)
        left.line.close()
        assert left.status() == LOST


def test_is_killed(leave: Leave) -> None:
    left = leave().ready()
    left.kill(signal.SIGKILL)
    assert left.next() == ""
    assert left.status() == -signal.SIGKILL


@pytest.mark.parametrize("names", ["INT HUP", " ".join(PASSED_ON), "PIPE"])
def test_signals_that_the_caller_ignores(leave: Leave, names: str) -> None:
    """As under nohup, or as a job of a shell that is not interactive."""
    left = leave("/bin/sh", "-c", f"trap '' {names}; exec \"$@\"", "sh").ready()
    for number in ALL_BUT_WINCH:
        assert left.passes_on(number) == number.name
    assert left.end(0) == 0


def test_signals_that_the_caller_blocks(leave: Leave) -> None:
    left = leave(sys.executable, "-I", "-S", "-c", BLOCKING).ready()
    for number in ALL_BUT_WINCH:
        assert left.passes_on(number) == number.name
    assert left.end(0) == 0


def test_sigpipe_does_not_end_it(leave: Leave) -> None:
    left = leave().ready()
    left.kill(signal.SIGPIPE)
    assert left.end(5) == 5


def test_an_idle_anchor_does_not_wake(leave: Leave) -> None:
    left = leave().ready()

    def switches() -> str:
        return left._status("voluntary_ctxt_switches")

    wait_until("sleep", lambda: left.stat[0] == "S")
    before = switches()
    time.sleep(0.3)
    assert switches() == before


def test_holds_nothing_but_its_socket(leave: Leave, tmp_path: Path) -> None:
    ends = os.pipe()
    with (tmp_path / "open").open("w") as file, socket.socket() as other:
        inherited = (ends[1], file.fileno(), other.fileno())
        left = leave(inherited=inherited).ready()
    assert left.held == {"/dev/null", left.socket}
    for end in ends:
        os.close(end)
    assert left.end(0) == 0


@pytest.mark.parametrize("number", [3, 5, 9, 200])
@pytest.mark.parametrize("with_file", [False, True], ids=["", "pid-file"])
def test_whatever_numbers_the_caller_has(
    leave: Leave, tmp_path: Path, number: int, *, with_file: bool
) -> None:
    pid_file = tmp_path / "pid" if with_file else None
    left = leave(number=number, pid_file=pid_file).ready()
    held = left.held
    if pid_file:  # it was made without a name, which /proc goes on to say
        assert os.path.samestat(os.stat(f"/proc/{left.pid}/fd/9"), pid_file.stat())
        held.remove(os.readlink(f"/proc/{left.pid}/fd/9"))
    assert held == {"/dev/null", left.socket}
    left.kill(signal.SIGUSR1)
    assert left.next() == "USR1"
    assert left.end(4) == 4


def test_has_no_environment(leave: Leave) -> None:
    left = leave().ready()
    assert Path(f"/proc/{left.pid}/environ").read_bytes() == b""
    assert left.end(0) == 0


def test_its_name(leave: Leave) -> None:
    left = leave().ready()
    assert Path(f"/proc/{left.pid}/cmdline").read_bytes().startswith(b"scrun-anchor c1\0")


def test_leads_a_session_of_its_own(leave: Leave) -> None:
    """A hang-up of the terminal on which `create` was typed does not end it."""
    left = leave().ready()
    assert int(left.stat[3]) == left.pid


KINDS = ("mnt", "pid", "ipc", "uts", "net", "cgroup")
# what an engine does to work with a container's files; prints what it finds in the root
LOOK = """
import os, sys
sys.path.insert(0, sys.argv[1])
from scrun.core import namespaces
fds = [os.open(path, os.O_RDONLY) for path in sys.argv[2:]]
for fd in fds:
    namespaces.enter(fd, 0)
print(*sorted(os.listdir("/")))
try:
    open("/f", "w")
except OSError as error:
    print(error.strerror)
"""


def kinds_of(pid: int) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in (*KINDS, "user")}


def seen_by_an_engine(pid: int, *kinds: str) -> list[str]:
    paths = [f"/proc/{pid}/ns/{kind}" for kind in kinds]
    program = [sys.executable, "-I", "-S", "-c", LOOK, str(CHECKOUT), *paths]
    return subprocess.run(program, capture_output=True, text=True, check=True).stdout.splitlines()


def leads_nowhere(left: Left) -> None:
    """Check that there is nothing of the host where its pid leads to."""
    for name in ("root", "cwd"):
        assert os.listdir(f"/proc/{left.pid}/{name}") == ["proc"]
    for kind, mine in kinds_of(os.getpid()).items():
        assert (kinds_of(left.pid)[kind] != mine) is (kind != "user")
    mounts = Path(f"/proc/{left.pid}/mountinfo").read_text().splitlines()
    assert [line.partition(" - ")[2].split()[0] for line in mounts] == ["tmpfs", "proc"]
    assert seen_by_an_engine(left.pid, "mnt", "pid") == ["proc", "Read-only file system"]
    processes = os.listdir(f"/proc/{left.pid}/root/proc")
    assert [name for name in processes if name.isdigit()] == ["1"]
    interfaces = Path(f"/proc/{left.pid}/net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]


def test_its_pid_does_not_lead_to_the_host(leave: Leave) -> None:
    left = leave().ready()
    leads_nowhere(left)
    assert left.end(3) == 3


def test_the_pid_of_one_with_a_terminal_does_not_either(leave: Leave, terminal: Pty) -> None:
    left = leave(terminal=terminal.name).ready()
    leads_nowhere(left)
    assert left.end(3) == 3


USER = ("setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups")


def test_an_ordinary_user_has_it_in_a_user_namespace(leave: Leave) -> None:
    left = leave(*USER).ready()
    mine = kinds_of(os.getpid())
    assert all(kinds_of(left.pid)[kind] != mine[kind] for kind in mine)
    assert seen_by_an_engine(left.pid, "user", "mnt") == ["proc", "Read-only file system"]
    assert os.listdir(f"/proc/{left.pid}/root") == os.listdir(f"/proc/{left.pid}/cwd") == ["proc"]
    assert Path(f"/proc/{left.pid}/uid_map").read_text().split() == ["12345", "12345", "1"]
    assert left.passes_on(signal.SIGUSR1) == "SIGUSR1"
    assert left.end(3) == 3


WITHIN_LIMITS = ("unshare", "--user", "--map-root-user", "--", "sh", "-c")


def test_an_ordinary_user_where_there_are_no_user_namespaces(leave: Leave) -> None:
    """Nobody with the same rights could enter the namespaces of any process."""
    limit = "echo 0 >/proc/sys/user/max_user_namespaces"
    bare = "setpriv --bounding-set=-all --inh-caps=-all"
    left = leave(*WITHIN_LIMITS, f'{limit}; exec {bare} "$@"', "sh").ready()
    assert kinds_of(left.pid)["mnt"] == kinds_of(left._create.pid)["mnt"]
    assert left.passes_on(signal.SIGUSR1) == "SIGUSR1"
    assert left.end(3) == 3


def test_a_limit_of_namespaces_is_an_error(leave: Leave, errors: IO[bytes]) -> None:
    """Whoever has the rights to enter namespaces gets no anchor in those of the host."""
    limit = "echo 0 >/proc/sys/user/max_mnt_namespaces"
    left = leave(*WITHIN_LIMITS, f'{limit}; exec "$@"', "sh")
    assert left.pid == 0
    assert left._create.wait(10) == 1
    errors.seek(0)
    assert b"make a process for the engine to watch: unshare: No space left" in errors.read()


def test_it_is_told_its_status_before_it_is_looked_at() -> None:
    command = [sys.executable, "-I", "-S", "-c", TOLD, str(CHECKOUT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (7, "")


def test_a_program_that_is_missing_is_an_error(
    leave: Leave, errors: IO[bytes], terminal: Pty
) -> None:
    left = leave(terminal=terminal.name, interpreter="/no/python")
    assert left.pid == 0
    assert left._create.wait(10) == 1
    assert left.next() == ""
    errors.seek(0)
    assert b"to watch: /no/python: No such file or directory" in errors.read()


def test_an_inherited_descriptor_above_the_limit(leave: Leave) -> None:
    lower = "import os, resource, sys; os.dup2(1, 900); "
    lower += "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); "
    lower += "os.execv(sys.argv[1], sys.argv[1:])"
    left = leave(sys.executable, "-I", "-S", "-c", lower).ready()
    assert left.held == {"/dev/null", left.socket}
    assert left.end(4) == 4


def is_locked(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_pid_file_is_locked_for_its_life(leave: Leave, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    left = leave(pid_file=path).ready()
    assert path.read_text() == str(left.pid)
    assert is_locked(path)
    left.kill(signal.SIGTERM)
    assert left.next() == "TERM"
    assert is_locked(path)
    assert left.end(0) == 0
    assert not is_locked(path)
    assert path.read_text() == str(left.pid)
    assert os.listdir(tmp_path) == ["pid"]


@pytest.mark.parametrize("how", ["killed", "lost"])
def test_pid_file_is_unlocked_however_it_ends(leave: Leave, tmp_path: Path, how: str) -> None:
    path = tmp_path / "pid"
    left = leave(pid_file=path).ready()
    if how == "killed":
        left.kill(signal.SIGKILL)
    else:
        left.line.close()
    left.status()
    assert not is_locked(path)


@pytest.mark.covers("scrun(1) CREATE OPTIONS: --pid-file")
def test_pid_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    path.write_text("an older one")
    with path.open() as older:
        file = PidFile(str(path))
        assert path.read_text() == "an older one"
        file.write(4711)
        file.publish()
        assert older.read() == "an older one"  # not written into, but replaced
    assert path.read_text() == "4711"
    assert is_locked(path)
    file.discard()
    assert path.read_text() == "4711"
    os.close(file.lock)
    assert os.listdir(tmp_path) == ["pid"]


def test_pid_file_is_never_seen_in_part(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    reader = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-c",
            "import sys\n"
            "seen = set()\n"
            "while True:\n"
            "    try:\n"
            "        seen.add(open(sys.argv[1]).read())\n"
            "    except FileNotFoundError:\n"
            "        pass\n"
            "    if seen & {'999'}:\n"
            "        break\n"
            "sys.exit(not seen <= {str(pid) for pid in range(700, 1000)})\n",
            str(path),
        ]
    )
    with reader:
        for pid in range(700, 1000):
            file = PidFile(str(path))
            file.write(pid)
            file.publish()
            os.close(file.lock)
        assert reader.wait(20) == 0


def test_pid_file_is_not_published(tmp_path: Path) -> None:
    file = PidFile(str(tmp_path / "pid"))
    file.discard()
    os.close(file.lock)
    assert os.listdir(tmp_path) == []


def test_pid_file_is_readable_for_all(tmp_path: Path) -> None:
    mask = os.umask(0o077)
    try:
        file = PidFile(str(tmp_path / "pid"))
        file.write(1)
        file.publish()
    finally:
        os.umask(mask)
    os.close(file.lock)
    assert (tmp_path / "pid").stat().st_mode & 0o777 == 0o644


def test_pid_file_in_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PidFile(str(tmp_path / "missing" / "pid"))


@pytest.fixture
def terminal() -> Iterator[Pty]:
    master, slave = os.openpty()
    yield Pty(master, slave, os.ttyname(slave))
    os.close(slave)
    with contextlib.suppress(OSError):
        os.close(master)


def test_leads_the_session_of_its_terminal(leave: Leave, terminal: Pty) -> None:
    left = leave(terminal=terminal.name).ready()
    _, _, group, session, device, foreground = left.stat[:6]
    assert [int(group), int(session), int(foreground)] == [left.pid] * 3
    number = os.fstat(terminal.slave).st_rdev
    assert int(device) == (os.major(number) << 8 | os.minor(number))
    assert left.held == {"/dev/null", left.socket}  # it does not hold the terminal open
    assert left.end(0) == 0


def test_hears_a_change_of_size(leave: Leave, terminal: Pty) -> None:
    left = leave(terminal=terminal.name).ready()
    for rows in (24, 25, 26):
        fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
        assert left.next() == "WINCH"
    assert left.end(0) == 0


def test_supervisor_dies_before_it_has_read_all(leave: Leave, terminal: Pty) -> None:
    """Then the socket does not end, it is reset."""
    left = leave(terminal=terminal.name).ready()
    left.kill(signal.SIGUSR1)
    assert left.line.recv(1) == b"U"  # and the rest of the line stays
    left.line.close()
    assert left.status() == LOST


def test_hears_that_the_terminal_was_hung_up(leave: Leave, terminal: Pty) -> None:
    left = leave(terminal=terminal.name).ready()
    os.close(terminal.master)
    assert left.next() == "HUP"
    assert left.end(129) == 129


def test_hears_what_is_typed(leave: Leave, terminal: Pty) -> None:
    """As long as the container's side has not made the terminal raw."""
    left = leave(terminal=terminal.name).ready()
    for typed, name in ((b"\x03", "INT"), (b"\x1c", "QUIT")):
        os.write(terminal.master, typed)
        assert left.next() == name
    assert left.end(0) == 0


def test_terminal_of_a_caller_that_ignores_hangups(leave: Leave, terminal: Pty) -> None:
    before = ("/bin/sh", "-c", "trap '' HUP INT; exec \"$@\"", "sh")
    left = leave(*before, terminal=terminal.name).ready()
    os.close(terminal.master)
    assert left.next() == "HUP"
    assert left.end(0) == 0
