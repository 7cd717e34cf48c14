"""The exceptions of scrun, in one tree.

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
    │   └── EngineUnavailable   no answer: nothing is known
    ├── ImageError              where an image comes from, or the store of images
    ├── StagingError            stage in or stage out, built in or scrun.lua
    ├── PluginUnavailable       no such engine or stager, or it cannot be used here
    ├── SpankError              a script of plugstack.conf, or one of its options
    ├── RuntimeMissing          no OCI runtime on this machine
    ├── SupervisorLost          the process behind the socket is gone
    └── NotTaken                or takes no signals

The message is one line that names the thing, the reason and the remedy. podman and
docker show it alone, so it must make sense without earlier output. podman maps
"permission denied" and "no such file or directory" in it to its exit statuses 126
and 127 (libpod/oci_util.go), and containerd takes "does not exist" for not found:
use these phrases only in that sense.

An error crosses the supervisor's socket as its exit status and its message.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


NOT_RUNNING = "container not running"
"""Begins the error of a signal that comes too late: runc's words, which containerd looks for."""

LONGEST = 2000
"""The longest message, in characters: it may name things that are megabytes long."""


class ScrunError(Exception):
    """An expected error, in one line; all others, except OSError, are faults of scrun itself."""

    exit_code = 1
    show_traceback = False

    def __init__(self, message: str = "") -> None:
        super().__init__(shortened(message))


class UsageError(ScrunError):
    """The command line is invalid; nothing was changed.

    `options` are those that the parser had read before the error, so that it can go to the
    ``--log`` among them. `left` is how many arguments follow the wrong one, if that may be an
    option that a script has registered (``scrun.client.plugin_options``).
    """

    options: dict[str, object] | None = None
    left: int | None = None


class BundleError(ScrunError):
    """The bundle cannot be run: ``create`` says so before it requests a job."""


class SettingsError(ScrunError):
    """A setting is invalid: the message names its file or variable, and the valid values.

    It is for the one command or container that needs them; a supervisor goes on.
    """

    @classmethod
    def of_root(cls, root: str, reason: "str | OSError", name: str = "") -> "SettingsError":
        """Say why a root directory, or what has a name in it, cannot be used."""
        remedy = "name another one by --root, or `root` in scrun.toml"
        if isinstance(reason, OSError):
            name = name or str(reason.filename or root).removeprefix(f"{root}/")
            text = f"{name}: {why(reason, remedy)}"
        else:
            text = f"{reason}; {remedy}"
        return cls(f"root directory {root}: {text.removeprefix(f'{root}: ')}")


class UnknownContainer(ScrunError):
    """No container has this id under this root directory; ``delete --force`` succeeds then."""

    @classmethod
    def named(cls, container: str, root: str) -> "UnknownContainer":
        return cls(f"container does not exist: no {container} in {root} (another --root?)")


class ContainerExists(ScrunError):
    """The id of a ``create`` is in use; that container is not touched."""

    @classmethod
    def named(cls, container: str) -> "ContainerExists":
        return cls(f"container with id {container} already exists: delete it, or use another id")


class StateError(ScrunError):
    """It is not possible in the container's state, or what it would make exists."""


class EngineError(ScrunError):
    """The engine could not carry an operation out: one container ends, the others go on.

    `shown`: the container's standard error already shows the reason.
    """

    shown = False


class AllocationRefused(EngineError):
    """The job was refused: the request cannot be met or is not allowed.

    ``create`` fails with the engine's own words, and no job is left. If it has already returned,
    this ends the container: `reason` is why, a key of ``scrun.model.states.TAKEN``.
    """

    def __init__(self, message: str, reason: str = "scrun-failure") -> None:
        super().__init__(message)
        self.reason = reason


class EngineUnavailable(EngineError):
    """The engine does not answer: slurmctld or munge may be down.

    Never a reason to declare a container dead. Keep the last known state with its age and
    try again later; only an operation that needs the answer now reports it.
    """


class StagingError(ScrunError):
    """The bundle could not be staged in, or its changes could not be staged out.

    At stage in ``create`` fails with it and the job is released; at stage out it is logged, and
    the rest of the cleanup goes on.
    """


class ImageError(ScrunError):
    """An image cannot be got, unpacked or kept; nothing is left in the store."""


class PluginUnavailable(ScrunError):
    """A plugin, which the message names with its package, cannot be used here."""


class SpankError(ScrunError):
    """A script of plugstack.conf refuses the container, or one of its options has a wrong value.

    Raised around the allocation, for scripts of a `required` line; ``create`` fails with it, and
    the job is released. Errors of `optional` scripts are only logged.
    """


