"""trio and msgspec without what they import and a supervisor has no use for."""

import subprocess
import sys

import pytest

from tests import CHECKOUT

_BEGIN = f"""
import sys
sys.path.insert(0, {str(CHECKOUT)!r})
from scrun.supervisor.imports.libraries import import_libraries, patterns_later, postpone_modules
"""
_IMPORT = """
postpone_modules()
with patterns_later():
    import_libraries()
"""


def run(program: str, begin: str = _BEGIN + _IMPORT) -> str:
    argv = [sys.executable, "-W", "error", "-c", begin + program]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout


def test_trio_works() -> None:
    run("""
from pathlib import Path
import trio

async def main():
    send, receive = trio.open_memory_channel(1)
    lock, event, limiter = trio.Lock(), trio.Event(), trio.CapacityLimiter(2)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send.send, 7)
        assert await receive.receive() == 7
        nursery.start_soon(trio.sleep_forever)
        async with lock:
            assert await trio.to_thread.run_sync(lambda: 3, limiter=limiter) == 3
        name = "named by us"
        seen = await trio.to_thread.run_sync(
            Path("/proc/thread-self/comm").read_text,
            thread_name=name,
        )
        assert seen == name + "\\n", seen
        assert repr(trio.CancelScope()).startswith("<trio.CancelScope")
        assert "Statistics" in repr(trio.lowlevel.current_statistics())
        assert await trio.Path("/").is_dir()
        nursery.cancel_scope.cancel()
    with trio.move_on_after(0.01) as scope:
        await trio.sleep(10)
    assert scope.cancelled_caught
    try:
        with trio.fail_after(0.01):
            await trio.sleep_forever()
    except trio.TooSlowError:
        pass
    try:
        await trio.to_thread.run_sync(trio.sleep, 1)
    except TypeError as error:
        assert "asynchronous" in str(error), error
    one, other = trio.socket.socketpair()
    with one, other:
        await one.send(b"x")
        assert await other.recv(1) == b"x"
    return "done"

assert trio.run(main) == "done"
assert not {"attr", "attrs", "inspect"} & {*sys.modules}, sorted(sys.modules)
""")


def test_what_comes_later_is_the_real_one() -> None:
    """A plugin gets what it imports."""
    run("""
import attrs, ctypes.util, inspect, ipaddress, idna.core, re, ssl, textwrap, typing_extensions
import trio

@attrs.define(order=True)
class Thing:
    x: int = attrs.field(converter=int)

assert Thing("3") < Thing(4)
assert inspect.signature(len) and inspect.iscoroutinefunction(trio.sleep)
assert ctypes.util.find_library("c").startswith("libc.so")
assert str(ipaddress.ip_address("::1")) == "::1"
assert idna.encode("ä.de") == b"xn--4ca.de"
assert type(re.compile("x")) is re.Pattern
assert textwrap.dedent("  x") == "x"
assert ssl.create_default_context().verify_mode == ssl.CERT_REQUIRED
import trio.testing
async def main():
    await trio.testing.wait_all_tasks_blocked()
    async with trio.testing.Sequencer()(0): pass
trio.run(main)
""")


@pytest.mark.parametrize(
    "broken",
    [
        "classes._made = None",
        "classes.Attribute.__init__ = None",
        "del classes.frozen\nclasses.modules = lambda: {'attrs': sys, 'attr': sys}",
    ],
)
def test_a_trio_that_needs_more(broken: str) -> None:
    """Then it takes longer."""
    run(
        """
import trio
assert {"attr", "attrs"} <= {*sys.modules}
assert trio.CancelScope.__attrs_attrs__[0].__class__.__module__.startswith("attr.")
async def main(): return await trio.to_thread.run_sync(lambda: 3)
assert trio.run(main) == 3
""",
        f"{_BEGIN}\nfrom scrun.supervisor.imports import classes\n{broken}\n{_IMPORT}",
    )


def test_patterns_are_compiled_when_they_are_used() -> None:
    run(
        """
import re
compiled = []
real = re._compiler.compile
re._compiler.compile = lambda *arguments: compiled.append(arguments) or real(*arguments)
with patterns_later():
    one = re.compile("a(?P<b>b+)", re.I)
    two = re.compile(b"[")
    assert not compiled
assert type(re.compile("zz")) is re.Pattern
compiled.clear()
assert one.fullmatch("ABB")["b"] == "BB" and one.groups == 1 and one.pattern == "a(?P<b>b+)"
assert one.sub("x", "cabc") == "cxc" and [*one.groupindex] == ["b"]
assert len(compiled) == 1
try:
    two.match(b"")
except re.error as error:
    assert "unterminated" in str(error)
""",
        _BEGIN,
    )


def test_msgspec_works() -> None:
    run("""
import msgspec
from typing import Annotated, NotRequired, TypedDict

class Of(TypedDict):
    x: NotRequired[int]

class Thing(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(pattern="^a+$")]
    of: Of = {}

assert msgspec.json.decode(b'{"name": "aa", "of": {}}', type=Thing) == Thing("aa", {})
try:
    msgspec.json.decode(b'{"name": "b"}', type=Thing)
except msgspec.ValidationError:
    print("refused")
""")
