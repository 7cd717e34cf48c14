"""Read and check a bundle: config.json of the OCI runtime spec 1.2 (config.md, config-linux.md).

The members that scrun uses have types here; all others are preserved (`Bundle.raw`), because the
runtime on the node may know them. Members that are `null` count as absent, as in runc and crun.

The file is untrusted: it may contain anything, and a container may have written to the bundle.
"""

import os
import re
import stat
from typing import Annotated, Any

import msgspec

from scrun.core.errors import BundleError, why
from scrun.core.typed import convert
from scrun.oci.document import decode, member_path, read_file

ANNOTATIONS_LIMIT = 1 << 20
"""The most bytes of all annotations: they are in the record, which has to stay readable."""

ARGUMENTS_LIMIT = 1_500_000
"""The most bytes of all arguments: srun gets them too, and a command line has at most 2 MiB."""

MOST_VARIABLES = 10_000
"""The most variables, and the most annotations, which become variables of scripts.

Slurm looks each one up among all others: with 90,000 it took 20 s and then refused the step.
"""

LONGEST_WORD = 32 * os.sysconf("SC_PAGESIZE") - 1
"""The longest argument or variable, in bytes, for execve(2) (MAX_ARG_STRLEN)."""

_Id = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Limit = Annotated[int, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of config.json; members have the same names, in snake case."""


class Root(_Part, frozen=True):
    """`root`: the directory with the container's files."""

    path: str
    readonly: bool = False


class User(_Part, frozen=True):
    """`process.user`: ids inside the container."""

    uid: _Id = 0
    gid: _Id = 0
    umask: _Id | None = None
    additional_gids: list[_Id] = []


class Rlimit(_Part, frozen=True):
    """An entry of `process.rlimits`."""

    type: str
    soft: _Limit
    hard: _Limit


class Capabilities(_Part, frozen=True):
    """`process.capabilities`, each set by name."""

    bounding: list[str] = []
    effective: list[str] = []
    inheritable: list[str] = []
    permitted: list[str] = []
    ambient: list[str] = []


class ConsoleSize(_Part, frozen=True):
    """`process.consoleSize`: the terminal's first size."""

    height: _Id
    width: _Id


class Process(_Part, frozen=True):
    """`process`: the program, and what it gets."""

    args: list[str]
    cwd: str
    env: list[str] = []
    terminal: bool = False
    console_size: ConsoleSize | None = None
    user: User = User()
    capabilities: Capabilities | None = None
    rlimits: list[Rlimit] = []
    no_new_privileges: bool = False
    oom_score_adj: int | None = None


class IdMapping(_Part, frozen=True):
    """A range of ids inside and outside a user namespace."""

    container_id: _Id = msgspec.field(name="containerID")
    host_id: _Id = msgspec.field(name="hostID")
    size: _Id


class Mount(_Part, frozen=True):
    """An entry of `mounts`; they are mounted in their order."""

    destination: str
    type: str = ""
    source: str = ""
    options: list[str] = []
    uid_mappings: list[IdMapping] = []
    gid_mappings: list[IdMapping] = []

    @property
    def is_bind(self) -> bool:
        """Whether the source is a file or directory of the host."""
        return self.type == "bind" or "bind" in self.options or "rbind" in self.options


class Hook(_Part, frozen=True):
    """A program that the runtime runs beside the container."""

    path: str
    args: list[str] = []
    env: list[str] = []
    timeout: int | None = None


class Hooks(_Part, frozen=True):
    """`hooks`, by the moment when they run."""

    prestart: list[Hook] = []
    create_runtime: list[Hook] = []
    create_container: list[Hook] = []
    start_container: list[Hook] = []
    poststart: list[Hook] = []
    poststop: list[Hook] = []


class Namespace(_Part, frozen=True):
    """An entry of `linux.namespaces`: a new one, or that at `path`."""

    type: str
    path: str = ""


class Device(_Part, frozen=True):
    """An entry of `linux.devices`."""

    path: str


class Linux(_Part, frozen=True):
    """`linux`: namespaces and what goes with them."""

    namespaces: list[Namespace] = []
    uid_mappings: list[IdMapping] = []
    gid_mappings: list[IdMapping] = []
    devices: list[Device] = []
    cgroups_path: str = ""
    resources: dict[str, Any] = {}
    seccomp: dict[str, Any] = {}
    sysctl: dict[str, str] = {}


class Config(_Part, frozen=True):
    """The members of config.json that scrun uses."""

    oci_version: str
    process: Process
    root: Root
    mounts: list[Mount] = []
    hostname: str = ""
    hooks: Hooks = Hooks()
    annotations: dict[str, str] = {}
    linux: Linux = Linux()

    @property
    def engine_network(self) -> str:
        """The network namespace that an engine has made for it; "" without one."""
        paths = (one.path or "" for one in self.linux.namespaces if one.type == "network")
        path = next(paths, "")
        return "" if path.startswith("/proc/") else path

    @property
    def has_new_network(self) -> bool:
        """Whether the runtime is to make it a network namespace."""
        return any(one.type == "network" and not one.path for one in self.linux.namespaces)


class Bundle(msgspec.Struct, frozen=True):
    """A bundle that has passed all checks; its paths are absolute.

    `config` has the typed parts, `raw` all of config.json without null members, in order, with
    exact integers: copy it before changing it.
    """

    path: str
    config_file: str
    config: Config
    raw: dict[str, Any]
    rootfs: str


def load_bundle(bundle: str, config_file: str | None = None) -> Bundle:
    """Read and check a bundle, or crun's `--config`. It may hang: call it in a thread."""
    if not bundle.startswith("/"):
        raise BundleError(f"bundle: {bundle}: is not an absolute path")
    name = os.path.join(bundle, config_file or "config.json")
    raw, config = read_config(name)
    rootfs = os.path.normpath(os.path.join(bundle, config.root.path))
    try:
        if not stat.S_ISDIR(os.stat(rootfs).st_mode):
            raise BundleError(f"{name}: root.path: {rootfs}: is not a directory")
    except FileNotFoundError:
        raise BundleError(f"{name}: root.path: {rootfs}: does not exist") from None
    except OSError as error:
        raise BundleError(f"{name}: root.path: {rootfs}: {why(error)}") from error
    return Bundle(path=bundle, config_file=name, config=config, raw=raw, rootfs=rootfs)


def read_config(name: str) -> tuple[dict[str, Any], Config]:
    """Read and check a config.json, as `parse` does."""
    return parse(read_file(name), name)


def parse(content: bytes, name: str = "config.json") -> tuple[dict[str, Any], Config]:
    """Parse and check a config.json: all of it, and the typed parts; errors begin with `name`."""
    raw = decode(content, name)
    try:
        config = convert(raw, Config)
    except msgspec.ValidationError as error:
        raise BundleError(f"{name}: {explain(error, raw)}") from error
    for member, complaint in _complaints(config):
        raise BundleError(f"{name}: {member}: {complaint}")
    return raw, config


def explain(error: msgspec.ValidationError, document: object = None) -> str:
    """Reword an error of msgspec, `process.args[0]: expected …`; the document has tables' keys."""
    reason, _, path = str(error).partition(" - at `$")
    member = path.removesuffix("`").removeprefix(".")
    if member.endswith("[...]"):
        table = member.removesuffix("[...]")
        member = member_path(table, _key_of_no_text(document, table))
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason)
    if missing:
        return f"{member}.{missing[1]}: is missing".removeprefix(".")
    names = {"str": "string", "bool": "boolean", "float": "number"}
    reason = reason.replace(" | null`", "`")
    words = re.sub(r"`(\w+)`", lambda found: names.get(found[1], found[1]), reason)
    words = words[:1].lower() + words[1:]
    return f"{member}: {words}" if member else words


