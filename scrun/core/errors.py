"""Everything that scrun refuses or fails at, in one tree.

::

    ScrunError                  one line for the user, exit status 1
    ├── UsageError              the command line, a container id, a signal
    ├── BundleError             config.json or the root filesystem
    ├── SettingsError           scrun.toml, slurm.conf, oci.conf, SCRUN_*
    ├── UnknownContainer        no such id under this root
    ├── ContainerExists         the id is taken
    ├── StateError              not possible in the container's state
    ├── EngineError             where the container runs
    │   ├── AllocationRefused   no job was made
    │   ├── AllocationLost      the job was taken away
    │   └── EngineUnavailable   no answer: nothing is known
    ├── StagingError            stage in or stage out, built in or scrun.lua
    ├── PluginUnavailable       no such engine or stager, or one that is not to be used
    ├── SpankError              a script of plugstack.conf, or one of its options
    ├── RuntimeMissing          no OCI runtime on this machine
    └── SupervisorLost          the process behind the socket is gone

The message is one line that names the thing, the reason and the remedy; it is what
podman and docker show, so it makes sense without what scrun printed before. podman
maps "permission denied" and "no such file or directory" in it to its exit statuses
126 and 127 (libpod/oci_util.go), containerd takes "does not exist" for not found:
use these phrases where they are meant, and only there.

Every class is made from its message alone, so that an error can cross the
supervisor's socket as a class name and a line.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


NOT_RUNNING = "container not running"
"""How the error of a signal that comes too late begins; runc's words, which containerd seeks."""

LONGEST = 2000
"""How many characters a message has at most: what it names may be megabytes long."""


class ScrunError(Exception):
    """An error that scrun expects, explains in one line and ends with.

    Whatever is not a ``ScrunError`` is a fault of scrun itself.

    Attributes:
        exit_code: The exit status of the command that ends with this error.
        show_traceback: Whether the place in the code helps the user.
    """

    exit_code = 1
    show_traceback = False

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


class UsageError(ScrunError):
    """The command line cannot be meant like this.

    Raised by the parser and by the checks of ids and signals, before anything is
    touched. Report it; nothing has to be undone.

    Attributes:
        options: What the parser had read before it stopped, so that the error can go
            to the ``--log`` that was asked for.
        left: How many arguments follow the one at fault, if that may be an option of a
            script's (``scrun.client.plugin_options``).
    """

    options: dict[str, object] | None = None
    left: int | None = None


class BundleError(ScrunError):
    """The bundle cannot be run: config.json or the root filesystem is not as it must be.

    Raised by ``create`` before a job is asked for. Report it; nothing has to be undone.
    """

    @classmethod
    def at(cls, member: str, reason: str) -> "BundleError":
        """Name the member of config.json: ``process.args`` ``is missing``."""
        return cls(f"config.json: {member} {reason}")


class SettingsError(ScrunError):
    """A setting is wrong: the message says in which file or variable, and what it may be.

    Raised when the settings are read, for the one command or container that needs them.
    Report it; a supervisor that serves other containers goes on.
    """

    @classmethod
    def of_root(cls, root: str, reason: str) -> "SettingsError":
        """Say why there can be no records under a root directory."""
        remedy = "name another one by --root, or `root` in scrun.toml"
        return cls(f"root directory {root}: {reason.removeprefix(f'{root}: ')}; {remedy}")


class UnknownContainer(ScrunError):
    """No container has this id under this root directory.

    Raised by every operation on an existing container. ``delete --force`` takes it for
    success, everybody else reports it.
    """

    @classmethod
    def named(cls, container: str, root: str) -> "UnknownContainer":
        """Say which id was looked for, and where."""
        return cls(f"container does not exist: no {container} in {root} (another --root?)")


class ContainerExists(ScrunError):
    """The id of a ``create`` is in use; that container is not touched.

    Raised by ``create``. Report it; undo only what this ``create`` did.
    """

    @classmethod
    def named(cls, container: str) -> "ContainerExists":
        """Say which id is taken."""
        return cls(f"container with id {container} already exists: delete it, or use another id")


class StateError(ScrunError):
    """The operation is not possible in the state that the container is in.

    Raised by the state machine, which changed nothing. Report it.
    """


