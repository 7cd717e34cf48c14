"""The supervisor's socket, as whoever may connect to it can misuse it.

The supervisor has other containers to serve: whatever one connection does is that one's matter.
"""

import contextlib
import errno
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.paths import OWN_LOG
from scrun.protocol import wire
from scrun.supervisor.keeper.main import ALL, END
from tests import CHECKOUT
from tests.harness import users
from tests.harness.bundle import make_config, make_rootfs, write_bundle
from tests.harness.installation import importable
from tests.harness.processes import descendants, peer
from tests.harness.program import run_program
from tests.harness.wait import wait_until, wait_while

NAME = "@x"
NOTHING = CHECKOUT / "docs" / "examples" / "plugin-none"
NOBODY = [b"state", b"nobody"]


class Supervisor:
    """A supervisor in the foreground, alone under its root directory."""

    def __init__(
        self, base: Path, *before: str, idle_timeout: float = 60, program: str | None = None
    ) -> None:
        self.root = base / "root"
        self.root.mkdir(mode=0o755, exist_ok=True)
        self.config = base / "scrun.toml"
        self.config.write_text(f'engine = "local"\nidle_timeout = {idle_timeout}\n')
        self._said = base / "said"
        packages = importable(NOTHING, base / "packages")
        how = ["-m", "scrun.supervisor"] if program is None else ["-c", program]
        command = [sys.executable, *how, "--root", str(self.root), "--name", NAME]
        with self._said.open("wb") as said:
            self.process = subprocess.Popen(
                [*before, *command],
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=CHECKOUT,
                env={"PATH": users.PATH, "SCRUN_CONFIG": str(self.config), "PYTHONPATH": packages},
            )
        wait_until("socket", self._listens)
        self.serves()

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.said
        with contextlib.suppress(OSError):
            wire.connect(str(self.root), NAME).close()
            return True
        return False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def said(self) -> str:
        """What it wrote; in the foreground that is nothing but the traceback of its end."""
        return self._said.read_text()

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def at_rest(self) -> int:
        """How many descriptors it has when the connections so far are closed."""
        seen: list[int] = []

        def steady() -> bool:
            seen.append(self.descriptors)
            time.sleep(0.02)
            return len(seen) > 4 and len(set(seen[-4:])) == 1

        wait_until("rest", steady)
        return seen[-1]

    def connect(self) -> socket.socket:
        sock = socket.socket(fileno=wire.connect(str(self.root), NAME).detach())
        sock.settimeout(20)
        return sock

    def send(self, data: bytes, fds: list[int] | None = None) -> bytes:
        """Send bytes, and return all that comes back; b"" when it just hangs up."""
        with self.connect() as sock, contextlib.suppress(ConnectionError):
            sent = socket.send_fds(sock, [data], fds or [])
            if sent < len(data):
                sock.sendall(data[sent:])
            return everything(sock)
        return b""

    def ask(self, *fields: bytes, fds: list[int] | None = None) -> bytes:
        return self.send(wire.frame(list(fields)), fds)

    def create(self, container: bytes, cwd: bytes, *, fds: list[int] | None = None) -> bytes:
        """Ask for a container of the bundle in `cwd`, as `create` does."""
        words = [b"create", container]
        fields = [b"create", b"%d" % os.getpid(), b"22", cwd, b"%d" % len(words), *words]
        environment = [b"SCRUN_CONFIG=" + os.fsencode(self.config), b"PATH=/usr/bin:/bin"]
        data = wire.frame([*fields, *environment]) + b"%d\n" % os.getpid()
        if fds is not None:
            return self.send(data, fds)
        ours, anchor = socket.socketpair()
        with ours, anchor, open(os.devnull, "r+b") as null:
            return self.send(data, [null.fileno()] * 3 + [anchor.fileno()])

    def serves(self) -> None:
        """Check that it is there and does its work."""
        answer = self.ask(*NOBODY)
        assert self.process.poll() is None, self.said
        assert answer[:1] == b"\1"
        assert b"does not exist" in answer

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


