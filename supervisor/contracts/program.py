"""What is run in a running container, besides its own program."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

import msgspec

from scrun.supervisor.core.deposits import Deposit, no_deposit


class Files(NamedTuple):
    """Files that are copied "out" of a container or "into" it, and their path in there."""

    direction: str
    path: str


SERVED = Files("served", "/")
"""All files of a container, as a file system: requests and answers instead of archives."""


def rootfs(directories: Sequence[str]) -> Files:
    """Return the same of its root file system alone, without what is mounted in it.

    Args:
        directories: `Staged.overlaid_directories`.
    """
    return Files("rootfs", "/".join(directories))


class Ends(Protocol):
    """What a program reads and writes (see `supervisor.nodes.ends`)."""

    def source(self) -> AbstractAsyncContextManager[Any]:
        """Open what its standard input comes from."""

    def sink(self, name: str) -> AbstractAsyncContextManager[Any]:
        """Open what its `stdout` or `stderr` goes to."""


class Program(msgspec.Struct, frozen=True):
    """One more program for a running container.

    Attributes:
        process: The program, as `process` of config.json.
        stdio: Descriptors for standard input, output and error; all the same for a terminal.
        program_is_known: Whether it was found in the bundle (see `Step`).
        running: Called when the engine knows that it runs.
        deposit: Keeps what it needs to outlive us.
        preserved: More descriptors for it (see `Step`).
        files: If its job `copies_files`: it is not `process`, but packs these to an archive on its
            standard output, or unpacks one on its standard input there. It ends with 0; with 1
            when it has said why not; or with 3 when the other side of the archive has failed.
        ends: What is read and written instead of `stdio`.
        on_output_lost: As for a job; without it, the engine's log says so.
    """

    process: Mapping[str, Any]
    stdio: tuple[int, int, int]
    terminal: bool
    program_is_known: bool
    running: Callable[[], None]
    deposit: Deposit = msgspec.field(default_factory=no_deposit)
    preserved: tuple[int, ...] = ()
    files: Files | None = None
    ends: Ends | None = None
    on_output_lost: Callable[[str], None] | None = None
