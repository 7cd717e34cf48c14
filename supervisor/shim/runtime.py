"""The OCI runtime of the node: which one, its command lines, and what it says when it fails."""

import binascii
import fcntl
import os

from .files import remove_file, remove_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

# in order of preference: crun is smaller and faster
NAMES = ("crun", "runc")
# ordinary users often lack these in PATH
_ALSO = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")

_PROGRAM = b"\x7fELF"
_CLOEXEC, _ALLOW_SEALING = 1, 2  # memfd_create(2)
_ADD_SEALS, _ALL_SEALS = 1033, 0xF  # fcntl(2); Python has names for them since 3.9
_FILTER = "run.oci.seccomp_bpf_data"  # crun(1)
_LAST_WORDS = 1 << 16
_LARGEST_LOG = 1 << 16  # in JSON it may be six times as long

# what slurmstepd gives a task about its place in the job
_OWN = ("SLURM", "PMI")
_DEVICES = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
)


def installed(path: str) -> "Iterator[str]":
    """Return the runtimes of the node, the best first."""
    folders = [folder for folder in path.split(os.pathsep) if folder.startswith("/")]
    for name in NAMES:
        if name == "crun" and _is_hybrid():
            continue
        for folder in folders + list(_ALSO):
            program = os.path.join(folder, name)
            if os.path.isfile(program) and os.access(program, os.X_OK):
                yield program
                break


def found(name: str) -> str:
    """Return the path of a program of the system's, or ""."""
    paths = [os.path.join(folder, name) for folder in _ALSO]
    return next((path for path in paths if os.access(path, os.X_OK)), "")


def _is_hybrid() -> bool:
    """Return whether both versions of cgroups have controllers: crun refuses to work then."""
    try:
        with open("/sys/fs/cgroup/unified/cgroup.controllers", "rb") as file:
            return bool(file.read().strip())
    except OSError:
        return False