def listed(root: Path) -> list[str]:
    """What is in a root directory, but for the mark that somebody has looked for the dead."""
    return [name for name in os.listdir(root) if name != "@looked"]


def everything(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that every user may enter, with a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="scrun-server-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@contextlib.contextmanager
def running(
    base: Path, *before: str, idle_timeout: float = 60, program: str | None = None
) -> Iterator[Supervisor]:
    supervisor = Supervisor(base, *before, idle_timeout=idle_timeout, program=program)
    with supervisor.process as process:
        try:
            yield supervisor
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def supervisor(base: Path) -> Iterator[Supervisor]:
    with running(base) as started:
        yield started


@pytest.fixture
def undisturbed(supervisor: Supervisor) -> Iterator[Supervisor]:
    """One that serves, and has no descriptor more, after whatever the test has done to it."""
    before = supervisor.at_rest()
    yield supervisor
    supervisor.serves()
    wait_until("descriptors closed", lambda: supervisor.descriptors == before)


@pytest.fixture
def bundle(base: Path) -> Path:
    make_rootfs(base / "rootfs")
    return write_bundle(base / "b", make_config(["true"], str(base / "rootfs")))


def test_unknown_container(supervisor: Supervisor) -> None:
    for operation in ([b"state"], [b"start"], [b"kill", b"TERM"], [b"delete", b""]):
        name, *rest = operation
        answer = supervisor.ask(name, b"nobody", *rest)
        assert answer[:1] == b"\1"
        assert b"does not exist" in answer
    assert supervisor.ask(b"delete", b"nobody", b"1") == b"\0"


def test_requests_that_are_none(supervisor: Supervisor) -> None:
    for fields in ([b""], [b"", b""], [b"frobnicate", b"x"], [b"\xff\xfe"]):
        answer = supervisor.ask(*fields)
        assert answer[:1] == b"\1"
        assert b"unknown request" in answer
    for name in (b"", b".", b"..", b"../x", b"/etc", b"@x", b"a b", b"\xff", b"x" * 300):
        for fields in ([b"state"], [b"delete", b"1"]):
            answer = supervisor.ask(fields[0], name, *fields[1:])
            assert answer[:1] == b"\1"
            assert b"invalid container id" in answer
    assert supervisor.root.is_dir()
    supervisor.serves()


def test_what_is_no_frame(supervisor: Supervisor) -> None:
    for data in (
        b"",
        b"\0",
        b"\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 1000,
        b"\0\0\0\x10state",
        (wire.LIMIT - 3).to_bytes(4, "big") + b"state",
        wire.LIMIT.to_bytes(4, "big"),
    ):
        with supervisor.connect() as sock:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                assert everything(sock) == b""
    supervisor.serves()


def test_a_frame_that_is_too_long_is_not_waited_for(supervisor: Supervisor) -> None:
    began = time.monotonic()
    assert supervisor.send(b"\x7f\xff\xff\xff" + b"x" * 100) == b""
    assert time.monotonic() - began < 5
    supervisor.serves()


def test_a_large_frame(supervisor: Supervisor) -> None:
    answer = supervisor.ask(b"state", b"x" * (2 << 20))
    assert answer[:1] == b"\1"
    supervisor.serves()


def test_more_than_a_frame(supervisor: Supervisor) -> None:
    """One connection has one request; what follows does not become a second one."""
    supervisor.send(wire.frame(NOBODY) * 3)
    supervisor.serves()


def test_request_in_single_bytes(supervisor: Supervisor) -> None:
    with supervisor.connect() as sock:
        for byte in wire.frame(NOBODY):
            sock.sendall(bytes([byte]))
            time.sleep(0.002)
        assert everything(sock)[:1] == b"\1"


def test_silence_stops_nobody(supervisor: Supervisor) -> None:
    with contextlib.ExitStack() as stack:
        for part in (b"", b"\0\0", b"\0\0\0\x0cstate", wire.frame(NOBODY)[:-1]) * 5:
            stack.enter_context(supervisor.connect()).sendall(part)
        began = time.monotonic()
        for _ in range(20):
            supervisor.serves()
        assert time.monotonic() - began < 5
    supervisor.serves()


def test_half_a_request_is_not_waited_for(supervisor: Supervisor) -> None:
    before = supervisor.at_rest()
    began = time.monotonic()
    with supervisor.connect() as sock:
        sock.sendall(wire.frame(NOBODY)[:-1])
        assert everything(sock) == b""
        assert 9 < time.monotonic() - began < 20
        wait_until("connection closed", lambda: supervisor.descriptors == before)
    supervisor.serves()


def test_callers_that_do_not_wait_for_the_answer(undisturbed: Supervisor) -> None:
    for _ in range(50):
        with undisturbed.connect() as sock:
            sock.sendall(wire.frame(NOBODY))
            # a reset instead of an orderly end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_many_at_once(undisturbed: Supervisor) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(undisturbed.connect()) for _ in range(300)]
        for sock in socks:
            sock.sendall(wire.frame(NOBODY))
        answers = {everything(sock)[:1] for sock in socks}
    assert answers == {b"\1"}


def test_missing_fields(supervisor: Supervisor) -> None:
    for text in (b"state", b"start", b"kill", b"kill nobody", b"delete", b"delete nobody"):
        assert supervisor.ask(*text.split())[:1] == b"\1"
    supervisor.serves()


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [b"1"],
        [b"1", b"22", b"/"],
        [b"x", b"22", b"/", b"0"],
        [b"1", b"99", b"/", b"0"],
        [b"1", b"22", b"/", b"many"],
        [b"1", b"22", b"/", b"0"],
        [b"1", b"22", b"/", b"-3", b"create", b"c1"],
        [b"1", b"22", b"/", b"9999999999999999999999", b"create", b"c1"],
        [b"1", b"22", b"/", b"1", b"--no-such-option"],
        [b"1", b"22", b"/", b"1", b"--version"],
        [b"1", b"22", b"/", b"2", b"create", b"../c1"],
        [b"1", b"22", b"/", b"2", b"create", b"c1", b"SCRUN_CONFIG=/nonexistent"],
        [b"1", b"22", b"/", b"2", b"create", b"c1", b"SCRUN_CONFIG=/etc/passwd"],
        [b"1", b"22", b"/", b"2", b"create", b"c1", b"no equals sign", b"=", b"SCRUN_ENGINE=no"],
    ],
)
def test_create_that_makes_no_sense(undisturbed: Supervisor, fields: list[bytes]) -> None:
    ours, anchor = socket.socketpair()
    with ours, anchor, open(os.devnull, "r+b") as null:
        fds = [null.fileno()] * 3 + [anchor.fileno()]
        answer = undisturbed.ask(b"create", *fields, fds=fds)
    assert answer[:1] == b"\1"
    assert len(answer) > 1
    assert listed(undisturbed.root) == [NAME]


