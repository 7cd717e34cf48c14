"""The client in C under libFuzzer, which needs clang, or alone with inputs that are made here."""

import random
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from scrun.core.version import VERSION
from scrun.native.build import OPTIONS, SOURCES, header

ABOUT = "the client in C: a command line, its settings file, replies (needs clang)"
HARNESS = Path(__file__).with_suffix(".c")
SANITIZED = ("-g", "-O1", "-fno-sanitize-recover=all", "-I", str(SOURCES))
ALONE = ("-DALONE", "-fsanitize=address,undefined")
"""Options that build it for `run_alone`."""
QUIET = {"ASAN_OPTIONS": "detect_leaks=0"}  # what leaves in the middle is the kernel's to free

_LINE, _SETTINGS, _REPLY, _CREATED, _STATUS = (bytes([kind]) for kind in range(5))
_FILE = f"{VERSION}\0\0/run/scrun\0user\0/etc/scrun/scrun.toml\0-\0".encode()
SEEDS = (
    _LINE + b"--root\0/run/x\0state\0c1",
    _LINE + b"--root=/run/x\0kill\0--all\0c1\0TERM",
    _LINE + b"create\0--bundle\0/b\0--pid-file\0/p\0c1",
    _LINE + b"exec\0-d\0--process\0/p\0c1",
    _LINE + b"delete\0--force\0c1",
    _SETTINGS + _FILE,
    _SETTINGS + _FILE.replace(b"-\0", b"1 2 3 4 5\0") + b"/x\0-\0" * 28,
    _SETTINGS + _FILE + b"/x\0-\0" * 40,
    _REPLY + b"\0" + b'{"status": "running"}' * 9,
    _REPLY + b"\1no such container",
    _CREATED + b"\xfb\0\xfdlive\0\xfewarning x\0\xffshown\0\0",
    _CREATED + b"\xfc" + b"11\0crun\0create\0\0",
    _CREATED + b"\xfc" + b"12\0" + bytes(12),
    _CREATED + b"\xfc" + b"99999999\0crun\0" + b"\0",
    _STATUS + b"0\n",
    _STATUS + b"137\n",
    _STATUS + b"-1\n",
)


def build(program: Path, compiler: str, *options: str) -> None:
    """Build the harness.

    Raises:
        subprocess.CalledProcessError: It cannot be.
    """
    with tempfile.TemporaryDirectory() as place:
        Path(place, "table.h").write_text(header())
        command = [compiler, *OPTIONS, "-Werror", *SANITIZED, *options, "-I", place]
        subprocess.run([*command, str(HARNESS), "-o", str(program)], check=True)


def fuzz(place: Path, broken: Path, scratch: str, seconds: int) -> int:
    """Run libFuzzer for so long, 0 for ever; return its exit status.

    Args:
        place: Where interesting inputs are kept.
        broken: Where those go that broke it.
        scratch: A directory of root's or this user's own.
    """
    place.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS):
        (place / f"seed-{number}").write_bytes(seed)
    program = Path(scratch, "fuzzed")
    build(program, "clang", "-fsanitize=fuzzer,address,undefined", "-Wno-macro-redefined")
    command = [str(program), f"-max_total_time={seconds}", "-max_len=65536", "-close_fd_mask=3"]
    command += [f"-artifact_prefix={broken}/", str(place)]
    return subprocess.run(command, env={**QUIET, "FUZZED": scratch}, check=False).returncode


def made(seed: int, count: int) -> Iterable[bytes]:
    """Yield the seeds, and as many inputs that were made from them."""
    yield from SEEDS
    dice = random.Random(seed)
    for _ in range(count):
        text = bytearray(dice.choice(SEEDS))
        for _ in range(dice.randint(1, 6)):
            at, end = sorted(dice.randint(1, len(text)) for _ in range(2))
            text[at:end] = dice.choice(
                (
                    b"",
                    dice.randbytes(end - at),
                    text[at:end] * dice.randint(2, 9),
                    b"\0",
                    b"9" * 20,
                )
            )
        yield bytes(text[:65536])


def run_alone(program: Path, scratch: Path, inputs: Iterable[bytes]) -> None:
    """Give a program that was built with `-DALONE` all of the inputs.

    Raises:
        AssertionError: A sanitizer or the harness itself has ended it.
    """
    given = b"".join(len(text).to_bytes(4, "big") + text for text in inputs)
    done = subprocess.run(
        [program],
        input=given,
        env={**QUIET, "FUZZED": str(scratch)},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr[-4000:].decode()
