"""How a shim begins, by which connection, and how it goes on for another supervisor."""

import json
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.wire.frames import (
    CALL,
    DATA,
    EVENT,
    PIECE,
    PROTOCOL,
    UNREACHED,
    WINDOW,
    frame,
)
from tests.component.supervisor.shim.conftest import MakeShim, connected
from tests.harness.frames import WholeFrames
from tests.harness.shim import BEGIN, COMMAND, SECRET, Shim, listening, prove
from tests.harness.wait import wait_while

_RUNS = {"started": True, "ended": None, "usage": None}


@pytest.mark.covers("security listen where a shim connects")
def test_a_direct_connection(make_shim: MakeShim) -> None:
    """One of two who listen there says nothing, and delays nobody."""
    shim = connected(make_shim, {"SLURM_LAUNCH_NODE_IPADDR": "127.0.0.9"}, mute="127.0.0.9")
    assert shim.asked == {"python": ""}
    streams = shim.streams()
    shim.run("a", "cat", streams=streams)
    data = os.urandom(5 << 20)
    shim.write(streams["stdin"], data)
    assert shim.finish(streams["stdout"]) == data
    assert shim.ended("a") == 0
    assert SECRET.hex().encode() not in Path(f"/proc/{shim.process.pid}/environ").read_bytes()
    shim.run("b", "sleep", "1000")
    shim.die()
    time.sleep(0.5)
    assert shim.process.poll() is None, "only srun's end is the supervisor's"
    assert shim.close() == (137, "")