@pytest.mark.parametrize("bundle", [b"/nonexistent", b"/", b"/tmp/\xff", b"relative", b""])
def test_create_of_a_bundle_that_is_none(undisturbed: Supervisor, bundle: bytes) -> None:
    answer = undisturbed.create(b"c1", bundle)
    assert answer[:1] == b"\1"
    assert undisturbed.ask(b"state", b"c1")[:1] == b"\1"
    wait_until("record removed", lambda: listed(undisturbed.root) == [NAME])
    assert descendants(undisturbed.pid) == []


@contextlib.contextmanager
def asking(supervisor: Supervisor, bundle: Path, *variables: bytes) -> Iterator[socket.socket]:
    """Ask for a container that runs nowhere, and do not say yet which process its anchor is.

    The descriptors are beside the last byte, so nothing that follows is read with the request.
    """
    words = [b"--engine=none", b"--stager=none", b"create", b"c1"]
    caller, there = b"%d" % os.getpid(), os.fsencode(bundle)
    fields = [b"create", caller, b"22", there, b"%d" % len(words), *words, *variables]
    data = wire.frame(fields)
    ours, anchor = socket.socketpair()
    with supervisor.connect() as sock, ours, anchor, open(os.devnull, "r+b") as null:
        sock.sendall(data[:-1])
        socket.send_fds(sock, [data[-1:]], [null.fileno()] * 3 + [anchor.fileno()])
        yield sock


