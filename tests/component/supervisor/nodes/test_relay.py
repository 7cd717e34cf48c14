"""Somebody on the way: never another byte or status than the right one, and always an end."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
import trio

from scrun.supervisor.nodes import beginning
from scrun.supervisor.nodes.connection import ShimError, ShimLost
from scrun.supervisor.nodes.dialing import Unreached
from scrun.supervisor.nodes.link import Sealing
from scrun.supervisor.wire.processor import has_gmac
from scrun.supervisor.wire.seals import NO_REST
from tests.component.supervisor.nodes.test_both_ends import MIB, node
from tests.harness.bundle import make_rootfs
from tests.harness.relay import DEEDS, DOWN, UP, Deed, Relay

pytestmark = [
    pytest.mark.usefixtures("no_descriptor_stays"),
    pytest.mark.covers("promise bytes and statuses are the right ones"),
]

ROUNDS = 1000 if os.environ.get("SCRUN_NIGHTLY") else 36
QUIET = 0.2
CONTENT = random.Random(0).randbytes(16_000_000)
MUCH = 90
"""Some frames are sealed by GMAC by then, each way; there are 130 at least."""
WORDS = b"to standard error\n"
SCRIPT = f"cat; printf '{WORDS.decode()[:-1]}\\n' >&2; exit 7"
MOST = 40.0
"""Seconds for everything: ten of them may be waited for the code."""


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("relay") / "rootfs"
    make_rootfs(path)
    return path


class Run:
    """A container whose shim has somebody on its way.

    Attributes:
        output: What has come.
        errors: Likewise of standard error.
        status: Its exit status; None: the shim was lost.
        reason: Why it was.
    """

    def __init__(self) -> None:
        self.output, self.errors = bytearray(), bytearray()
        self.status: int | None = None
        self.reason = ""

    async def go(self, container: Path, tmp_path: Path, streams: bool, gmac: bool) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (given, typing), (readable, writable), (complaints, complaining) = pipes
        sealing = Sealing(streams, QUIET, gmac)

        def write() -> None:
            with open(typing, "wb") as file:
                file.write(CONTENT)

        def read(fd: int, into: bytearray) -> None:
            while part := os.read(fd, MIB):
                into.extend(part)

        async def run() -> None:
            async with node(container, tmp_path, patience=1, sealing=sealing) as there:
                stdio = (given, writable, complaining)
                self.status = await there.run("sh", "-c", SCRIPT, stdio=stdio)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read, readable, self.output)
            nursery.start_soon(trio.to_thread.run_sync, read, complaints, self.errors)
            nursery.start_soon(trio.to_thread.run_sync, write)
            try:
                with trio.fail_after(MOST):
                    await run()
            except* (ShimLost, ShimError) as group:
                self.reason = str(group.exceptions[0])
            finally:
                for fd in (writable, complaining):
                    os.close(fd)
                await trio.to_thread.run_sync(read, given, bytearray())  # so that nobody waits
                os.close(given)
        for fd in (readable, complaints):
            os.close(fd)


async def between(
    deed: Deed, container: Path, tmp_path: Path, patch: pytest.MonkeyPatch, *,
    streams: bool = True, gmac: bool = False,
) -> tuple[Run, Relay]:  # fmt: skip
    """Run a container while somebody does this."""
    relay, run = Relay(deed, streams), Run()

    def begin_call(port: int, *words: Any) -> dict[str, Any]:
        relay.target = port
        return {**real(port, *words), "port": relay.port}

    with patch.context() as patched:
        real = beginning.begin_call
        patched.setattr(beginning, "begin_call", begin_call)
        patched.setattr(beginning, "_unreached", Unreached())
        async with relay.relaying():
            await run.go(container, tmp_path, streams, gmac)
    return run, relay


def is_right(run: Run) -> bool:
    return (bytes(run.output), bytes(run.errors), run.status) == (CONTENT, WORDS, 7)


@pytest.mark.parametrize(
    ("streams", "gmac"),
    [(True, False), (True, True), (False, False)],
    ids=["all", "gmac", "calls"],
)
async def test_nothing_is_done(
    container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *,
    streams: bool, gmac: bool,
) -> None:  # fmt: skip
    run, relay = await between(
        Deed(), container, tmp_path, monkeypatch, streams=streams, gmac=gmac
    )
    assert is_right(run), run.reason
    assert min(relay.counts.values()) > 10


def deed(seed: int) -> Deed:
    """Any; half of them while the container begins or ends, and the others among its bytes."""
    chosen = random.Random(seed)
    ranges = ((12, 26), (0, 12), (MUCH, MUCH + 14), (0, 12))
    number = chosen.randrange(*ranges[seed % 4])
    return Deed(chosen.choice(DEEDS), chosen.choice((UP, DOWN)), number, seed)


@pytest.mark.covers("security hold everything back")
@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_something_is_done(
    seed: int, container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = deed(seed)
    run, relay = await between(done, container, tmp_path, monkeypatch, gmac=has_gmac())
    if not run.reason:
        assert is_right(run), done
        return
    assert relay.has_acted
    assert done.kind != "delay"
    assert "\n" not in run.reason
    assert run.status is None
    assert CONTENT.startswith(run.output)
    assert WORDS.startswith(run.errors)


@pytest.mark.covers(
    "security change, leave out, repeat or reorder anything that a shim and its supervisor say"
)
@pytest.mark.parametrize("number", [8, MUCH + 10])
@pytest.mark.parametrize("way", [UP, DOWN])
@pytest.mark.parametrize("kind", [each for each in DEEDS if each != "delay"])
async def test_each_is_noticed(
    kind: str, way: str, number: int,
    container: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of a frame in the middle; the reason says so, whoever has noticed it."""
    done = Deed(kind, way, number, 5)
    run, relay = await between(done, container, tmp_path, monkeypatch, gmac=number > MUCH)
    assert relay.has_acted
    assert "frame" in run.reason
    # who is cut off may wait for credit, and say nothing more that would stand for the rest
    assert "on its way" in run.reason or (kind == "cut" and NO_REST in run.reason)
