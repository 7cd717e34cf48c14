"""What the surfaces have in common."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scrun.core.errors import ScrunError
from scrun.core.text import one_line, printable

LONGEST = 4096


RELEASES = ((22, 5), (24, 11))


@dataclass(frozen=True)
class Target:
    """A surface.

    Attributes:
        about: What comes there.
        check: Raises when something does not hold.
        seeds: Right input, to begin with.
        words: What its syntax is made of, for atheris.
    """

    about: str
    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[str, ...] = ()


def check_error(error: ScrunError, *, begins: str = "", ends: str = "") -> None:
    """Check that an error can be shown, and that it names what it is about."""
    text = str(error)
    assert text.startswith(begins), text
    assert text.endswith(ends), text
    assert text.strip(), "an error without words"
    assert len(text) <= LONGEST, f"an error of {len(text)} characters"
    line = printable(one_line(text.encode(errors="replace").decode()))
    assert line.isprintable()
    line.encode(errors="backslashreplace")
    assert 0 < error.exit_code < 128


@cache
def scratch() -> Path:
    """A directory for what has to be a file."""
    # the fuzzer ends without a way out of its own: its parent removes what it is given
    given = os.environ.get("SCRUN_FUZZ_SCRATCH", "/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="scrun-fuzz-", dir=given))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "rootfs").mkdir()
    return directory


def written(name: str, content: bytes) -> str:
    """Write a file there; return its path."""
    path = scratch() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)


def lines_of(data: bytes) -> list[str]:
    """The lines of a command's output, as the supervisor's pumps make them."""
    return [line.rstrip("\r") for line in data.decode(errors="replace").split("\n")]
