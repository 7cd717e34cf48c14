"""Checks a bundle before a job is requested: can it run at all?"""

import os

from scrun.core.errors import BundleError
from scrun.images.squashfs import find_program
from scrun.oci.config import Bundle, Process, load_bundle
from scrun.oci.lookup import Found, NotFound, Unknown
from scrun.supervisor.containers.names import find_names
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.core.threads import look

_READING = 30.0


class ProgramNotFound(BundleError):
    """The program is not in the bundle or not executable; has the exit status of a shell."""

    def __init__(self, message: str, status: int = 127) -> None:
        super().__init__(message)
        self.status = status


async def admit(
    create_request: CreateRequest, caller: int, *, at_terminal: bool
) -> tuple[Bundle, Found | Unknown, dict[str, str]]:
    """Read and check a bundle, in a thread: the user's file system may hang.

    Args:
        caller: The pid of its `create`; 0 if that is not known.
        at_terminal: Whether the caller's standard input and output are a terminal.

    Returns:
        The bundle, what is known about its program, and the annotations that say how the
        container is called.

    Raises:
        BundleError: The bundle cannot run.
    """
    bundle, program, names = await look(
        create_request.bundle, _look, create_request, caller,
        failure=BundleError, patience=_READING,
    )  # fmt: skip
    if isinstance(program, NotFound):
        raise ProgramNotFound(program.message, program.exit_status)
    _check_terminal(bundle, create_request, at_terminal=at_terminal)
    return bundle, program, names


def _look(
    create_request: CreateRequest, caller: int
) -> tuple[Bundle, Found | NotFound | Unknown, dict[str, str]]:
    bundle = load_bundle(create_request.bundle, create_request.config_file)
    return bundle, find_program(bundle), find_names(create_request, bundle, caller)


def _check_terminal(bundle: Bundle, create_request: CreateRequest, *, at_terminal: bool) -> None:
    """Require a console socket for a terminal (runc's terminals.md), except for `run`."""
    terminal, where = bundle.config.process.terminal, f"{bundle.config_file}: process.terminal"
    if create_request.console is not None and not terminal:
        raise BundleError(f"{where} is false: set it to true, or omit --console-socket")
    if not terminal or create_request.console is not None or create_request.keeps_output:
        return
    if not create_request.in_foreground:
        raise BundleError(f"{where} is true: give --console-socket, or set it to false")
    if not at_terminal:
        raise BundleError(
            f"{where} is true, but standard input and output are not a terminal: use --detach, "
            "or set it to false"
        )


def called_as(program: Found | Unknown, process: Process, name: str) -> str:
    """Return the absolute path of a program in the container; "" if unknown."""
    if "/" in name:
        return os.path.join(process.cwd, name)
    if isinstance(program, Found) and name == process.args[0]:
        return program.called
    return ""  # not seen, or replaced by a script
