"""Start a supervisor: only one, however many commands need it at the same moment."""

import _signal
import _socket
import os

from scrun.anchor.shell import out_of_the_way
from scrun.cli.parse import Parsed, record_root, setting
from scrun.client.supervisor_name import place, supervisor_name
from scrun.core.errors import ScrunError, SettingsError, SupervisorLost
from scrun.core.output import discard
from scrun.core.own_directory import own_directory
from scrun.core.paths import BUILDAH, ENGINES_NETWORK, OUTSIDE, packages, python
from scrun.core.place import contents, stat_fields
from scrun.core.whole_files import own_file
from scrun.protocol import wire

_GENERATIONS = 3  # the caller of the runtime, and perhaps scripts around that
_ATTEMPTS = 3  # one that is killed while it starts is as if it had never been
_PATIENCE = 60.0  # for a loaded machine and a slow file system; it takes 0.15 s


def launch(
    root: str, name: str, *, settings_file: str | None = None, lingers: bool = True
) -> _socket.socket:
    """Connect to the supervisor NAME under ROOT; start it unless somebody has meanwhile.

    Without a `settings_file` it has its own settings. `lingers`: it stays for a while when idle.

    Raises:
        SettingsError: ROOT cannot be made, or is not the caller's own.
        SupervisorLost: It did not start; with the reason that it gave.
        OSError: It may be running, but cannot be reached.
    """
    own_directory(root)

    def too_late(*_: object) -> None:
        raise SupervisorLost(
            f"the supervisor does not start: {root}/{name} has no listener after {_PATIENCE:g} s; "
            f"find the process that hangs: `fuser -v {root}/{name}.lock`"
        )

    handler = _signal.signal(_signal.SIGALRM, too_late)
    timer = _signal.setitimer(_signal.ITIMER_REAL, _PATIENCE)
    try:
        return _launch(root, name, settings_file, lingers=lingers)
    finally:
        _signal.setitimer(_signal.ITIMER_REAL, *timer)
        _signal.signal(_signal.SIGALRM, handler)


class _Killed(SupervisorLost):
    """It ended before it could say why."""


def _launch(root: str, name: str, file: str | None, *, lingers: bool) -> _socket.socket:
    for _ in range(_ATTEMPTS - 1):
        try:
            return _launch_once(root, name, file, lingers=lingers)
        except (_Killed, *wire.NOBODY):
            pass
    return _launch_once(root, name, file, lingers=lingers)


def _launch_once(root: str, name: str, file: str | None, *, lingers: bool) -> _socket.socket:
    try:
        lock = own_file(f"{root}/{name}.lock")
    except OSError as error:
        raise SettingsError.of_root(root, error) from error
    try:
        try:
            return wire.connect_supervisor(root, name)
        except wire.NOBODY:
            _start(root, name, lock, file, lingers=lingers)
        return wire.connect_supervisor(root, name)
    finally:
        os.close(lock)


def is_waited_for() -> bool:
    """Tell whether a subreaper above this process would wait for the supervisor's end.

    conmon and buildah are subreapers: a daemon that is started below them becomes their child.
    conmon exits when it has no child left (conmon.c, check_child_processes), and so does the
    process in which buildah calls the runtime (buildah 1.42, reapStrays); its name tells it.
    """
    return is_below_conmon() or is_below_buildah()


def is_below_conmon() -> bool:
    return "_OCI_SYNCPIPE" in os.environ


def is_below_buildah() -> bool:
    """Tell whether the process in which buildah calls the runtime is above this one."""
    pid = os.getppid()
    for _ in range(_GENERATIONS):
        if contents(f"/proc/{pid}/cmdline").startswith(BUILDAH):
            return True
        if not (fields := stat_fields(pid)):  # it is gone, or 0: in another namespace
            return False
        pid = int(fields[1])
    return False


def _remove(*paths: str) -> None:
    for path in paths:
        try:
            os.unlink(path)
        except OSError:
            pass  # it is gone already, or cannot be removed


def launch_beside(root: str, name: str, *, to_tidy: bool = False) -> None:
    """Start a supervisor that nobody waits for, or (`to_tidy`) have dead ones cleaned up."""
    if os.fork():  # an interpreter of its own would take as long as all of `start`
        return
    try:
        os.setsid()
        discard(0, 1, 2)
        for number in map(int, os.listdir("/proc/self/fd")):  # somebody may wait for their end
            if number > 2:
                os.closerange(number, number + 1)  # that of the listing is closed already
        sock = launch(root, name, lingers=not to_tidy)
        if to_tidy:
            wire.send(sock, [b"tidy"])
            wire.receive(sock)
    finally:
        os._exit(0)