def test_the_anchor_of_a_create_may_be_named_late(supervisor: Supervisor, bundle: Path) -> None:

    def state() -> dict[str, object]:
        answer = supervisor.ask(b"state", b"c1")
        return json.loads(answer[1:]) if answer[:1] == b"\0" else {}

    with asking(supervisor, bundle) as sock:
        wait_until("a record", state)
        assert state()["status"] == "creating"
        assert not state().get("pid")
        sock.sendall(b"%d\n" % os.getpid())
        assert everything(sock) == b"\0"
        assert (state()["status"], state()["pid"]) == ("created", os.getpid())
        sock.sendall(b"\0")
    assert supervisor.ask(b"delete", b"c1", b"1") == b"\0"


def test_a_create_that_dies_as_its_container_becomes_created(
    supervisor: Supervisor, bundle: Path
) -> None:
    for number in range(40):
        with asking(supervisor, bundle) as sock:
            sock.sendall(b"%d\n" % os.getpid())
            time.sleep(number * 2e-4)
            sock.close()
            wait_until("record removed", lambda: listed(supervisor.root) == [NAME])
    supervisor.serves()


@pytest.mark.parametrize("name", [b"0\n", b"-1\n", b"x\n", b"\n", b"4194305\n", b"1"])
def test_an_anchor_that_has_no_pid(supervisor: Supervisor, bundle: Path, name: bytes) -> None:
    with asking(supervisor, bundle) as sock:
        sock.sendall(name)
        sock.shutdown(socket.SHUT_WR)
        assert b"its create was ended" in everything(sock)
    wait_until("record removed", lambda: listed(supervisor.root) == [NAME])
    supervisor.serves()


def test_an_answer_is_whole_although_more_was_said(supervisor: Supervisor, base: Path) -> None:
    """A socket that is closed with something unread is an error at the other end."""
    supervisor.process.send_signal(signal.SIGSTOP)
    wrong = b"SCRUN_CONFIG=/nonexistent"
    with asking(supervisor, base, wrong) as sock:
        sock.sendall(b"%d\n" % os.getpid())
        supervisor.process.send_signal(signal.SIGCONT)
        assert everything(sock)[:1] == b"\1"
    supervisor.serves()


@pytest.mark.parametrize("kind", ["file", "null", "pipe", "listener"])
def test_create_with_an_anchor_that_is_none(
    undisturbed: Supervisor, base: Path, kind: str
) -> None:
    with contextlib.ExitStack() as stack:
        fd: int
        if kind == "file":
            fd = stack.enter_context((base / "file").open("w+b")).fileno()
        elif kind == "null":
            fd = stack.enter_context(open(os.devnull, "r+b")).fileno()
        elif kind == "pipe":
            fd, other = os.pipe()
            stack.callback(os.close, fd)
            stack.callback(os.close, other)
        else:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(base / "listener"))
            listener.listen()
            fd = listener.fileno()
        answer = undisturbed.create(b"c1", b"/nonexistent", fds=[fd] * 4)
    assert answer[:1] == b"\1"
    wait_until("record removed", lambda: listed(undisturbed.root) == [NAME])


@pytest.mark.parametrize("count", [0, 1, 3, 5, 6, 100, 253])
def test_create_with_too_few_or_too_many_descriptors(undisturbed: Supervisor, count: int) -> None:
    with open(os.devnull, "r+b") as null:
        answer = undisturbed.create(b"c1", b"/", fds=[null.fileno()] * count)
    assert answer[:1] == (b"\1" if count < 4 else b"")
    assert listed(undisturbed.root) == [NAME]