class EngineError(ScrunError):
    """The engine could not do what it was asked for.

    Raised by engines, in one of the kinds below or, when none fits, as itself. Catch it
    around a container: its scope ends, the others go on.

    Attributes:
        told: The container's standard error has the reason already.
    """

    told = False


class AllocationRefused(EngineError):
    """There will be no job: the request cannot be met or is not allowed.

    Raised while allocating. ``create`` fails with the engine's own words; nothing is held. If
    ``create`` was answered before, this ends the container.

    Attributes:
        reason: Why the container ended then, a key of ``scrun.model.states.TAKEN``.
    """

    def __init__(self, message: str, reason: str = "scrun-failure") -> None:
        super().__init__(message)
        self.reason = reason


class AllocationLost(EngineError):
    """The job ended before its container did: revoked, out of time, node failed, cancelled.

    Raised into the container's scope. The first reason decides the exit status; the
    container is stopped, and stage out still has its turn.
    """


class EngineUnavailable(EngineError):
    """The engine does not answer, so nothing is known: slurmctld or munge may be down.

    Never a reason to call a container dead. Keep the last known state with its age and
    try again later; only an operation that needs the answer now reports it.
    """


class StagingError(ScrunError):
    """The bundle could not be made ready on the nodes, or not be brought back.

    Raised by staging. At stage in ``create`` fails with it and the job is released; at
    stage out it is logged, and what is left to undo is undone.
    """


class PluginUnavailable(ScrunError):
    """A plugin is not installed, was not taken, or says that it cannot be used here.

    Raised when an engine or a stager is chosen, before there is a job. Report it; the
    message names the plugin and the package that it came with.
    """


class SpankError(ScrunError):
    """A script of plugstack.conf refuses the container, or has an option that is not meant so.

    Raised around the allocation, by what a `required` line names; ``create`` fails with it, and
    the job is released. What an `optional` one raises is logged, and goes no further.
    """


class RuntimeMissing(ScrunError):
    """This machine has no OCI runtime to run a container with.

    Raised by the embedded engine; the message says what to install. Report it.
    """


class SupervisorLost(ScrunError):
    """The supervisor ended, or closed the connection, before it answered.

    Raised by whoever talks to its socket. ``state`` answers from the record instead,
    ``delete`` finishes the business of the dead one; others report it.
    """


def shortened(message: str) -> str:
    """Leave the middle of a message out that is too long: its end says what is wrong."""
    if len(message) <= LONGEST:
        return message
    half = LONGEST // 2 - 10
    return f"{message[:half]} [...] {message[-half:]}"


def closest(word: str, known: "Iterable[str]") -> str:
    """Return which of some known words was perhaps meant, or ""."""
    import difflib  # half a millisecond, for nothing as long as nobody is wrong

    return next(iter(difflib.get_close_matches(word, known, n=1)), "")


def leaves(error: BaseException) -> "Iterator[BaseException]":
    """List the errors in a group, and in groups within it; of one that is none, itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


_REMEDIES = {
    "EAGAIN": "the user has as many processes as permitted (ulimit -u)",
    "EMFILE": "it may not have more (ulimit -n)",
    "ENFILE": "the machine has as many as permitted (fs.file-max)",
    "ENOSPC": "make space there",
    "EDQUOT": "make space there",
}


def described(error: BaseException) -> str:
    """Say in one line what an error is, for the user: it may be a group, or one of the system's.

    What is neither expected nor the system's is a fault of scrun's, and called so.
    """
    found = list(leaves(error))
    leaf = next((leaf for leaf in found if isinstance(leaf, ScrunError)), found[0])
    if isinstance(leaf, RuntimeError) and "can't start new thread" in str(leaf):
        leaf = OSError(11, "no further thread can be started")
    if isinstance(leaf, ScrunError):
        return str(leaf)
    if isinstance(leaf, OSError) and leaf.strerror:
        import errno

        names = [str(name) for name in (leaf.filename, leaf.filename2) if name]
        remedy = _REMEDIES.get(errno.errorcode.get(leaf.errno or 0, ""), "")
        text = shortened(": ".join([*([", ".join(names)] if names else []), leaf.strerror]))
        return f"{text}; {remedy}" if remedy else text
    return shortened(f"internal error: {type(leaf).__name__}: {leaf}")