class Runtime:
    """A runtime, and where it keeps what it knows."""

    def __init__(self, path: str, directory: str) -> None:
        """Keep its state below the shim's directory, in a folder of the program's name."""
        self.path = path
        self._copy = -1
        self._is_crun = False  # and no script of a site's, which may do more
        self._root = os.path.join(directory, os.path.basename(path))

    def sealed(self) -> int:
        """Return a descriptor of crun in memory, where nobody can write to it; or -1.

        crun makes itself such a copy or mount, so that no container can write to /proc/PID/exe
        (CVE-2019-5736), and starts once more from that: 2 ms of each command. In one it goes on.
        The copy is kept until `unseal`.
        """
        if self._copy < 0:
            self._copy = self._sealed()
        return self._copy

    def unseal(self) -> None:
        """Free the memory of the copy."""
        if self._copy >= 0:
            os.close(self._copy)
            self._copy = -1

    def _sealed(self) -> int:
        create: Callable[[str, int], int] | None = getattr(os, "memfd_create", None)  # 3.8
        if os.path.basename(self.path) != "crun" or create is None:
            return -1
        copy = -1
        try:
            with open(self.path, "rb") as file:
                if os.pread(file.fileno(), len(_PROGRAM), 0) != _PROGRAM:
                    return -1  # a script, whose interpreter opens it by its path
                copy = create("crun", _CLOEXEC | _ALLOW_SEALING)
                size = os.fstat(file.fileno()).st_size
                if os.sendfile(copy, file.fileno(), 0, size) < size:
                    raise OSError("it has become shorter")  # or it is huge
            fcntl.fcntl(copy, _ADD_SEALS, _ALL_SEALS)
            self._is_crun = True
        except OSError:  # then it does that itself
            if copy >= 0:
                os.close(copy)
            return -1
        return copy

    def start(self, name: str) -> bool:
        """Start a container that is created, and `is_plain`, without a command; 5 ms sooner.

        crun's `start` removes the fifo that the container reads from, and writes a byte there
        (`libcrun_status_write_exec_fifo` in its src/libcrun/status.c).

        Returns:
            Whether it is started; if not, `start` is to be run, which can say why.
        """
        if not self._is_crun:
            return False
        fifo = os.path.join(self._root, name, "exec.fifo")
        try:
            fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.unlink(fifo)
                os.write(fd, b"\0")
            finally:
                os.close(fd)
        except OSError:  # nobody reads any more
            return False
        return True

    def forget(self, name: str) -> bool:
        """Forget a container that has ended, and `is_plain`, without a command; 5 ms sooner.

        Where crun has made no cgroup, its `delete` does no more than to remove the container's
        directory (`container_delete_internal` in its src/libcrun/container.c).

        Returns:
            Whether it is forgotten; if not, `delete` is to be run.
        """
        place = os.path.join(self._root, name)
        if self._is_crun:
            remove_tree(place)
        return self._is_crun and not os.path.lexists(place)

    def options(self) -> "list[str]":
        """Return the program with the options that every command has."""
        if os.path.basename(self.path) == "runc":
            # it cannot be told to make no cgroups, only to ignore that it may not
            own = "--rootless=%s" % ("false" if os.geteuid() == 0 else "true")
        else:
            own = "--cgroup-manager=disabled"
        return [self.path, own, "--root", self._root]

    def fit(self, process: "dict[str, Any]") -> None:
        """Leave out a group that a process has anyway: runc of a user adds none at all."""
        user = process.get("user") or {}
        if os.path.basename(self.path) == "runc" and os.geteuid() and user.get("additionalGids"):
            own = user.get("gid", 0)
            user["additionalGids"] = [group for group in user["additionalGids"] if group != own]

    def separate(self, config: "dict[str, Any]", name: str) -> None:
        """Change a config.json so that runc makes a cgroup that no other container has.

        It would name it after the container, whose name another shim may use: `delete --force`
        kills all in it.
        """
        linux = config.get("linux")
        # only root's: runc fails if it may not make a cgroup that config.json names
        makes = os.path.basename(self.path) == "runc" and os.geteuid() == 0
        if makes and isinstance(linux, dict):
            linux["cgroupsPath"] = linux.get("cgroupsPath") or name

    def give_filter(self, config: "dict[str, Any]", known: str) -> None:
        """Give crun compiled seccomp rules: `known`, which `filter_of` has returned."""
        if os.path.basename(self.path) == "crun":
            config["annotations"] = {_FILTER: known, **(config.get("annotations") or {})}

    def filter_of(self, name: str) -> str:
        """Return the seccomp filter that crun has compiled for a container, in base64, or ""."""
        if os.path.basename(self.path) != "crun":
            return ""
        try:
            with open(os.path.join(self._root, name, "seccomp.bpf"), "rb") as file:
                return binascii.b2a_base64(file.read(), newline=False).decode()
        except OSError:  # newer versions have it elsewhere, and use it again themselves
            return ""

    def join(
        self, config: "dict[str, Any]", joins: "Mapping[str, int]", is_root: bool
    ) -> "list[str]":
        """Change a config.json so that its container enters namespaces of others.

        Args:
            joins: A process in each of the namespaces, by the type of that.
            is_root: Whether it is called where it has rights in all of them.

        Returns:
            What to put before the command that creates the container.
        """
        linux = config.get("linux") or {}
        namespaces = linux.get("namespaces") or []
        for namespace in namespaces:
            kind = namespace["type"]
            if kind in joins:
                name = "net" if kind == "network" else kind
                namespace["path"] = f"/proc/{joins[kind]}/ns/{name}"
        is_crun = os.path.basename(self.path) == "crun"
        if is_root or not is_crun or not {"pid", "user"} <= set(joins):
            return []
        # crun 1.8.1 enters the PID namespace before the user namespace that owns it, which fails
        linux["namespaces"] = [one for one in namespaces if one["type"] != "user"]
        linux.pop("uidMappings", None)
        linux.pop("gidMappings", None)
        user = f"--user=/proc/{joins['user']}/ns/user"
        return [found("nsenter") or "/usr/bin/nsenter", "--preserve-credentials", user, "--"]

    def command(self, place: str, *words: str) -> "list[str]":
        """Return a command with a log in a container's or an exec's directory."""
        return [*self.options(), "--log", log_of(place), "--log-format", "json", *list(words)]

    def create(self, place: str, name: str, terminal: bool, passed: int = 0) -> "list[str]":
        """Return the command that creates a container; to be run in its directory.

        Args:
            passed: How many descriptors from 3 on its program gets.
        """
        words = ["create", "--bundle", place, "--pid-file", pid_file_of(place)]
        if passed:
            words.append(f"--preserve-fds={passed}")
        return self.command(place, *(words + _console(terminal) + ["--", name]))

    def exec(self, place: str, name: str, terminal: bool) -> "list[str]":
        """Return the command that runs one more program; to be run in the exec's directory."""
        words = ["exec", "--detach", "--pid-file", pid_file_of(place)]
        words += ["--process", process_of(place)]
        return self.command(place, *(words + _console(terminal) + ["--", name]))