def test_descriptors_beside_other_requests(undisturbed: Supervisor) -> None:
    with open(os.devnull, "r+b") as null:
        for count in (1, 4, 5) * 20:
            for fields in (NOBODY, [b"frobnicate"], [b"delete", b"nobody", b"1"]):
                undisturbed.ask(*fields, fds=[null.fileno()] * count)


def test_descriptors_beside_every_part_of_a_request(undisturbed: Supervisor) -> None:
    with (
        open(os.devnull, "r+b") as null,
        undisturbed.connect() as sock,
        contextlib.suppress(ConnectionError),
    ):
        for byte in wire.frame(NOBODY):
            socket.send_fds(sock, [bytes([byte])], [null.fileno()] * 40)  # more than MOST in all
            time.sleep(0.01)
        assert everything(sock) == b""


def test_descriptors_in_half_a_request(supervisor: Supervisor) -> None:
    before = supervisor.at_rest()
    with open(os.devnull, "r+b") as null, supervisor.connect() as sock:
        socket.send_fds(sock, [b"\0\0"], [null.fileno()] * 4)
        wait_until("received", lambda: supervisor.descriptors == before + 5)
    wait_until("descriptors closed", lambda: supervisor.descriptors == before)
    supervisor.serves()


def test_a_keeper_that_has_given_all_is_told_to_end(undisturbed: Supervisor) -> None:
    """What it has grows old: it may not call another successor when this one dies."""
    keeper, line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with keeper, undisturbed.connect() as sock:
        with line:
            socket.send_fds(sock, [wire.frame([b"adopt"])], [line.fileno()])
        keeper.settimeout(20)
        assert keeper.recv(100) == ALL
        keeper.send(b"\0\0")  # that was all
        assert keeper.recv(100) == END
        assert everything(sock) == b"\0"


def test_no_descriptors_left(base: Path) -> None:
    """More connections than it can hold: some wait, none ends it."""
    with running(base, "prlimit", "--nofile=48:48", "--") as supervisor:
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                stack.enter_context(supervisor.connect())
            time.sleep(0.3)
            assert supervisor.process.poll() is None, supervisor.said
        supervisor.serves()


CALL = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(10)
sock.connect(sys.argv[1])
try:
    sock.sendall(bytes.fromhex(sys.argv[2]))
    print(len(sock.recv(100)))
except ConnectionError:
    print(0)
"""


def call_as(uid: int, supervisor: Supervisor) -> str:
    done = run_program(
        [
            *("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"),
            *(sys.executable, "-I", "-c", CALL),
            *(str(supervisor.root / NAME), wire.frame(NOBODY).hex()),
        ],
        cwd="/",
    )
    return done.stdout + done.stderr.rpartition("\n")[0].rpartition("\n")[2]


@pytest.mark.covers("security connect to the supervisor")
def test_another_user_gets_nothing(supervisor: Supervisor) -> None:
    uid = users.ordinary().uid
    assert "Permission denied" in call_as(uid, supervisor)
    (supervisor.root / NAME).chmod(0o666)
    assert call_as(uid, supervisor) == "0\n"
    assert int(call_as(0, supervisor)) > 1
    supervisor.serves()


def test_root_may_call_everybody(base: Path) -> None:
    user = users.ordinary()
    user.give(base)
    root = base / "root"
    # made here, but theirs: the supervisor is theirs as well
    with running(
        base, "sh", "-c", f'chown {user.uid} "$0" && exec "$@"', str(root), *user.prefix
    ) as supervisor:
        supervisor.serves()
        (root / NAME).chmod(0o666)
        assert call_as(user.uid + 1, supervisor) == "0\n"
        assert int(call_as(user.uid, supervisor)) > 1


def test_its_socket_is_for_its_user_alone(supervisor: Supervisor) -> None:
    assert (supervisor.root / NAME).stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_ends_when_it_is_told_to(supervisor: Supervisor, number: int) -> None:
    with supervisor.connect() as silent:
        silent.sendall(b"\0")
        assert supervisor.end(number) == 0
    assert supervisor.said == ""
    assert listed(supervisor.root) == []


def test_told_twice(supervisor: Supervisor) -> None:
    supervisor.process.send_signal(signal.SIGTERM)
    assert supervisor.end() in (0, -signal.SIGTERM)
    assert supervisor.said == ""


def test_goes_when_it_is_idle(base: Path) -> None:
    with running(base, idle_timeout=0.3) as supervisor:
        assert supervisor.process.wait(10) == 0
        assert supervisor.said == ""
        assert listed(supervisor.root) == []


def test_leaves_nothing_when_it_is_told_to_go(supervisor: Supervisor) -> None:
    (supervisor.root / f"{NAME}.lock").touch()  # whoever starts one makes it
    assert supervisor.end() == 0
    assert listed(supervisor.root) == []


def test_removes_at_last_what_it_could_not_remove_before(base: Path) -> None:
    with running(base, idle_timeout=0.5) as supervisor:
        (supervisor.root / f"@tmp{NAME}1234" / "half").mkdir(parents=True)
        assert supervisor.process.wait(10) == 0
        assert listed(supervisor.root) == []


_REMOVES_LATER = """
import sys, trio
from scrun.supervisor.__main__ import main
from scrun.supervisor.containers import records
real = records.remove
def remove(*words):
    assert not trio.lowlevel.in_trio_run(), "its loop removes what others have left"
    real(*words)