def launch_common(parsed: Parsed) -> None:
    """Start the supervisor for the next containers, after the `start` of one that has its own.

    A container whose `create` ran below conmon has a supervisor of its own (`submit._reach`).
    podman, and not conmon, calls `start`: a supervisor that is started here keeps nobody waiting.
    buildah calls `start` itself and would wait, so there none is started.
    """
    try:
        root = record_root(parsed)
        if (setting(parsed, "group") or "user") != "user" or is_waited_for():
            return
        if place().task:  # it would end with that
            return
        name = supervisor_name("user", parsed)
        if not os.path.lexists(f"{root}/{name}"):
            launch_beside(root, name)
    except (ScrunError, OSError):
        pass  # the next `create` starts one, and reports what is wrong


# The supervisor must not inherit what the first caller ignores or blocks (SIGINT in a shell's
# background job): it serves all later containers. 32 and 33 belong to the C library.
_SIGNALS = tuple({*range(1, 65)} - {9, 19, 32, 33})


def _start(root: str, name: str, lock: int, file: str | None, *, lingers: bool) -> None:
    """Run the supervisor's program, and wait until it listens or has reported an error.

    Until then it holds the lock too: if this process is killed, nobody else may start a supervisor
    while this one is about to take the name.
    """
    readable, writable = os.pipe()
    environment = _environment(file)
    fds = [writable, lock]
    if os.environ.get(OUTSIDE):
        from scrun.client.outside import Asked

        started: Asked | Spawned = Asked(root, name, fds, environment, lingers=lingers)
    else:
        started = Spawned(root, name, fds, environment, lingers=lingers)
    os.close(writable)
    try:
        with open(readable, "rb") as pipe:
            answer = pipe.read().decode(errors="replace").strip()
    except SupervisorLost:
        started.kill()
        raise
    finally:
        started.close()
    if answer != "ready":
        _remove(f"{root}/{name}", f"{root}/{name}.lock")  # a running one does so when it exits
        if not answer:
            raise _Killed("the supervisor does not start: it ended without giving a reason")
        raise SupervisorLost(f"the supervisor does not start: {answer}")


class Spawned:
    """A starting supervisor, our child; `pid` ends as soon as it has daemonized itself."""

    def __init__(
        self,
        root: str,
        name: str,
        fds: "list[int]",
        environment: "dict[str, str]",
        *,
        lingers: bool,
    ) -> None:
        """Start it; `fds` are a pipe's end for what it says, and the lock of its name."""
        # the file, and not `-m scrun.supervisor` or the directory: those take runpy, 3 ms
        program = packages() + "/scrun/supervisor/__main__.py"
        argv = [*python(), program, "--root", root, "--name", name, "--ready", "3", "--lock", "4"]
        if not lingers:
            argv += ["--idle-timeout", "0"]
        null = os.open("/dev/null", os.O_RDWR)
        actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
        handed = [out_of_the_way(fd) for fd in fds]
        actions += [(os.POSIX_SPAWN_DUP2, fd, 3 + index) for index, fd in enumerate(handed)]
        self.pid = os.posix_spawn(
            argv[0],
            argv,
            environment,
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )
        for fd in (null, *handed):
            os.close(fd)

    def kill(self) -> None:
        os.kill(self.pid, _signal.SIGKILL)  # a child, so the pid is valid until waitpid

    def close(self) -> None:
        """Wait until it has daemonized itself, or has ended."""
        os.waitpid(self.pid, 0)


def _environment(settings_file: str | None) -> dict[str, str]:
    """Return the variables that the supervisor needs from the caller.

    Each container has those of its own `create`, and its own settings; the settings of whoever
    starts the supervisor only say how long that stays.
    """
    # SLURM_CONF: to release the jobs of dead supervisors
    kept = (
        *("XDG_RUNTIME_DIR", "_CONTAINERS_ROOTLESS_UID", "SCRUN_CONFIG", "SLURM_CONF", "TMPDIR"),
        *("SCRUN_WATCHDOG", ENGINES_NETWORK),
    )
    environment = {key: os.environ[key] for key in kept if key in os.environ}
    if settings_file:
        environment["SCRUN_CONFIG"] = os.path.abspath(settings_file)
    path = os.environ.get("PATH", "")
    system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {**environment, "PATH": f"{path}:{system}" if path else system, "LANG": "C.UTF-8"}