def is_plain(config: "Mapping[str, Any]") -> bool:
    """Return whether only the runtime's own state changes when a container starts and ends."""
    hooks, linux = config.get("hooks") or {}, config.get("linux") or {}
    return not (hooks.get("poststart") or hooks.get("poststop") or linux.get("intelRdt"))


def is_isolated(config: "Mapping[str, Any]") -> bool:
    """Return whether the runtime makes a network namespace for a container, with nothing in it."""
    namespaces = (config.get("linux") or {}).get("namespaces") or []
    return any(one["type"] == "network" and not one.get("path") for one in namespaces)


def log_of(place: str) -> str:
    """Return the file of the runtime's log."""
    return os.path.join(place, "log")


def pid_file_of(place: str) -> str:
    """Return the file of the first process's pid."""
    return os.path.join(place, "pid")


def process_of(place: str) -> str:
    """Return the file that describes an exec."""
    return os.path.join(place, "process.json")


def _console(terminal: bool) -> "list[str]":
    # relative: a socket's path is short, and TMPDIR need not be
    return ["--console-socket", "console"] if terminal else []


def of_slurm(environment: "Mapping[str, str]") -> "dict[str, str]":
    """Return the variables that tell a task of Slurm's what it is and has.

    One that is not UTF-8, such as a SLURM_SUBMIT_DIR, is left out: JSON cannot hold it.
    """
    return {
        name: value
        for name, value in environment.items()
        if (name.startswith(_OWN) or name in _DEVICES) and _is_unicode(value)
    }


def _is_unicode(text: str) -> bool:
    """Tell as `scrun.core.text` does."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def merged(config: "Sequence[str]", own: "Mapping[str, str]") -> "list[str]":
    """Return a program's environment with what Slurm says of its task.

    Args:
        config: `env` of the specification's `process`.
        own: The shim's environment; its variables win, as slurmstepd's do.
    """
    wins = {name: f"{name}={value}" for name, value in of_slurm(own).items()}
    found = [wins.get(item.partition("=")[0], item) for item in config]
    return found + [item for item in wins.values() if item not in found]


class CallRefused(ValueError):
    """A call cannot be done; its text is for the supervisor."""


def read_log(place: str, words: bytes) -> "tuple[str, str]":
    """Return what a runtime that failed says: in a sentence, and its log."""
    try:
        with open(log_of(place), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LARGEST_LOG))
            log = file.read(_LARGEST_LOG).decode("utf-8", "replace")
    except OSError:
        log = ""
    return last_error(log) or last_line(words), log


def has_raced(place: str) -> bool:
    """Tell whether a runtime has failed because another one made the same directory meanwhile.

    runc 1.3 does so, if several tasks have one root file system that lacks a mount point. If it
    has, its log is removed: another call succeeds.
    """
    text = read_log(place, b"")[0].lower()
    raced = "mkdir" in text and "file exists" in text
    if raced:
        remove_file(log_of(place))
    return raced


def with_missing(text: str, paths: "Iterable[str]") -> str:
    """Return what a runtime says, and what this node lacks: crun 1.28 does not name the root."""
    for path in paths:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
            return f"{text}: there is no {path} on the node {node}"
        except (OSError, ValueError):  # the container's user may see it where we do not
            pass
    return text


def needs(config: "dict[str, Any]", place: str) -> "list[str]":
    """Return the paths that a container's root, bind mounts and devices need.

    Args:
        place: Where relative paths begin.
    """
    mounts = [
        one.get("source", "")
        for one in config.get("mounts") or []
        if {"bind", "rbind"} & {one.get("type"), *(one.get("options") or [])}
    ]
    devices = [one["path"] for one in (config.get("linux") or {}).get("devices") or []]
    root = (config.get("root") or {}).get("path", "")
    return [os.path.join(place, path) for path in (root, *mounts, *devices)]


def last_line(words: bytes) -> str:
    """Return the last line of what a program wrote, "" if it wrote nothing."""
    lines = words[-_LAST_WORDS:].decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def last_error(log: str) -> str:
    """Return the last error of a log of JSON values, one on a line or on several (crun 1.28)."""
    import json  # with re, enum and more: they take as long as all of hello
    import re

    decoder, begins = json.JSONDecoder(), re.compile(r"^\{", re.MULTILINE)
    error, place = "", 0
    while True:
        found = begins.search(log, place)
        if found is None:
            return error
        try:
            entry, place = decoder.raw_decode(log, found.start())
        except (ValueError, RecursionError):
            entry, place = None, found.start() + 1
        if isinstance(entry, dict) and entry.get("level") in ("error", "fatal", "panic"):
            error = str(entry.get("msg", ""))
