"""Starts, signals and reaps all child processes.

The main thread starts them, not trio's `open_process`: that runs Popen in a worker thread, which
ends after ten idle seconds, and the parent-death signal is bound to the *thread* that forked
(prctl(2)). Starting takes about a millisecond (vfork and exec), and vfork suspends the thread
until the child calls exec. So the first program is always a local one, `setpriv` or a shell. It
changes the directory and looks up the command in PATH when we run again: both may be on a file
system that hangs.

We wait for children on pidfds: nothing polls, SIGCHLD is left alone, and only known children are
reaped.
"""

import functools
import os
import resource
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from signal import SIGKILL, SIGTERM, pidfd_send_signal

import msgspec
import trio

from scrun.supervisor.core.limits import Limits, raise_open_files, words_for
from scrun.supervisor.core.mounts import seen_mounts
from scrun.supervisor.core.threads import in_thread

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL_GRACE = 0.5
_THERE = ("/bin/sh", "-c", 'cd -- "$0" && exec "$@"')
_nofile_soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def keep_descriptors_free(newest: int) -> None:
    """Raise the limit when a quarter of the descriptors is below this one, the newest.

    A container takes about twenty, so few supervisors need it. Children must not inherit the
    raised limit (see `supervisor.core.limits`), and the `prlimit` before each costs 0.7 ms.
    """
    if newest > _nofile_soft // 4:
        raise_open_files()


class ChildEnv(msgspec.Struct, frozen=True):
    """The execution environment of one container's child processes.

    Attributes:
        environment: The whole environment; nothing is inherited from the supervisor.
        umask: The umask of the container's `create`.
        prefix: Words before the command, such as those that enter a user namespace.
        limits: Soft limits, by name; if empty, those with which the supervisor started.
        processors: Those that the container may use, as its `create`; if empty, any. Its children
            use the supervisor's.
        descriptors: Our descriptors that all children inherit, under the same numbers.
    """

    environment: Mapping[str, str]
    umask: int = 0o022
    prefix: tuple[str, ...] = ()
    limits: Limits = ()
    processors: frozenset[int] = frozenset()
    descriptors: tuple[int, ...] = ()

    def with_more(self, variables: Mapping[str, str]) -> "ChildEnv":
        return msgspec.structs.replace(self, environment={**self.environment, **variables})


class Child:
    """A running child process; its pid is valid until `wait` has returned."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", name: str, *, whole_group: bool = False
    ) -> None:
        self.pid = process.pid
        self.name = name
        self._whole_group = whole_group
        self._process = process
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:  # out of descriptors: nobody else would end and reap it
            process.kill()
            process.wait()
            raise
        self._lock = trio.Lock()

    async def wait(self) -> int:
        """Wait for its end and reap it; return its status, or the negated number of its signal."""
        async with self._lock:
            if self._process.returncode is None:
                await trio.lowlevel.wait_readable(self._pidfd)
                if self._whole_group:  # before the reap, while the number cannot be reused
                    self.signal_group(SIGKILL)
                self._process.wait()
        return self._process.returncode

    @property
    def ended(self) -> bool:
        """Whether it has been reaped."""
        return self._process.returncode is not None

    def signal(self, number: int) -> None:
        """Send a signal to the process, or its whole group; does nothing if it has ended."""
        if self.ended:
            return
        if self._whole_group:
            self.signal_group(number)
        else:
            pidfd_send_signal(self._pidfd, number)

    def signal_group(self, number: int) -> None:
        """Send a signal to its process group; only before it is reaped."""
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            pass  # only its zombie is left in the group; or only processes of other users

    async def end(self, *, grace: float, by: int = SIGTERM) -> int:
        """End it: a signal, `grace` seconds, SIGKILL. Returns after it is reaped."""
        with trio.CancelScope(shield=True):
            self.signal(by)
            with trio.move_on_after(grace):
                await self.wait()
            self.signal(SIGKILL)
            status = await self.wait()
        return status

    @property
    def pidfd(self) -> int:
        return self._pidfd

    def outlives_us(self) -> None:
        """Leave it alone when we exit: it has taken its parent-death signal back by itself."""
        _dying_with_us.discard(self)

    def close(self) -> None:
        os.close(self._pidfd)


@asynccontextmanager
async def child(
    argv: Sequence[str],
    child_env: ChildEnv,
    *,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    stderr: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    grace: float = 5.0,
    dies_with_us: bool = True,
    whole_group: bool = False,
    directory: str = "/",
) -> AsyncIterator[Child]:
    """Run a child while the block runs.

    It leads a session of its own, and is ended and reaped when the block is left, in any way.

    Args:
        argv: The command; a name without a slash is looked up in PATH of `child_env`. Without
            `dies_with_us` it must be a local program, as it may be the first to be executed.
        child_env: Environment, umask, limits, and words before the command.
        stdin: A descriptor, or `subprocess.DEVNULL`; likewise `stdout` and `stderr`.
        pass_fds: Further descriptors, inherited under their numbers.
        grace: Seconds between SIGTERM and SIGKILL.
        dies_with_us: Whether it gets SIGTERM when the supervisor dies.
        whole_group: Whether signals go to its whole process group, and the rest of the group is
            killed when it has ended.
        directory: Its working directory; waits for a file system that hangs.

    Raises:
        OSError: The program cannot be executed, or the directory does not exist.
    """
    there: tuple[str, ...] = ()
    if directory != "/":
        await in_thread(_look_at, directory, abandon=True)
        there = (*_THERE, directory)
    with seen_mounts().entered():
        process = subprocess.Popen(  # noqa: ASYNC220 (see the module)
            [*_before(dies_with_us, child_env.limits), *there, *child_env.prefix, *argv],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=(*pass_fds, *child_env.descriptors),
            env=dict(child_env.environment),
            umask=child_env.umask & 0o077,  # they enter directories that they make
            cwd="/",
            start_new_session=True,
        )
    running = Child(process, os.path.basename(argv[0]), whole_group=whole_group)
    if dies_with_us:
        _dying_with_us.add(running)
    try:
        yield running
    finally:
        if not running.ended:
            await running.end(grace=grace)
        _dying_with_us.discard(running)
        running.close()


def _look_at(directory: str) -> None:
    """Check that a child can work in a directory; raises OSError if it cannot."""
    try:
        os.stat(os.path.join(directory, "."))
    except OSError as error:
        raise OSError(error.errno, error.strerror, directory) from None


_dying_with_us: set[Child] = set()


def end_children() -> None:
    """Send SIGTERM to the process groups of the children that die with us, before we exit.

    The kernel signals only the children; a shell that ends that way leaves its command running.
    """
    for running in _dying_with_us:
        if not running.ended:
            running.signal_group(SIGTERM)


@functools.cache
def own_program(name: str) -> str:
    """Return the path of a program that we need ourselves, regardless of the caller's PATH."""
    return shutil.which(name, path=SYSTEM_PATH) or shutil.which(name) or name


