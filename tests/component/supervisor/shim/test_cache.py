"""Images on a node's own disk: they come once, as a whole or not at all, and not too many stay."""

import contextlib
import hashlib
import os
import random
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.shim.door import MOST_UNKNOWN
from scrun.supervisor.wire.frames import END, RANDOM, knock, proof
from scrun.supervisor.wire.seals import digest
from tests.component.supervisor.shim.conftest import MakeShim
from tests.harness import users
from tests.harness.places import mounted
from tests.harness.processes import descendants
from tests.harness.shim import Shim
from tests.harness.wait import wait_until

SIZE = 3 << 20
CONTENT = random.Random(1).randbytes(SIZE)
DIGEST = digest(CONTENT).hexdigest()


@pytest.fixture
def disk() -> Iterator[Path]:
    """The place for files on a node."""
    with tempfile.TemporaryDirectory(prefix="shim-disk-") as path:
        os.chmod(path, 0o1777)
        yield Path(path)


@pytest.fixture
def shim(make_shim: MakeShim, disk: Path) -> Shim:
    return make_shim({"TMPDIR": str(disk)})


def fetch(shim: Shim, name: str = "a", one: str = "1", **fields: Any) -> dict[str, Any]:
    return shim.call("fetch", id=one, name=name, **{"size": SIZE, "limit": 0, **fields})


def send(shim: Shim, one: str = "1", content: bytes = CONTENT) -> dict[str, Any]:
    [stream] = shim.streams("image").values()
    number = shim.ask("receive", id=one, stream=stream, digest=DIGEST)
    shim.write(stream, content)
    return shim.answer(number)


def couriers(shim: Shim) -> list[int]:
    """Return its children that have the image open; another may remove what dead shims left."""
    found = []
    for pid in descendants(shim.hello["pid"]):
        with contextlib.suppress(OSError):
            held = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
            found += [pid] * any(name.endswith(".part") for name in held)
    return found


def images(disk: Path, uid: int = 0) -> set[str]:
    return {path.name for path in (disk / f"scrun-images-{uid}").iterdir()}


def test_one_comes_and_stays(shim: Shim, make_shim: MakeShim, disk: Path) -> None:
    assert fetch(shim) == {}
    path = Path(send(shim)["path"])
    assert path.read_bytes() == CONTENT
    assert images(disk) == {"a"}
    assert path.parent.stat().st_mode & 0o777 == 0o700
    another = make_shim({"TMPDIR": str(disk)})
    assert fetch(another) == {"path": str(path)}
    shim.end()
    another.end()
    assert images(disk) == {"a"}


def test_one_of_a_user(make_shim: MakeShim, disk: Path) -> None:
    user = users.ordinary()
    shim = make_shim({"TMPDIR": str(disk)}, user)
    assert fetch(shim) == {}
    assert Path(send(shim)["path"]).stat().st_uid == user.uid


def test_two_at_once_have_it_come_once(shim: Shim, make_shim: MakeShim, disk: Path) -> None:
    """Another shim, and another container of the same, are told, and wait for that one."""
    another = make_shim({"TMPDIR": str(disk)})
    assert fetch(shim) == {}
    assert fetch(another) == fetch(shim, one="2") == {"comes": True}
    waits = {another.ask("wait", id="1"): another, shim.ask("wait", id="2"): shim}
    time.sleep(0.2)
    for one in (shim, another):
        one.pump(0)
    path = send(shim)["path"]
    for number, one in waits.items():
        assert one.answer(number) == {"path": path}
    assert images(disk) == {"a"}