def _complaints(config: Config) -> list[tuple[str, str]]:
    """List members with an invalid value of the right type, each with the reason."""
    process = config.process
    found = []
    if not re.fullmatch(r"1\.\d+(\.\d+)?([-+].*)?", config.oci_version, re.ASCII):
        found.append(("ociVersion", f"{config.oci_version}: is not supported, 1.x is"))
    if not process.args:
        found.append(("process.args", "is empty"))
    elif not process.args[0]:
        found.append(("process.args[0]", "is empty"))
    if not process.cwd.startswith("/"):
        found.append(("process.cwd", f"{process.cwd}: is not an absolute path"))
    if not config.root.path:
        found.append(("root.path", "is empty"))
    words = [(f"process.args[{i}]", text) for i, text in enumerate(process.args)]
    words += [(f"process.env[{i}]", text) for i, text in enumerate(process.env)]
    found += [
        (member, f"is longer than {LONGEST_WORD} bytes, which no program can be given")
        for member, text in words
        if len(text) * 4 > LONGEST_WORD < len(text.encode())
    ]
    if sum(len(text.encode()) for text in process.args) > ARGUMENTS_LIMIT:
        found.append(("process.args", f"are longer than {ARGUMENTS_LIMIT} bytes together"))
    for member, found_there, what in (
        ("process.env", len(process.env), "variables"),
        ("annotations", len(config.annotations), "annotations"),
    ):
        if found_there > MOST_VARIABLES:
            reason = f"has {found_there} {what}, at most {MOST_VARIABLES} are possible"
            found.append((member, reason))
    if sum(len(text.encode()) for text in process.env) > ARGUMENTS_LIMIT:
        found.append(("process.env", f"is longer than {ARGUMENTS_LIMIT} bytes together"))
    annotations = (f"{key}{text}" for key, text in config.annotations.items())
    if sum(len(text.encode()) for text in annotations) > ANNOTATIONS_LIMIT:
        found.append(("annotations", f"are larger than {ANNOTATIONS_LIMIT >> 20} MiB together"))
    return found


def _key_of_no_text(document: object, table: str) -> str:
    """Find the key in `annotations` or `linux.sysctl` whose value is not a string."""
    for name in table.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    members = document.items() if isinstance(document, dict) else ()
    return next((str(key) for key, text in members if not isinstance(text, str)), "...")