def _before(dies_with_us: bool, limits: Limits) -> list[str]:
    """Return the command prefix that does what Popen could do only with Python in the child."""
    words = []
    if options := words_for(limits):
        words += [own_program("prlimit"), *options, "--"]
    if dies_with_us:
        words += [own_program("setpriv"), "--pdeathsig", "TERM", "--"]
    return words


def shell_status(status: int) -> int:
    """Convert the status of a child to that of a shell: 128+n for signal n."""
    return status if status >= 0 else 128 - status


def exit_code(status: int) -> int:
    """Return an exit status for a wait status (waitpid(2)): 128+n for signals."""
    return shell_status(os.waitstatus_to_exitcode(status))


async def run_shell(
    script: str, child_env: ChildEnv, *, stdout: int, stderr: int, directory: str
) -> int:
    """Run a shell script to its end, as `shell_status`; then kill the rest of its process group.

    Raises OSError if the shell or the directory does not exist.
    """
    async with child(
        ["/bin/sh", "-c", script],
        child_env,
        stdout=stdout,
        stderr=stderr,
        grace=_SHELL_GRACE,
        whole_group=True,
        directory=directory,
    ) as running:
        return shell_status(await running.wait())


_OUTPUT_LIMIT = 1 << 20


async def output_of(argv: Sequence[str], child_env: ChildEnv) -> str:
    """Run a command and return its standard output, up to 1 MiB."""
    return (await answer_of(argv, child_env, stderr=subprocess.DEVNULL))[1]


async def answer_of(
    argv: Sequence[str],
    child_env: ChildEnv,
    *descriptors: int,
    stdin: int = subprocess.DEVNULL,
    stderr: int = subprocess.STDOUT,
) -> tuple[int, str]:
    """Run a command; return its status, as `Child.wait`, and its output, up to 1 MiB."""
    readable, writable = os.pipe()
    async with trio.lowlevel.FdStream(readable) as stream:
        try:
            async with child(
                *(argv, child_env),
                stdin=stdin,
                stdout=writable,
                stderr=stderr,
                pass_fds=descriptors,
            ) as running:
                os.close(writable)
                writable = -1
                content = b""
                async for part in stream:
                    content += part[: _OUTPUT_LIMIT - len(content)]
                status = await running.wait()
        finally:
            if writable >= 0:
                os.close(writable)
    return status, content.decode(errors="replace")