records.remove = remove
sys.exit(main(sys.argv[1:]))
"""


def test_removes_what_others_left_when_it_serves_nobody_any_more(base: Path) -> None:
    """A file system may take long for it."""
    with running(base, idle_timeout=1.5, program=_REMOVES_LATER) as supervisor:
        time.sleep(0.7)  # it looks once when it begins, in a thread
        (supervisor.root / "@tmp@gone12345678").mkdir()
        assert supervisor.process.wait(20) == 0, supervisor.said
        assert listed(supervisor.root) == []


def test_removes_what_others_left_that_were_killed(base: Path) -> None:
    """With one for each container, there may never be another one of that name."""
    with running(base, idle_timeout=1) as supervisor:
        root = supervisor.root
        alive = socket.socket(socket.AF_UNIX)
        dead, begins = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        with alive, dead, begins, (root / "@begins.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for sock, name in ((alive, "@alive"), (dead, "@dead"), (begins, "@begins")):
                sock.bind(str(root / name))
                if sock is alive:  # at once: it looks before it goes
                    sock.listen()
                (root / f"{name}.lock").touch()
                (root / f"@tmp{name}12345678").mkdir()
            (root / "@tmp@gone12345678").mkdir()
            assert supervisor.process.wait(10) == 0
        assert sorted(listed(root)) == [
            "@alive", "@alive.lock", "@begins", "@begins.lock",
            "@tmp@alive12345678", "@tmp@begins12345678",
        ]  # fmt: skip


def test_goes_although_its_directory_is_gone(base: Path) -> None:
    with running(base, idle_timeout=0.5) as supervisor:
        supervisor.root.rename(base / "elsewhere")
        assert supervisor.process.wait(10) == 0
        assert supervisor.said == ""


def test_stays_while_it_is_needed(base: Path) -> None:
    with running(base, idle_timeout=0.5) as supervisor:
        for _ in range(20):
            time.sleep(0.1)
            supervisor.serves()
        assert supervisor.process.wait(10) == 0


def test_stays_while_somebody_is_about_to_need_it(base: Path) -> None:
    """Whoever starts supervisors of this name holds the lock."""
    with running(base, idle_timeout=0.3) as supervisor:
        lock = os.open(supervisor.root / f"{NAME}.lock", os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        time.sleep(1)
        supervisor.serves()
        os.close(lock)
        assert supervisor.process.wait(10) == 0
        assert listed(supervisor.root) == []


def test_takes_the_place_of_one_that_was_killed(base: Path) -> None:
    with running(base) as first:
        first.process.kill()
        first.process.wait()
        assert listed(first.root) == [NAME]
    first.root.rename(base / "kept")
    again = base / "again"
    again.mkdir()
    (base / "kept").rename(again / "root")
    with running(again) as second:
        second.serves()
        assert second.end() == 0
        assert listed(second.root) == []


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_root_that_is_removed_meanwhile(base: Path, again: bool, told: bool) -> None:
    """And made again, for another supervisor: that one's socket is not to be removed."""
    with running(base, idle_timeout=60 if told else 0.3) as supervisor:
        supervisor.root.rename(base / "gone")
        if again:
            supervisor.root.mkdir()
            for name in (NAME, f"{NAME}.lock"):
                (supervisor.root / name).write_text("")
        assert (supervisor.end() if told else supervisor.process.wait(10)) == 0
        assert supervisor.said == ""
        if again:
            assert sorted(listed(supervisor.root)) == [NAME, f"{NAME}.lock"]


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --root")
def test_root_whose_path_is_longer_than_a_socket_address(base: Path) -> None:
    deep = base / ("d" * 150)
    deep.mkdir()
    with running(deep) as supervisor:
        supervisor.serves()
        assert supervisor.end() == 0
        assert listed(supervisor.root) == []