def test_the_runtime_is_known(make_shim: MakeShim, tmp_path: Path) -> None:
    """Nobody tries it again; one that is not there is not used."""
    (tmp_path / "crun").write_text(f"#!/bin/sh\ntouch {tmp_path}/tried\n")
    (tmp_path / "crun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    known = make_shim(env, begin={"runtime": str(tmp_path / "crun")})
    assert known.hello["runtime"] == str(tmp_path / "crun")
    assert not (tmp_path / "tried").exists()
    other = make_shim(env, begin={"runtime": "/nowhere/crun"})
    assert other.hello["runtime"] == str(tmp_path / "crun")
    assert (tmp_path / "tried").exists()


def test_no_descriptor_of_pmi(make_shim: MakeShim) -> None:
    """A number that is not slurmstepd's may be that of the direct connection."""
    for number in range(3, 9):
        shim = connected(make_shim, {"PMI_FD": str(number)})
        streams = shim.streams("stdout")
        shim.run("a", "sh", "-c", "echo $PMI_FD; ls /proc/self/fd", streams=streams)
        assert shim.finish(streams["stdout"]).split() == [b"0", b"1", b"2", b"3"]
        assert shim.close() == (0, "")


SEALED = {"protocol": PROTOCOL, "seal_streams": True, "quiet": 20.0}


def resume(shim: Shim, targets: list[str], written: dict[int, int]) -> dict[str, Any]:
    """Be another supervisor, which knows these containers and has written so many bytes."""
    count = len(shim.resumed)
    with listening() as sock:
        addresses = [["127.0.0.1", sock.getsockname()[1]]]
        shim.ask(
            "resume", token="t", addresses=addresses, secret=SECRET.hex(), patience=1.5,
            alone=600, targets=targets, written=written, **SEALED,
        )  # fmt: skip
        connection, _ = sock.accept()
        both = prove(connection)
        assert both
    shim.use_direct(connection.detach(), both)
    shim.until("its answer", lambda: len(shim.resumed) > count)
    return shim.resumed[-1]


def test_another_supervisor_gets_what_was_not_written(direct: Shim) -> None:
    direct.generous = False
    streams = direct.streams("stdout")
    direct.run("a", "sh", "-c", "echo hello; sleep 1; echo bye; exit 3", streams=streams)
    direct.run("b", "sleep", "1000")
    stdout = streams["stdout"]
    direct.until("hello", lambda: direct.output[stdout] == b"hello\n")
    direct.die()
    time.sleep(2)
    for times, written in enumerate((2, 0, 6), start=1):
        direct.output[stdout].clear()
        direct.finished.clear()
        answer = resume(direct, ["a"], {stdout: max(2, written)})
        assert answer["times"] == times
        target = answer["targets"]["a"]
        assert target["usage"]["memory_of"] == "process"
        assert target == {**target, "started": True, "ended": [3 << 8, False, False]}
        assert direct.finish(stdout) == b"hello\nbye\n"[max(2, written) :]
        direct.die()

    def knows_b() -> bool:
        direct.finished.clear()
        there = "b" in resume(direct, ["a"], {stdout: 10})["targets"]
        direct.die()
        return there

    wait_while("what nobody knows", knows_b)
    direct.finished.clear()
    resume(direct, ["a"], {stdout: 10})
    assert direct.call("delete", id="a") == {}
    assert direct.close() == (137, "")  # as the last container, which was deleted


def test_another_supervisor_learns_what_has_come(direct: Shim) -> None:
    """Of an input that nobody reads: credit for it was lost, too."""
    streams = direct.streams("stdin")
    stdin = streams["stdin"]
    direct.run("a", "sleep", "1000", streams=streams)
    direct.write(stdin, bytes(600_000), end=False)
    assert direct.call("resize", id="a", rows=1, columns=1) == {}  # it has read all before
    direct.die()
    [[taken, room]] = resume(direct, ["a"], {})["inputs"].values()
    assert taken == 600_000
    assert WINDOW - 600_000 < room < WINDOW  # some is in the pipe
    for _ in range(2):
        while room:
            piece = min(room, PIECE)
            direct.send(DATA, stdin, bytes(piece))
            taken, room = taken + piece, room - piece
        assert direct.call("resize", id="a", rows=1, columns=1) == {}  # it was not too much
        direct.die()
        assert resume(direct, ["a"], {})["inputs"] == {str(stdin): [taken, room]}
    assert direct.call("signal", id="a", number=9, all=True) == {}
    direct.ended("a")
    direct.die()
    assert resume(direct, ["a"], {})["inputs"] == {}
    assert direct.close() == (137, "")


def test_another_supervisor_of_an_older_version(direct: Shim) -> None:
    """It knows no seals, and says so: over srun, which Slurm protects."""
    direct.run("a", "sleep", "1000")
    direct.die()
    with listening() as sock:
        direct.ask(
            "resume", token="t", addresses=[["127.0.0.1", sock.getsockname()[1]]],
            secret=SECRET.hex(), patience=5, alone=600, targets=["a"], written={},
        )  # fmt: skip
        connection, _ = sock.accept()
        assert prove(connection)
    direct.use_plain(connection.detach())
    direct.until("its answer", lambda: direct.resumed)
    assert direct.resumed[0]["targets"]["a"] == _RUNS
    assert direct.close() == (137, "")


def test_what_is_forged_is_told_over_srun(direct: Shim) -> None:
    """And the container goes on, until somebody decides."""
    direct.run("a", "sleep", "1000")
    os.write(direct.direct, bytes(100))
    direct.until("its word", lambda: direct.forged)
    assert "frame 3 was changed" in direct.forged[0]
    direct.die()
    assert resume(direct, ["a"], {})["targets"]["a"] == {
        "started": True,
        "ended": None,
        "usage": None,
    }
    assert direct.close() == (137, "")


def test_another_supervisor_that_cannot_be_reached(direct: Shim) -> None:
    direct.run("a", "sleep", "1000")
    direct.die()
    with listening() as sock:
        addresses = [["127.0.0.1", sock.getsockname()[1]]]
    direct.ask(
        "resume", token="t", addresses=addresses, secret=SECRET.hex(), patience=0.5, alone=600,
        targets=["a"], written={},
    )  # fmt: skip
    direct.until("its answer", lambda: direct.resumed)
    assert "refused" in direct.resumed[0]["error"]
    assert resume(direct, ["a"], {})["targets"]["a"] == {
        "started": True,
        "ended": None,
        "usage": None,
    }
    assert direct.close() == (137, "")


def test_one_of_several(make_shim: MakeShim) -> None:
    """It says who it is, and ends with the connection: its supervisor is not coming back."""
    env = {"SLURM_PROCID": "3", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.9"}
    shim = connected(make_shim, env, needed=True, alone=0)
    assert shim.hello["rank"] == 3
    shim.run("a", "sh", "-c", "exit 7")
    assert shim.ended("a") == 7
    shim.die()
    assert shim.wait() == (7, "")


def came(call: dict[str, object]) -> "subprocess.CompletedProcess[bytes]":
    """What becomes of a shim that gets this call, and then the end of its input."""
    content = frame(CALL, 0, json.dumps({**BEGIN, **call}).encode())
    return subprocess.run(COMMAND, input=content, capture_output=True, timeout=20)


@pytest.mark.covers("security keep the shim from connecting")
def test_one_of_several_cannot_connect() -> None:
    with listening() as sock:

        def hang_up() -> None:
            connection = sock.accept()[0]
            assert len(connection.recv(32)) == 32  # what is left unread resets a connection
            connection.close()

        with ThreadPoolExecutor() as pool:
            hung_up = pool.submit(hang_up)
            port = sock.getsockname()[1]
            done = came({"port": port, "host": "127.0.0.1", "needed": True})
            hung_up.result()
    assert done.returncode == 1
    assert done.stdout == b"\n"
    assert done.stderr.startswith(f"{UNREACHED}: 127.0.0.1:".encode())
    assert done.stderr.endswith(b"closed before it proved to know the secret\n")


def test_nobody_begins() -> None:
    """The supervisor has gone: that is no failure of the node's."""
    for content in (b"", frame(CALL, 0, b"x" * 10)[:-1]):
        done = subprocess.run(COMMAND, input=content, capture_output=True, timeout=20)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.covers("security give the shim other code, or a node another image")
def test_other_code_over_srun() -> None:
    """It was announced otherwise: nothing of it is run."""
    content = frame(CALL, 0, json.dumps(BEGIN).encode()) + frame(DATA, 0, b"other code")
    done = subprocess.run(COMMAND, input=content, capture_output=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr == b"over srun: received something that is not the shim's code\n"


def test_the_supervisor_goes_before_the_code_has_come() -> None:
    """As it does for a pool that is stopped while it starts: the node has not failed."""
    done = came({})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"\n")


def over_srun(make_shim: MakeShim, *socks: socket.socket, meet: Any = lambda shim: None) -> Shim:
    """Make a shim that can connect to nobody but these; it works all the same."""
    port = socks[0].getsockname()[1] if socks else 0
    shim = make_shim(begin={"port": port}, meet=meet)
    streams = shim.streams("stdout")
    shim.run("a", "echo", "over srun", streams=streams)
    assert shim.finish(streams["stdout"]) == b"over srun\n"
    return shim


def test_nowhere_to_connect(make_shim: MakeShim) -> None:
    shim = over_srun(make_shim)
    assert shim.asked["error"] == ""
    assert shim.asked["waited"] < 0.5


@pytest.mark.covers("security listen where a shim connects")
def test_somebody_without_the_secret(make_shim: MakeShim) -> None:
    with listening() as sock:

        def meet(_: Shim) -> None:
            connection = sock.accept()[0]
            with connection:
                assert not prove(connection, b"another")
                assert connection.recv(1) == b""

        shim = over_srun(make_shim, sock, meet=meet)
    assert "secret" in shim.asked["error"]


def test_nobody_answers(make_shim: MakeShim) -> None:
    with listening() as mute:
        shim = over_srun(make_shim, mute)
    assert "no answer" in shim.asked["error"]
    assert shim.asked["waited"] == 0  # it is reached; its supervisor may be stopped


def test_nobody_accepts(make_shim: MakeShim) -> None:
    with listening() as full, ExitStack() as stack:
        full.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        shim = over_srun(make_shim, full)
    assert "no answer" in shim.asked["error"]
    assert 1.4 < shim.asked["waited"] < 3


def test_nobody_listens(make_shim: MakeShim) -> None:
    with listening() as sock:
        port = sock.getsockname()[1]
    shim = make_shim(begin={"port": port, "host": "no such host"})
    assert "refused" in shim.asked["error"]
    assert "no such host" in shim.asked["error"]


def sent_code(sock: socket.socket) -> None:
    """Give a shim its code, which it has, and close the connection."""
    connection = sock.accept()[0]
    with connection:
        assert prove(connection)
        assert connection.recv(1000)
        connection.sendall(frame(DATA))


def test_the_connection_fails_before_the_first_call(make_shim: MakeShim) -> None:
    """It says hello once more, over srun."""
    with listening() as sock:
        over_srun(make_shim, sock, meet=lambda _: sent_code(sock))


def test_the_connection_of_one_of_several_fails_before_the_first_call() -> None:
    with (
        listening() as sock,
        subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        call = {**BEGIN, "port": sock.getsockname()[1], "host": "127.0.0.1", "needed": True}
        assert process.stdin is not None
        process.stdin.write(frame(CALL, 0, json.dumps({**call, "alone": 0}).encode()))
        process.stdin.flush()
        sent_code(sock)
        assert process.wait(10) == 0


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense, and more of it", frame(CALL, 0, b"{}"), frame(DATA, 0, b"other code")],
)
def test_the_connection_fails_before_the_code_has_come(make_shim: MakeShim, answer: bytes) -> None:
    """It asks once more, over srun."""
    with listening() as sock:

        def meet(_: Shim) -> None:
            connection = sock.accept()[0]
            with connection:
                assert prove(connection)
                [(kind, stream, words)] = WholeFrames().feed(connection.recv(1000))
                assert (kind, stream) == (EVENT, 0)
                assert json.loads(words) == {"event": "code", "python": ""}
                connection.sendall(answer)

        shim = over_srun(make_shim, sock, meet=meet)
    error = shim.asked["error"]
    assert any(words in error for words in ("kind", "not the shim's code", "closed"))
    assert ("closed" in error) is (answer == b"")