def test_who_waits_has_it_come_if_the_first_one_is_killed(make_shim: MakeShim, disk: Path) -> None:
    first, second = (make_shim({"TMPDIR": str(disk)}) for _ in range(2))
    assert fetch(first) == {}
    [stream] = first.streams("image").values()
    first.ask("receive", id="1", stream=stream, digest=DIGEST)
    first.write(stream, CONTENT[: SIZE // 2], end=False)
    assert fetch(second) == {"comes": True}
    number = second.ask("wait", id="1")
    for pid in (*descendants(first.hello["pid"]), first.hello["pid"]):
        os.kill(pid, signal.SIGKILL)
    first.process.wait()
    assert second.answer(number) == {}
    assert Path(send(second)["path"]).read_bytes() == CONTENT
    assert images(disk) == {"a"}


@pytest.mark.covers("security give the shim other code, or a node another image")
def test_another_one_than_was_announced_is_refused(nodes: list[Shim], disk: Path) -> None:
    """One byte is another, of what the supervisor sends or of what another node passes on."""
    other = bytes([CONTENT[0] ^ 1]) + CONTENT[1:]
    first, second, _ = nodes
    assert fetch(first) == {}
    assert "does not have the announced digest" in send(first, content=other)["error"]
    assert list(disk.glob("*/scrun-images-0/a")) == []
    assert "path" in send(first)
    [there] = disk.glob("*/scrun-images-0/a")
    with there.open("r+b") as file:
        file.write(other[:1])
    secret = os.urandom(32).hex()
    addresses = first.call("serve", id="1", secret=secret, peers=1)["addresses"]
    assert fetch(second) == {}
    assert (
        "does not have the announced digest"
        in second.answer(peer(second, secret, addresses))["error"]
    )
    assert Path(send(second)["path"]).read_bytes() == CONTENT


@pytest.mark.parametrize("how", ["short", "long", "closed", "left", "ended"])
def test_nothing_is_left_of_one_that_does_not_come(how: str, shim: Shim, disk: Path) -> None:
    assert fetch(shim) == {}
    if how == "short":
        assert (
            f"{SIZE // 2} of {SIZE} bytes arrived"
            in send(shim, content=CONTENT[: SIZE // 2])["error"]
        )
    elif how == "long":
        assert "error" not in send(shim, content=CONTENT + b"x")  # nobody reads the rest
        assert images(disk) == {"a"}
        return
    else:
        [stream] = shim.streams("image").values()
        number = shim.ask("receive", id="1", stream=stream, digest=DIGEST)
        shim.write(stream, CONTENT[: SIZE // 2], end=False)
        if how == "closed":
            shim.send(END, stream)
            assert "bytes arrived" in shim.answer(number)["error"]
        elif how == "left":
            assert shim.call("leave", id="1") == {}
            assert images(disk) == set()
            wait_until("its courier is gone", lambda: not descendants(shim.hello["pid"]))
        else:
            shim.end()
            assert images(disk) == set()
            return
    assert shim.call("leave", id="1") == {}
    assert images(disk) == set()
    assert fetch(shim, one="2") == {}
    assert "path" in send(shim, one="2")


def test_more_than_was_announced(shim: Shim, disk: Path) -> None:
    """It would fill the disk: what has no room in its size is not written."""
    assert fetch(shim, size=1000) == {}
    [stream] = shim.streams("image").values()
    number = shim.ask("receive", id="1", stream=stream, digest=DIGEST)
    shim.write(stream, CONTENT[:60_000])
    assert "received more data than announced" in shim.answer(number)["error"]
    assert (disk / "scrun-images-0" / "a.part").stat().st_size <= 1000
    assert shim.call("leave", id="1") == {}
    assert images(disk) == set()


def test_what_a_killed_shim_left_goes(make_shim: MakeShim, disk: Path) -> None:
    first = make_shim({"TMPDIR": str(disk)})
    assert fetch(first) == {}
    os.kill(first.hello["pid"], signal.SIGKILL)
    first.process.wait()
    assert images(disk) == {"a.part"}
    second = make_shim({"TMPDIR": str(disk)})
    assert fetch(second, "b") == {}
    send(second)
    assert images(disk) == {"b"}


def test_what_was_not_used_for_the_longest_time_makes_room(shim: Shim, disk: Path) -> None:
    limit = 3 * SIZE
    for name in "abc":
        assert fetch(shim, name, name, limit=limit) == {}
        path = send(shim, name)["path"]
        os.utime(path, (ord(name), ord(name)))
    wait_until("no courier is left", lambda: not descendants(shim.hello["pid"]))
    assert shim.call("leave", id="b") == {}
    assert shim.call("leave", id="c") == {}
    assert "path" in fetch(shim, "b", "b", limit=limit)  # it is used again: now
    assert shim.call("leave", id="b") == {}
    assert fetch(shim, "d", "d", limit=limit) == {}
    send(shim, "d")
    assert images(disk) == {"a", "d"}  # the first one is in use; to four fifths of the limit
    error = fetch(shim, "e", "e", limit=2 * SIZE)["error"]
    assert "no room for 3 MiB on the node" in error
    assert "[images] node_size" in error
    assert images(disk) >= {"a", "d"}


def test_another_version_is_another_one(shim: Shim, disk: Path) -> None:
    """A file that is damaged is not used: its size says so."""
    assert fetch(shim) == {}
    path = Path(send(shim)["path"])
    shim.call("leave", id="1")
    path.write_bytes(CONTENT[:-1])
    assert fetch(shim, one="2") == {}
    assert Path(send(shim, "2")["path"]).read_bytes() == CONTENT


@pytest.mark.covers("security create the directory for images first")
def test_somebody_else_has_made_the_directory(make_shim: MakeShim, disk: Path) -> None:
    """It is not used; the next place is."""
    user = users.ordinary()
    (disk / f"scrun-images-{user.uid}").mkdir(mode=0o777)
    shim = make_shim({"TMPDIR": str(disk)}, user)
    assert fetch(shim) == {}
    path = Path(send(shim)["path"])
    assert path.parent.parent == Path("/var/tmp")
    path.unlink()
    path.parent.rmdir()


def test_the_disk_is_full(make_shim: MakeShim, disk: Path) -> None:
    with mounted(disk, "-o", "size=2m,mode=1777"):
        shim = make_shim({"TMPDIR": str(disk)})
        assert "no room for 3 MiB in" in fetch(shim)["error"]
        # it is full only when most of it has come
        assert fetch(shim, one="2", size=1 << 20) == {}
        (disk / "other").write_bytes(bytes(3 << 19))
        error = send(shim, "2", CONTENT[: 1 << 20])["error"]
        assert "No space left on device" in error
        shim.call("leave", id="2")
        assert images(disk) == set()
        shim.end()


@pytest.mark.parametrize("name", ["../a", ".a", "/etc/a"])
def test_a_bad_name_is_refused(name: str, shim: Shim) -> None:
    assert "not an image name" in fetch(shim, name)["error"]


def test_what_is_not_there_is_refused(shim: Shim) -> None:
    assert "there is no image 7" in shim.call("receive", id="7", stream=1, digest="")["error"]
    assert shim.call("leave", id="7") == {}


def peer(shim: Shim, secret: str, addresses: list[list[Any]], one: str = "1") -> int:
    more = {"secret": secret, "patience": 3, "digest": DIGEST}
    return shim.ask("receive", id=one, addresses=addresses, **more)


@pytest.fixture
def nodes(make_shim: MakeShim, disk: Path) -> list[Shim]:
    """Three of them, each with a disk of its own."""
    made = []
    for name in "abc":
        (disk / name).mkdir()
        made.append(make_shim({"TMPDIR": str(disk / name)}))
    return made


def test_nodes_pass_it_on_while_it_comes(nodes: list[Shim]) -> None:
    secret = os.urandom(32).hex()
    first, second, third = nodes
    for node in nodes:
        assert fetch(node) == {}
    to_first = first.call("serve", id="1", secret=secret, peers=1)["addresses"]
    to_second = second.call("serve", id="1", secret=secret, peers=1)["addresses"]
    calls = {third: peer(third, secret, to_second), second: peer(second, secret, to_first)}
    [stream] = first.streams("image").values()
    number = first.ask("receive", id="1", stream=stream, digest=DIGEST)
    first.write(stream, CONTENT[: SIZE // 2], end=False)
    part = Path(third.env["TMPDIR"]) / "scrun-images-0" / "a.part"
    wait_until("half of it is there", lambda: part.stat().st_size == SIZE // 2)
    first.write(stream, CONTENT[SIZE // 2 :])
    for node, call in {first: number, **calls}.items():
        path = Path(node.answer(call)["path"])
        assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(CONTENT).digest()
        wait_until("no courier is left", lambda: not descendants(node.hello["pid"]))  # noqa: B023


def test_one_that_is_there_is_passed_on(nodes: list[Shim]) -> None:
    first, second, _ = nodes
    assert fetch(first) == {}
    assert "path" in send(first)
    assert fetch(second) == {}
    secret = os.urandom(32).hex()
    addresses = first.call("serve", id="1", secret=secret, peers=1)["addresses"]
    reply = second.answer(peer(second, secret, addresses))
    assert Path(reply["path"]).read_bytes() == CONTENT


def test_who_does_not_know_the_secret_gets_nothing(nodes: list[Shim]) -> None:
    first, second, _ = nodes
    assert fetch(first) == {}
    send(first)
    addresses = first.call("serve", id="1", secret="00" * 32, peers=1)["addresses"]
    assert fetch(second) == {}
    reply = second.answer(peer(second, "11" * 32, addresses))
    assert "error" in reply
    # it is told, and gets it another way
    assert Path(send(second)["path"]).read_bytes() == CONTENT


def test_a_peer_that_is_killed_half_way(nodes: list[Shim]) -> None:
    first, second, _ = nodes
    secret = os.urandom(32).hex()
    for node in (first, second):
        assert fetch(node) == {}
    addresses = first.call("serve", id="1", secret=secret, peers=1)["addresses"]
    call = peer(second, secret, addresses)
    [stream] = first.streams("image").values()
    first.ask("receive", id="1", stream=stream, digest=DIGEST)
    first.write(stream, CONTENT[: SIZE // 2], end=False)
    part = Path(second.env["TMPDIR"]) / "scrun-images-0" / "a.part"
    wait_until("half of it is there", lambda: part.stat().st_size == SIZE // 2)
    for pid in descendants(first.hello["pid"]):
        os.kill(pid, signal.SIGKILL)
    assert f"{SIZE // 2} of {SIZE} bytes arrived" in second.answer(call)["error"]
    assert Path(send(second)["path"]).read_bytes() == CONTENT
    first.until("it is closed", lambda: stream in first.closed)


def test_its_stream_is_closed_when_it_cannot_be_written(shim: Shim) -> None:
    assert fetch(shim) == {}
    [stream] = shim.streams("image").values()
    number = shim.ask("receive", id="1", stream=stream, digest=DIGEST)
    wait_until("it has a courier", lambda: couriers(shim))
    for pid in couriers(shim):
        os.kill(pid, signal.SIGKILL)
    assert "was killed" in shim.answer(number)["error"]
    shim.write(stream, CONTENT)
    assert stream in shim.closed


@pytest.mark.covers("security connect to the port at which an image is passed on")
@pytest.mark.parametrize("says", [b"x" * RANDOM, b""])
def test_who_has_heard_how_it_begins_gets_nothing(nodes: list[Shim], says: bytes) -> None:
    """A proof is not what was said before, nor anything else than the proof."""
    first, *_ = nodes
    assert fetch(first) == {}
    send(first)
    secret = os.urandom(32)
    addresses = first.call("serve", id="1", secret=secret.hex(), peers=1)["addresses"]
    begins = knock(secret, os.urandom(RANDOM // 2))
    with socket.create_connection(tuple(addresses[-1]), 10) as sock:
        sock.sendall(begins)
        theirs = sock.recv(RANDOM, socket.MSG_WAITALL)
        assert len(theirs) == RANDOM
        sock.sendall(says or proof(secret, b"supervisor", begins + theirs))
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(1) == b""


@pytest.mark.covers("security connect to the port at which an image is passed on")
@pytest.mark.parametrize("how", ["nothing", "noise", "half a proof"])
def test_strangers_get_nothing_and_delay_nobody(nodes: list[Shim], how: str) -> None:
    """They stay, as long as they are let: a node that is to have it comes all the same."""
    first, second, _ = nodes
    assert fetch(first) == {}
    send(first)
    assert fetch(second) == {}
    secret = os.urandom(32).hex()
    addresses = first.call("serve", id="1", secret=secret, peers=1)["addresses"]
    said = {"nothing": b"", "noise": bytes(64), "half a proof": knock(bytes(32), bytes(16))}[how]
    with contextlib.ExitStack() as stack:
        strangers = []
        for _ in range(MOST_UNKNOWN + 8):
            sock = stack.enter_context(socket.create_connection(tuple(addresses[-1]), 10))
            sock.sendall(said)
            strangers.append(sock)
        reply = second.answer(peer(second, secret, addresses))
        assert Path(reply["path"]).read_bytes() == CONTENT
        for sock in strangers:
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""
        first.until("who they were", lambda: first.strangers)
    assert f" of user {os.getuid()}" in first.strangers[-1]