def server_of(root: Path, name: str) -> int:
    """Which process serves a socket."""
    sock = wire.connect(str(root), name)
    with socket.socket(fileno=sock.detach()) as connection:
        return peer(connection)


def detached(root: Path, inherited: int, *before: str) -> "tuple[str, int]":
    """Start one as `create` does; what it says when it is ready, and its exit status."""
    readable, writable = os.pipe()
    command = [*before, sys.executable, "-I"]
    command += [str(CHECKOUT / "scrun" / "supervisor" / "__main__.py")]
    command += ["--root", str(root), "--name", NAME, "--ready", str(writable)]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[writable, inherited],
        env={"PATH": users.PATH},
        umask=0,
    ) as process:
        os.close(writable)
        with open(readable) as ready:
            return ready.read(), process.wait(20)


def test_detached(tmp_path: Path) -> None:
    readable, writable = os.pipe()
    assert detached(tmp_path, writable) == ("ready", 0)
    os.close(writable)
    pid = server_of(tmp_path, NAME)
    try:
        sock = wire.connect_supervisor(str(tmp_path), NAME)
        wire.send(sock, NOBODY)
        assert wire.receive(sock)[0] == 1
        sock.close()
        place = Path(f"/proc/{pid}")
        assert os.read(readable, 1) == b""  # it holds nothing of ours open
        log = str(tmp_path / OWN_LOG)
        opened = [os.readlink(place / "fd" / fd) for fd in "012"]
        assert opened == ["/dev/null", "/dev/null", log]
        assert os.readlink(place / "cwd") == "/"
        assert os.getsid(pid) not in (os.getsid(0), pid)  # it cannot get a terminal
        status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
        assert int(status["Umask"], 8) == 0o077
        ignored = int(status["SigIgn"], 16)
        assert not ignored & ~(1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)
        limit, own = (
            next(line for line in path.read_text().splitlines() if "core" in line)
            for path in (place / "limits", Path("/proc/self/limits"))
        )
        assert limit.split() == own.split()
    finally:
        os.close(readable)
        os.kill(pid, signal.SIGTERM)
    wait_while("supervisor", Path(f"/proc/{pid}").exists)
    assert os.listdir(tmp_path) == []


def test_detached_says_why_it_does_not_start(tmp_path: Path) -> None:
    with open(os.devnull) as null:
        said, status = detached(tmp_path / "missing", null.fileno())
    assert os.strerror(errno.ENOENT) in said
    assert "\n" not in said.strip()
    assert status == 0  # of the process that has forked itself away


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone becomes a user with one process")
def test_detached_where_the_user_may_have_no_more_processes(tmp_path: Path) -> None:
    before = ["prlimit", "--nproc=1", "setpriv", "--reuid=54321", "--clear-groups", "--"]
    with open(os.devnull) as null:
        said, status = detached(tmp_path, null.fileno(), *before)
    remedy = "the user has as many processes as permitted (ulimit -u)"
    assert said == f"{os.strerror(errno.EAGAIN)}; {remedy}"
    assert status == 1
