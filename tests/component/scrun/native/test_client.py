"""The client in C: what it asks is what the Python program asks, or it steps aside.

It is built with the sanitizers for addresses and undefined behaviour, which end it with 99.
"""

import contextlib
import fcntl
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from scrun.cli.parse import parse
from scrun.client.anchored import build_call
from scrun.client.ask import build_request
from scrun.core.version import VERSION
from scrun.native.build import ASIDE, OPTIONS, SERVED, SOURCES, build, header
from tests.harness.wait import wait_until

STUB = """
import json, os, sys
told = {name: value for name, value in sys._xoptions.items()}
fd = told.get("answered")
content = os.pread(int(fd), 1 << 26, 0).decode("latin-1") if fd else None
print(json.dumps({"argv": sys.argv[1:], "told": told, "content": content}))
"""
SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
MORE = 50 if os.environ.get("SCRUN_NIGHTLY") else 1
QUIET = {"ASAN_OPTIONS": "exitcode=99:detect_leaks=0", "UBSAN_OPTIONS": "exitcode=99"}


class Client(NamedTuple):
    """A client in an installation whose Python program tells how it was called."""

    program: Path
    root: Path

    def run(self, *words: str | bytes, **how: object) -> "subprocess.CompletedProcess[bytes]":
        usual: dict[str, object] = {"env": self.environment(), "timeout": 60}
        command = [self.program, "--root", str(self.root), *words]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, **{**usual, **how}
        )  # type: ignore[call-overload]
        assert done.returncode != 99, done.stderr
        return done  # type: ignore[no-any-return]

    def environment(self, **more: str) -> dict[str, str]:
        # the real settings of this machine do not count
        return {"PATH": os.defpath, "SCRUN_CONFIG": str(self.root / "scrun.toml"), **QUIET, **more}

    def told(self, *words: str | bytes) -> dict[str, object]:
        """Run it, and return the options that the interpreter has got."""
        found = self.aside(*words)["told"]
        assert isinstance(found, dict)
        return found

    def aside(self, *words: str | bytes, **how: object) -> dict[str, object]:
        """Run it, and return what it has handed over."""
        done = self.run(*words, **how)
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    prefix = tmp_path_factory.mktemp("installation")
    (prefix / "bin").mkdir()
    (prefix / "share" / "scrun").mkdir(parents=True)
    (prefix / "share" / "scrun" / "main.py").write_text(STUB)
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (prefix / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    assert not build(prefix / "bin" / "scrun", SANITIZED)
    return prefix


@pytest.fixture
def client(installation: Path, tmp_path: Path) -> Client:
    (tmp_path / "c1").mkdir()
    return Client(installation / "bin" / "scrun", tmp_path)


Serve = Callable[[socket.socket], None]


@contextlib.contextmanager
def serving(path: Path, serve: Serve) -> Iterator[list[str]]:
    """A supervisor's socket; `serve` answers each connection. What goes wrong there is said."""
    wrong: list[str] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def loop() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        serve(connection)
                    except OSError as error:
                        wrong.append(str(error))

        thread = threading.Thread(target=loop, daemon=True)
        thread.start()
        try:
            yield wrong
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            path.unlink()


def frame_of(connection: socket.socket) -> list[bytes]:
    size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
    return connection.recv(size, socket.MSG_WAITALL).split(b"\0")


def answers(reply: bytes) -> Serve:
    """A supervisor with one answer."""

    def serve(connection: socket.socket) -> None:
        frame_of(connection)
        connection.sendall(reply)

    return serve


# --- the command line

ASKED = [
    ["state", "c1"], ["start", "c1"], ["pause", "c1"], ["resume", "c1"],
    ["kill", "c1"], ["kill", "c1", "KILL"], ["kill", "--all", "c1", "9"], ["kill", "-a", "c1"],
    ["kill", "c1", "-a", "TERM"], ["delete", "c1"], ["delete", "--force", "c1"],
    ["delete", "-f", "c1"], ["delete", "c1", "-force"],
    ["--log", "/x", "--log-format", "json", "state", "c1"],
    ["--log=/x", "--log-format=text", "-vv", "--debug", "state", "c1"],
    ["-v", "-f", "/slurm.conf", "start", "c1"], ["-vf/slurm.conf", "start", "c1"],
    ["--systemd-cgroup", "--cgroup-manager", "odd", "--rootless=auto", "state", "c1"],
    ["-log", "/x", "state", "c1"], ["--engine", "local", "--stager=lua", "state", "c1"],
]  # fmt: skip


@pytest.mark.parametrize("argv", ASKED, ids=" ".join)
def test_it_asks_as_the_python_program(client: Client, argv: list[str]) -> None:
    asked: list[list[bytes]] = []

    def serve(connection: socket.socket) -> None:
        asked.append(frame_of(connection))
        connection.sendall(b"\0")

    with serving(client.root / "c1" / "supervisor", serve):
        done = client.run(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert asked == [build_request(parse(argv), "c1")]


OTHERS = [
    [], ["list"], ["STATE", "c1"], ["state"], ["state", "c1", "c2"], ["state", "-"], ["state",
    "."],
    ["state", ".."], ["state", "a/b"], ["state", "a" * 256], ["state", "c1", "--help"],
    ["--help"], ["-h", "state", "c1"], ["state", "-h"], ["--usage"], ["-V"], ["version"],
    ["--", "state", "c1"], ["state", "--", "c1"], ["kill", "c1", "-9"], ["kill", "c1", "-KILL"],
    ["kill", "--regex", "c."], ["delete", "-r", "c."], ["delete", "c1", "c2"],
    ["delete", "--force=true", "c1"], ["delete", "--nonsense", "c1"], ["--nonsense", "state",
    "c1"],
    ["--log", "/x"], ["--log"], ["--log-format", "xml", "state", "c1"], ["--rootless", "state",
    "c1"],
    ["--log-format", "jso", "state", "c1"], ["--log-format", "text|json", "state", "c1"],
    ["state", "--log", "/x", "c1"], ["exec", "c1"], ["exec", "--tty", "c1", "true"],
    ["exec", "-t", "c1", "true"], ["exec", "-dt", "c1", "true"], ["exec", "--", "c1", "true"],
    ["exec", "--console-socket", "/x", "c1", "true"], ["exec", "--preserve-fds", "1", "c1",
    "true"],
    ["create", "--console-socket", "/x", "c1"], ["create", "--preserve-fds=1", "c1"],
    ["exec", "-p", "/dev/fd/3", "c1"], ["exec", "--process=/proc/self/fd/3", "c1", "x"],
    ["kill", "c1", "TERM", "more"], ["pause", "c1", "more"], ["state", "c\u00e4"],
]  # fmt: skip


@pytest.mark.parametrize("argv", OTHERS, ids=" ".join)
def test_what_it_is_not_sure_of_is_the_python_program_s(client: Client, argv: list[str]) -> None:
    with serving(client.root / "c1" / "supervisor", lambda _: pytest.fail("it was asked")):
        handed = client.aside(*argv)
    assert handed["argv"] == ["--root", str(client.root), *argv]
    assert handed["told"] == {
        "prefix": f"{client.program.parent}/..",
        "called": str(client.program),
        "client": str(client.program),
    }


WORDS = [
    *SERVED, "c1", "c2", "TERM", "--", "-", "-f", "-a", "-r", "-v", "-vv", "-h", "--force",
    "--all", "--debug",
    "--log", "--log=/x", "--log-format", "json", "--log-format=text", "--root", "/", "-root",
    "--rootless",
    "--rootless=auto", "auto", "--pid-file", "-d", "--detach", "--env", "-eA=1", "-e", "--cwd=/",
    "-p", "-pX",
    "--tty", "-f=true", "-af", "--systemd-cgroup", "-b", "--bundle", "-x", "--x=y", "", "\udcff",
]  # fmt: skip


@pytest.mark.timeout(120 * MORE)
def test_many_command_lines(client: Client) -> None:
    """Whatever it asks by itself, the Python program would ask; a wrong line is never asked."""
    choice = random.Random(5)
    asked: list[list[bytes]] = []

    def serve(connection: socket.socket) -> None:
        asked.append(frame_of(connection))
        connection.sendall(b"\0")

    forwarded = 0
    with serving(client.root / "c1" / "supervisor", serve):
        for _ in range(100 * MORE):
            argv = choice.choices(WORDS, k=choice.randrange(1, 6))
            argv = [*argv[: choice.randrange(3)], choice.choice(SERVED), "c1", *argv]
            done = client.run(*map(os.fsencode, argv))
            if done.stdout:  # after it has asked, too, if that was for an `exec` and it lost us
                assert json.loads(done.stdout)["argv"][2:] == argv
            if not asked:
                assert done.stdout
                continue
            request = asked.pop()
            parsed = parse(["--root", str(client.root), *argv])
            assert parsed.command != "create"
            if parsed.command == "exec":
                whole = ["--root", str(client.root), *argv]
                assert request[4:] == [b"%d" % len(whole), *map(os.fsencode, whole)]
            else:
                assert request == build_request(parsed, parsed.id or "")
            forwarded += 1
    assert forwarded


def test_its_table_is_the_grammar_s() -> None:
    """Made again when it is built; what has no `aside` here has no meaning that it would miss."""
    table = header()
    for name in ASIDE:
        assert f'"{name}"' in table
        assert not any(f'"{name}"' in line and "false" in line for line in table.splitlines())
    for command in SERVED:
        assert f'{{"{command}", OF_{command.upper()}, ' in table


# --- where to ask


@pytest.mark.parametrize("root", ["relative", "/a/../b", "/a//b", "/a/", "/a/./b"])
def test_an_odd_root_is_the_python_program_s(client: Client, root: str) -> None:
    assert client.aside("--root", root, "state", "c1")["argv"]


def test_a_long_root(client: Client) -> None:
    """sun_path(7) holds 107 bytes."""
    root = client.root / ("a" * 90) / ("b" * 90)
    (root / "c1").mkdir(parents=True)
    holder = os.open(root / "c1", os.O_PATH)
    path = Path(f"/proc/self/fd/{holder}/supervisor")
    with serving(path, answers(b"\0fine")):
        assert client.run("--root", str(root), "state", "c1").stdout == b"fine"
    os.close(holder)
    assert client.aside("--root", "/" + "a" * 5000, "state", "c1")
    assert client.aside("state", "c1", env=client.environment(SCRUN_ROOT="relative"))


def test_nobody_listens(client: Client) -> None:
    assert client.aside("state", "c1")["argv"]
    assert client.aside("state", "c2")["argv"]


@pytest.mark.by_root
def test_another_user_s_supervisor(client: Client) -> None:
    """Root may ask it, but the Python program does that, with a limit of time."""
    for path in (client.root, client.root / "c1"):
        path.chmod(0o777)
    listener = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]);"
        "os.setuid(20001); s.listen(); print(flush=True); s.accept()"
    )
    command = [sys.executable, "-c", listener, str(client.root / "c1" / "supervisor")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        assert server.stdout
        server.stdout.readline()
        assert "again" not in client.told("state", "c1")
        server.kill()


@pytest.mark.by_root
def test_another_user_s_record(client: Client) -> None:
    with serving(client.root / "c1" / "supervisor", answers(b"\0fine")):
        os.chown(client.root / "c1", 20001, -1)
        assert client.told("state", "c1")
        os.chown(client.root / "c1", 0, -1)
        assert client.run("state", "c1").stdout == b"fine"


def test_an_id_is_not_a_path(client: Client) -> None:
    below = client.root / "c1" / "c2"
    below.mkdir()
    with (
        serving(client.root / "supervisor", answers(b"\0fine")),
        serving(below / "supervisor", answers(b"\0fine")),
    ):
        for name in ("c1/c2", "..", ".", ""):
            assert client.told("--root", str(client.root / "c1"), "state", name)
            assert client.told("state", name)


# --- answers


def test_the_answer_is_printed(client: Client) -> None:
    text = os.urandom(3_000_000)

    def serve(connection: socket.socket) -> None:
        frame_of(connection)
        connection.sendall(b"\0" + text)

    with serving(client.root / "c1" / "supervisor", serve):
        assert client.run("state", "c1").stdout == text


def test_an_answer_in_pieces(client: Client) -> None:
    def serve(connection: socket.socket) -> None:
        frame_of(connection)
        for byte in b"\0slow":
            connection.sendall(bytes([byte]))
            time.sleep(0.02)

    with serving(client.root / "c1" / "supervisor", serve):
        assert client.run("state", "c1").stdout == b"slow"


def test_an_error_is_handed_over(client: Client) -> None:
    def serve(connection: socket.socket) -> None:
        frame_of(connection)
        connection.sendall(b"\1container c1 is \xffstopped")

    with serving(client.root / "c1" / "supervisor", serve):
        handed = client.aside("--log", "/x", "kill", "c1")
    assert handed["content"] == "\1container c1 is \xffstopped"
    assert handed["argv"][2:] == ["--log", "/x", "kill", "c1"]  # type: ignore[index]


def test_a_note_of_delete_is_handed_over(client: Client) -> None:
    with serving(client.root / "c1" / "supervisor", answers(b"\0it was running")):
        assert client.aside("delete", "c1")["content"] == "\0it was running"


def test_a_supervisor_that_hangs_up(client: Client) -> None:
    for reads in (0, 2, 8):

        def serve(connection: socket.socket, reads: int = reads) -> None:
            connection.recv(reads)

        with serving(client.root / "c1" / "supervisor", serve):
            handed = client.aside("start", "c1")
        assert handed["told"]["again"] is True  # type: ignore[index]


def test_an_answer_without_an_end(client: Client) -> None:
    def serve(connection: socket.socket) -> None:
        frame_of(connection)
        with contextlib.suppress(OSError):
            connection.sendall(b"\0")
            while True:
                connection.sendall(bytes(1 << 20))

    with serving(client.root / "c1" / "supervisor", serve):
        assert client.aside("state", "c1")["told"]["failed"] == "90"  # type: ignore[index]


@pytest.mark.timeout(120 * MORE)
def test_any_bytes_for_an_answer(client: Client) -> None:
    """Also to `create` and `exec`, whose answers have messages before them."""
    choice = random.Random(11)
    parts = [
        b"\0", b"\1", b"\xfb\0", b"\xfc", b"4\0true", b"99999999999\0", b"\xfd", b"\xfe", b"\xff",
        b"text", b"7\n", b"-", b"5\0true\0",
    ]  # fmt: skip

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        connection.sendall(b"".join(choice.choices(parts, k=choice.randrange(7))))
        let_go(request.fds)

    with serving(client.root / "c1" / "supervisor", serve):
        for number in range(30 * MORE):
            words = [["state", "c1"], ["kill", "c1"], ["exec", "c1", "true"]][number % 3]
            client.run(*words)


def test_a_reader_that_has_gone(client: Client) -> None:
    def serve(connection: socket.socket) -> None:
        frame_of(connection)
        connection.sendall(bytes(1 << 20))

    with serving(client.root / "c1" / "supervisor", serve):
        ends = os.pipe()
        os.close(ends[0])
        command: list[str | Path] = [client.program, "--root", str(client.root), "state", "c1"]
        with open(ends[1], "wb") as closed:
            done = subprocess.run(
                command,
                stdout=closed,
                stderr=subprocess.PIPE,
                env=client.environment(),
                timeout=30,
            )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_standard_output_that_does_not_block(client: Client) -> None:
    """What it could not write is handed over, and nothing twice."""
    text = os.urandom(1 << 18).replace(b"{", b"")

    def serve(connection: socket.socket) -> None:
        frame_of(connection)
        connection.sendall(b"\0" + text)

    with serving(client.root / "c1" / "supervisor", serve):
        readable, writable = os.pipe()
        os.set_blocking(writable, False)
        command: list[str | Path] = [client.program, "--root", str(client.root), "state", "c1"]
        with subprocess.Popen(command, stdout=writable, env=client.environment()) as process:
            time.sleep(0.5)
            os.close(writable)
            said = b""
            while part := os.read(readable, 65536):
                said += part
            os.close(readable)
            assert process.wait(10) in (0, 1, 120)
    written = said.partition(b'{"argv"')[0]
    assert text.startswith(written)
    assert len(written) >= 4096


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_descriptors(client: Client, closed: Sequence[int]) -> None:
    """The Python program opens what is closed, before anything could take its number."""

    def close() -> None:
        for fd in closed:
            os.close(fd)

    with serving(client.root / "c1" / "supervisor", lambda _: pytest.fail("it was asked")):
        done = client.run("kill", "c1", preexec_fn=close)
    assert done.returncode != 99


@pytest.mark.parametrize("most", range(3, 12))
def test_few_descriptors(client: Client, most: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    with serving(client.root / "c1" / "supervisor", answers(b"\0fine")):
        done = client.run("state", "c1", preexec_fn=limit)
    assert done.stdout == b"fine" or done.returncode


def test_an_error_that_nothing_can_hold(client: Client) -> None:
    """It goes to the Python program in memory, which has the limit of files."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    with serving(client.root / "c1" / "supervisor", answers(b"\1no such thing")):
        done = client.run("state", "c1", preexec_fn=limit)
    assert done.returncode == 1
    assert done.stderr.startswith(b"scrun: its answer cannot be shown: File too large; raise")


# --- what is remembered


def place_of(config: str) -> str:
    value = 0xCBF29CE484222325
    for byte in os.fsencode(config):
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"@settings-{value:016x}"


class Remembered(NamedTuple):
    """What the Python program has left in the default root directory of an ordinary place."""

    client: Client
    config: Path
    file: Path
    runtime: Path

    def supervisor(self) -> Path:
        ids = [os.stat(f"/proc/self/ns/{kind}").st_ino for kind in ("user", "mnt", "pid")]
        return self.client.root / f"@user-{ids[0]}-{ids[1]}-{ids[2]}-{VERSION}"

    def environment(self, **more: str) -> dict[str, str]:
        return self.client.environment(SCRUN_CONFIG=str(self.config), **more)


@pytest.fixture
def remembered(client: Client) -> Iterator[Remembered]:
    """For root this is in /run/scrun, where nothing else of this name is."""
    runtime = Path("/run/scrun") if os.geteuid() == 0 else Path(f"/run/user/{os.geteuid()}/scrun")
    config = client.root / "scrun.toml"
    config.write_text(f'root = "{client.root}"\n')
    status = config.stat()
    identity = (
        f"{status.st_dev} {status.st_ino} {status.st_size} {status.st_mtime_ns} "
        f"{status.st_ctime_ns}"
    )
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = runtime / place_of(str(config))
    fields = [VERSION, str(config), str(client.root), "", str(config), identity]
    file.write_bytes(b"".join(os.fsencode(field) + b"\0" for field in fields))
    file.chmod(0o600)
    yield Remembered(client, config, file, runtime)
    file.unlink(missing_ok=True)


def _state(remembered: Remembered) -> bytes:
    return subprocess.run(
        [remembered.client.program, "state", "c1"],
        env=remembered.environment(), capture_output=True, timeout=30, check=False,
    ).stdout  # fmt: skip


def test_the_root_that_is_remembered(remembered: Remembered) -> None:
    socket_of = remembered.client.root / "c1" / "supervisor"
    with serving(socket_of, answers(b"\0fine")):
        assert _state(remembered) == b"fine"
        for mode in (0o644, 0o660, 0o602):
            remembered.file.chmod(mode)
            assert b"argv" in _state(remembered)
        remembered.file.chmod(0o600)
        assert _state(remembered) == b"fine"
        remembered.config.write_text("# other\n")
        assert b"argv" in _state(remembered)


@pytest.mark.timeout(120 * MORE)
def test_any_content_is_read_or_left(remembered: Remembered) -> None:
    choice = random.Random(7)
    whole = remembered.file.read_bytes()
    socket_of = remembered.client.root / "c1" / "supervisor"
    with serving(socket_of, answers(b"\0fine")):
        for number in range(50 * MORE):
            content = bytearray(whole)
            for _ in range(choice.randrange(1, 4)):
                at = choice.randrange(len(content))
                content[at : at + choice.randrange(3)] = choice.randbytes(choice.randrange(3))
            if number % 50 == 0:
                content = bytearray(choice.randbytes(choice.randrange(40000)))
            remembered.file.write_bytes(content)
            assert b"argv" in (said := _state(remembered)) or said == b"fine", content


# --- create and exec


class Request(NamedTuple):
    """What a supervisor has got."""

    fields: list[bytes]
    fds: list[int]


def receive(connection: socket.socket) -> Request:
    data, fds, _, _ = socket.recv_fds(connection, 4, 8)
    size = int.from_bytes(data, "big")
    return Request(connection.recv(size, socket.MSG_WAITALL).split(b"\0"), fds)


def let_go(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def line_of(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += connection.recv(1)
    return line


def create(remembered: Remembered, *words: str, **how: object) -> "subprocess.Popen[bytes]":
    command = [remembered.client.program, "create", "--bundle", "/b", *words, "c2"]
    usual: dict[str, object] = {"env": remembered.environment(MINE="\udcff x")}
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        cwd=remembered.client.root, umask=0o27, **{**usual, **how},
    )  # type: ignore[call-overload]  # fmt: skip
    return process


@pytest.mark.by_root
def test_create(remembered: Remembered) -> None:
    pid_file = remembered.client.root / "pid"
    words = ["create", "--bundle", "/b", "--pid-file", str(pid_file), "c2"]
    got: list[Request] = []
    anchors: list[int] = []
    confirmed: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        got.append(receive(connection))
        for fd in got[0].fds[:3]:
            os.close(fd)
        anchors.append(int(line_of(connection)))
        assert not pid_file.exists()
        connection.sendall(b"\xffscrun: wait\n\0\0")
        connection.shutdown(socket.SHUT_WR)
        confirmed.append(connection.recv(2))

    ends = os.pipe()
    with (
        serving(remembered.supervisor(), serve) as wrong,
        create(remembered, "--pid-file", str(pid_file), pass_fds=ends[1:]) as process,
    ):
        os.close(ends[1])
        said, errors = process.communicate(timeout=30)
        assert (process.returncode, said, errors) == (0, b"", b"scrun: wait\n")
        pid = process.pid
    os.set_blocking(ends[0], False)
    assert os.read(ends[0], 1) == b""  # nobody has the other end any more
    os.close(ends[0])
    assert not wrong
    fields = got[0].fields
    directory = os.fsencode(remembered.client.root)
    assert fields[:5] == [b"create", b"%d" % pid, b"27", directory, b"%d" % len(words)]
    assert fields[5 : 5 + len(words)] == [os.fsencode(word) for word in words]
    environment = dict(field.split(b"=", 1) for field in fields[5 + len(words) :])
    assert environment == {
        os.fsencode(name): os.fsencode(value)
        for name, value in remembered.environment(MINE="\udcff x").items()
    }
    assert confirmed == [b"\0"]
    anchor = anchors[0]
    assert pid_file.read_bytes() == b"%d" % anchor
    assert pid_file.stat().st_mode & 0o777 == 0o644
    with pid_file.open() as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # the anchor holds it
    assert os.listdir(f"/proc/{anchor}/root") == ["proc"]
    assert sorted(os.listdir(f"/proc/{anchor}/fd")) == ["0", "1", "2", "3", "9"]
    for kind in ("mnt", "pid", "ipc", "uts", "net", "cgroup"):
        assert os.readlink(f"/proc/{anchor}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    line = socket.socket(fileno=got[0].fds[3])
    line.settimeout(10)
    os.kill(anchor, signal.SIGUSR1)
    assert line_of(line) == b"USR1\n"
    line.sendall(b"3\n")
    assert line.recv(1) == b""
    wait_until("anchor", lambda: not _lives(anchor))
    line.close()


def _lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _ignore_children() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@pytest.mark.by_root
def test_create_cannot_run_the_runtime(remembered: Remembered) -> None:
    pid_file = remembered.client.root / "pid"
    gone: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        line_of(connection)
        connection.sendall(b"\xfc12\0/nowhere/run")
        gone.append(connection.recv(10))
        let_go(request.fds)

    with (
        serving(remembered.supervisor(), serve) as wrong,
        create(remembered, "--pid-file", str(pid_file)) as process,
    ):
        said, _ = process.communicate(timeout=30)
    assert json.loads(said)["content"] == "\1/nowhere/run: No such file or directory"
    assert (wrong, gone) == ([], [b""])
    assert not pid_file.exists()


@pytest.mark.by_root
def test_create_runs_the_runtime_for_the_supervisor(remembered: Remembered) -> None:
    pid_file = remembered.client.root / "pid"
    ends: list[tuple[bytes, list[int]]] = []

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        line_of(connection)
        os.write(request.fds[3], b"0\n")
        for words in (["sh", "-c", "echo it runs; exit 3"], ["sh", "-c", "kill -9 $$"], ["true"]):
            text = b"\0".join(map(os.fsencode, words))
            connection.sendall(b"\xfc%d\0" % len(text) + text)
            data, fds, _, _ = socket.recv_fds(connection, 64, 4)
            ends.append((data, fds))
        connection.sendall(b"\0" + b"4711")
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        let_go(request.fds)

    with (
        serving(remembered.supervisor(), serve) as wrong,
        create(remembered, "--pid-file", str(pid_file), preexec_fn=_ignore_children) as process,
    ):
        said, errors = process.communicate(timeout=30)
    assert (process.returncode, said, errors) == (0, b"it runs\n", b"")
    assert not wrong
    assert [data for data, _ in ends] == [b"3\n", b"-9\n", b"0\n"]
    for _, (lock,) in ends:
        assert os.path.samestat(os.fstat(lock), pid_file.stat())
        os.close(lock)
    assert pid_file.read_bytes() == b"4711"


@pytest.mark.by_root
@pytest.mark.parametrize(
    ("reply", "content"),
    [
        (b"\1no job", "\1no job"),
        (b"\xfb\0\1no job", "\xfb\0\1no job"),
        (b"\xfeerror one\0\xfedebug two\0\1no job", "\xfeerror one\0\xfedebug two\0\1no job"),
        (b"\xfdlive\0\1no job", "\1no job"),
    ],
)
def test_a_create_that_fails(remembered: Remembered, reply: bytes, content: str) -> None:
    pid_file = remembered.client.root / "pid"

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        line_of(connection)
        os.write(request.fds[3], b"1\n")
        connection.sendall(reply)
        let_go(request.fds)

    with (
        serving(remembered.supervisor(), serve),
        create(remembered, "--pid-file", str(pid_file)) as process,
    ):
        said, _ = process.communicate(timeout=30)
    assert json.loads(said)["content"] == content
    assert not pid_file.exists()
    assert not [name for name in os.listdir(remembered.client.root) if name.startswith(".scrun")]


@pytest.mark.by_root
@pytest.mark.parametrize("when", ["at once", "request", "anchor", "message", "call"])
def test_a_supervisor_that_dies_while_it_creates(remembered: Remembered, when: str) -> None:
    record = remembered.client.root / "c2"

    def serve(connection: socket.socket) -> None:
        if when == "at once":
            return
        request = receive(connection)
        if when != "request":
            line_of(connection)
        if when in ("message", "call"):
            record.mkdir(exist_ok=True)
            connection.sendall(b"\xff" if when == "message" else b"\xfc12\0sh")
        let_go(request.fds)

    with serving(remembered.supervisor(), serve), create(remembered) as process:
        said, _ = process.communicate(timeout=30)
    told = json.loads(said)["told"]
    assert told.get("lost") == ("new" if record.exists() else None)
    wait_until("children", lambda: not _children_named_anchor(remembered))


def _children_named_anchor(remembered: Remembered) -> list[int]:
    exe = str(remembered.client.program)
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.readlink(f"/proc/{name}/exe") == exe and _lives(int(name)):
                found.append(int(name))
    return found


@pytest.mark.by_root
def test_a_create_that_the_python_program_has_to_do(remembered: Remembered) -> None:
    """A job of Slurm's, a pod, another group, a locked pid file, a directory that is gone."""
    pid_file = remembered.client.root / "pid"
    pid_file.write_text("1")
    pods = remembered.client.root / "@pod-1"

    def asked(connection: socket.socket) -> None:
        if connection.recv(1):
            raise OSError("it was asked")

    with serving(remembered.supervisor(), asked) as wrong:
        with pid_file.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            with create(remembered, "--pid-file", str(pid_file)) as process:
                assert b"argv" in process.communicate(timeout=30)[0]
        with create(remembered, "--pid-file", "/nowhere/pid") as process:
            assert b"argv" in process.communicate(timeout=30)[0]
        in_job = remembered.environment(SLURM_JOB_ID="7")
        with create(remembered, env=in_job) as process:
            assert b"argv" in process.communicate(timeout=30)[0]
        pods.touch()
        with create(remembered, env=remembered.environment(_OCI_SYNCPIPE="3")) as process:
            assert b"argv" in process.communicate(timeout=30)[0]
        pods.unlink()
        content = remembered.file.read_bytes()
        remembered.file.write_bytes(content.replace(b"\0\0", b"\0pod\0", 1))
        with create(remembered) as process:
            assert b"argv" in process.communicate(timeout=30)[0]
    assert not wrong


@pytest.mark.by_root
def test_only_below_conmon_a_pod_may_have_its_own_supervisor(remembered: Remembered) -> None:
    """Others need not look through a root directory of thousands of records."""
    (remembered.client.root / "@pod-1").touch()
    asked: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        asked.append(request.fields[0])
        line_of(connection)
        connection.sendall(b"\1refused")
        let_go(request.fds)

    with serving(remembered.supervisor(), serve), create(remembered) as process:
        assert "answered" in json.loads(process.communicate(timeout=30)[0])["told"]
    assert asked == [b"create"]


@pytest.mark.by_root
def test_a_long_command_line(client: Client) -> None:
    words = ["x"] * 100_000
    argv = ["--root", str(client.root), "exec", "c1", *words]
    got: list[list[bytes]] = []

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        got.append(request.fields)
        os.write(request.fds[3], b"0\n")
        connection.sendall(b"\0")
        let_go(request.fds)

    with serving(client.root / "c1" / "supervisor", serve):
        assert client.run(*argv[2:]).returncode == 0
    wanted = build_call("exec", 1, argv)
    assert got[0][4:] == wanted[4:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP])
def test_exec_passes_signals_on(client: Client, number: signal.Signals) -> None:
    heard: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        with socket.socket(fileno=request.fds[3]) as line:
            line.settimeout(20)
            os.kill(int(request.fields[1]), number)  # before the answer
            heard.append(line_of(line))
            connection.sendall(b"\0")
            connection.close()
            os.kill(int(request.fields[1]), number)
            heard.append(line_of(line))
            line.sendall(b"42\n")
        let_go(request.fds[:3])

    with serving(client.root / "c1" / "supervisor", serve) as wrong:
        assert client.run("exec", "c1", "sleep", "9").returncode == 42
    assert not wrong
    assert heard == [f"{number.name[3:]}\n".encode()] * 2


def test_a_signal_that_nobody_takes_ends_exec_the_second_time(client: Client) -> None:
    held: list[int] = []

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        let_go(request.fds[:3])
        held.append(request.fds[3])
        connection.sendall(b"\0")
        connection.close()
        os.kill(int(request.fields[1]), signal.SIGTERM)
        time.sleep(1.2)
        os.kill(int(request.fields[1]), signal.SIGTERM)

    began = time.monotonic()
    with serving(client.root / "c1" / "supervisor", serve):
        handed = client.aside("exec", "c1", "sleep", "9")
    assert time.monotonic() - began < 8  # else it would be the one that comes by itself
    assert handed["told"]["untaken"] == "15"  # type: ignore[index]
    for fd in held:
        os.close(fd)


@pytest.mark.parametrize(
    "words", [["--process", "/p.json", "c1"], ["-p/p.json", "c1"], ["c1", "a"]]
)
def test_exec_as_engines_call_it(client: Client, words: list[str]) -> None:
    got: list[list[bytes]] = []

    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        got.append(request.fields)
        os.write(request.fds[3], b"5\n")
        connection.sendall(b"\0")
        let_go(request.fds)

    with serving(client.root / "c1" / "supervisor", serve):
        assert client.run("exec", *words).returncode == 5
    whole = ["--root", str(client.root), "exec", *words]
    assert got[0][5:] == [os.fsencode(word) for word in whole]


@pytest.mark.parametrize("told", [b"", b"7", b"x\n", b"12345\n", b"\n"])
def test_an_exec_whose_supervisor_dies(client: Client, told: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        request = receive(connection)
        connection.sendall(b"\0")
        connection.close()
        os.write(request.fds[3], told)
        let_go(request.fds)

    with serving(client.root / "c1" / "supervisor", serve):
        assert "gone" in client.told("exec", "c1", "true")


@pytest.mark.parametrize("detach", [False, True])
def test_an_exec_whose_supervisor_dies_before_it_answers(client: Client, *, detach: bool) -> None:
    if detach and os.geteuid():
        return

    def serve(connection: socket.socket) -> None:
        let_go(receive(connection).fds)

    with serving(client.root / "c1" / "supervisor", serve):
        told = client.aside("exec", *["--detach"] * detach, "c1", "true")["told"]
    assert ("left" if detach else "stays") in told  # type: ignore[operator]


@pytest.mark.parametrize("name", sorted(path.name for path in SOURCES.glob("*.c")))
def test_the_compiler_finds_nothing(name: str, tmp_path: Path) -> None:
    (tmp_path / "table.h").write_text(header())
    options = [*OPTIONS, "-Werror", "-fanalyzer", "-O2", "-I", str(tmp_path), "-I", str(SOURCES)]
    command = ["gcc", *options, "-c", str(SOURCES / name), "-o", str(tmp_path / "object")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