class RuntimeMissing(ScrunError):
    """This machine has no OCI runtime to run a container with."""


class SupervisorLost(ScrunError):
    """The supervisor does not start, or it died before it answered.

    Raised by the client. ``state`` answers from the record instead, ``delete`` has another
    supervisor clean up; others report it.
    """


class NotTaken(ScrunError):
    """Nobody takes the signals that a command in the foreground passes on, so it ends."""

    @classmethod
    def of(cls, number: int) -> "NotTaken":
        """Return the error for a signal; the exit status is that of a program which it ended."""
        name = {1: "HUP", 2: "INT", 3: "QUIT", 15: "TERM"}.get(number, str(number))
        error = cls(
            f"SIG{name} was not passed on: the supervisor does not answer; what runs ends when it "
            "answers again, and 'scrun delete' removes the rest"
        )
        error.exit_code = 128 + number
        return error


def shortened(message: str) -> str:
    """Cut the middle out of a message that is too long: the reason is at its end."""
    if len(message) <= LONGEST:
        return message
    half = LONGEST // 2 - 10
    return f"{message[:half]} [...] {message[-half:]}"


_ALIKE, _BEGINNING = 0.75, 3


def closest(word: str, known: "Iterable[str]") -> str:
    """Return the known word that is most like a misspelled one, or "". Both begin the same way."""
    import difflib  # takes half a millisecond, and only errors need it

    alike = [one for one in known if one[:1] == word[:1]]
    begun = (one for one in alike if len(word) >= _BEGINNING <= len(one))
    begins = (one for one in begun if one.startswith(word) or word.startswith(one))
    return next(iter(difflib.get_close_matches(word, alike, 1, _ALIKE)), "") or next(begins, "")


def hint(word: str, known: "Iterable[str]", prefix: str = "") -> str:
    """Return ` (is it X?)`, X being the known word most like a misspelled one; else ""."""
    near = closest(word, known)
    return f" (is it {prefix}{near}?)" if near else ""


def leaves(error: BaseException) -> "Iterator[BaseException]":
    """Yield the errors in a group and in the groups within it; a single error yields itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


OF_PLUGINS: "set[str]" = set()
"""The packages of the plugins that this process has loaded."""

_REMEDIES = {
    "EAGAIN": "the user has as many processes as permitted (ulimit -u)",
    "EMFILE": "it may not have more (ulimit -n)",
    "ENFILE": "the machine has as many as permitted (fs.file-max)",
    "ENOSPC": "make space there",
    "EDQUOT": "make space there",
    "EFBIG": "its files may not be larger (ulimit -f)",
}
_OF_A_LIMIT = ("EAGAIN", "EFBIG", "EMFILE", "ENFILE")  # another path does not help


def why(error: OSError, remedy: str = "") -> str:
    """Return an error's reason with the remedy, unless the reason has one of its own."""
    import errno

    text, name = error.strerror or str(error), errno.errorcode.get(error.errno or 0, "")
    if not remedy or name in _OF_A_LIMIT:
        remedy = _REMEDIES.get(name, remedy)
    return f"{text}; {remedy}" if remedy else text


def described(error: BaseException, *, foreign: bool = False) -> str:
    """Describe an error in one line for the user; it may be a group or an OSError.

    Any other error is a fault of scrun itself, and is called an internal error; or, if `foreign`,
    one of a plugin, which the message names already.
    """
    found = list(leaves(error))
    leaf = next((leaf for leaf in found if isinstance(leaf, ScrunError)), found[0])
    if isinstance(leaf, RuntimeError) and "can't start new thread" in str(leaf):
        leaf = OSError(11, "no more threads can be started")
    if isinstance(leaf, ScrunError):
        return str(leaf)
    if isinstance(leaf, OSError) and leaf.strerror:
        import errno

        names = [str(name) for name in (leaf.filename, leaf.filename2) if name]
        if leaf.errno == errno.ENOENT and not names and _is_nowhere():
            return "the working directory was removed: change to another one"
        return shortened(": ".join([*([", ".join(names)] if names else []), why(leaf)]))
    text = f"{type(leaf).__name__}: {leaf}"
    if foreign:
        return shortened(text)
    plugin = _raised_by(leaf)
    return shortened(f"plugin's module {plugin}: {text}" if plugin else f"internal error: {text}")


def _is_nowhere() -> bool:
    import posix

    try:
        posix.getcwdb()
    except FileNotFoundError:
        return True
    return False


def _raised_by(error: BaseException) -> str:
    """Return the package of a plugin's whose code has raised an error; "" if it is ours."""
    found = ""
    traceback = error.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        found = name if name in OF_PLUGINS else found
        traceback = traceback.tb_next
    return found
