"""The bundle as an engine hands it over: config.json, read and checked.

After the OCI runtime spec 1.2, config.md and config-linux.md. The members that scrun looks at
have types here; everything else is kept as it came (`Bundle.raw`), because what scrun does not
know the runtime on the node may. What runc and crun take as absent, `null`, is absent here.

Nothing is trusted: the file may be anything, and a container may have written to the bundle.
"""

import os
import re
import stat
from typing import Annotated, Any

import msgspec

from scrun.errors import BundleError
from scrun.paths import read_regular

_Id = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
_Limit = Annotated[int, msgspec.Meta(ge=0)]


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of config.json; its members have their names of there, in snake case."""


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
    """A range of ids, and what it is outside of the user namespace."""

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


class Linux(_Part, frozen=True):
    """`linux`: namespaces and what goes with them."""

    namespaces: list[Namespace] = []
    uid_mappings: list[IdMapping] = []
    gid_mappings: list[IdMapping] = []
    cgroups_path: str = ""
    resources: dict[str, Any] = {}


class Config(_Part, frozen=True):
    """What scrun looks at in config.json."""

    oci_version: str
    process: Process
    root: Root
    mounts: list[Mount] = []
    hostname: str = ""
    hooks: Hooks = Hooks()
    annotations: dict[str, str] = {}
    linux: Linux = Linux()


class Bundle(msgspec.Struct, frozen=True):
    """A bundle that has passed all checks.

    Attributes:
        path: The bundle's directory, absolute.
        config_file: The file that was read.
        config: The typed parts.
        raw: All of config.json, members in their order, integers exact. Copy before changing.
        rootfs: The directory with the container's files, absolute.
    """

    path: str
    config_file: str
    config: Config
    raw: dict[str, Any]
    rootfs: str


def load_bundle(bundle: str, config_file: str | None = None) -> Bundle:
    """Read and check a bundle; it may lie on a file system that hangs, so do it in a thread.

    Args:
        bundle: The bundle's directory, absolute.
        config_file: What to read instead of `config.json` in it (crun's `create --config`).

    Raises:
        BundleError: It cannot be run; the message names the file, the member and the reason.
    """
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
        raise BundleError(f"{name}: root.path: {rootfs}: {error.strerror}") from error
    return Bundle(path=bundle, config_file=name, config=config, raw=raw, rootfs=rootfs)


def read_config(name: str) -> tuple[dict[str, Any], Config]:
    """Read and check a config.json, as `parse` does.

    Raises:
        BundleError: It cannot be read, or is wrong.
    """
    return parse(read_file(name), name)


def parse(content: bytes, name: str = "config.json") -> tuple[dict[str, Any], Config]:
    """Read and check the text of a config.json; `name` is for the errors.

    Returns:
        All of it, and the typed parts.

    Raises:
        BundleError: It is not JSON, a member has the wrong type, or cannot be what it says.
    """
    try:
        raw = msgspec.json.decode(content)
        config = msgspec.convert(without_nulls(raw), Config)
    except msgspec.ValidationError as error:
        raise BundleError(f"{name}: {explain(error)}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"{name}: is not JSON: {error}") from error
    except RecursionError as error:
        raise BundleError(f"{name}: is not a config.json: nested too deeply") from error
    for member, complaint in _complaints(config):
        raise BundleError(f"{name}: {member}: {complaint}")
    return raw, config


def explain(error: msgspec.ValidationError) -> str:
    """Say what msgspec says as `process.args[0]: expected string, got int`."""
    reason, _, path = str(error).partition(" - at `$")
    member = path.removesuffix("`").removeprefix(".")
    missing = re.fullmatch(r"Object missing required field `(.*)`", reason)
    if missing:
        return f"{member}.{missing[1]}: is missing".removeprefix(".")
    names = {"str": "string", "bool": "boolean", "float": "number"}
    reason = reason.replace(" | null`", "`")
    words = re.sub(r"`(\w+)`", lambda found: names.get(found[1], found[1]), reason)
    words = words[:1].lower() + words[1:]
    return f"{member}: {words}" if member else words


def _complaints(config: Config) -> list[tuple[str, str]]:
    """List what is wrong although its type is right, as member and reason."""
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
    texts = [("process.cwd", process.cwd), ("root.path", config.root.path)]
    texts += [(f"process.args[{i}]", text) for i, text in enumerate(process.args)]
    texts += [(f"process.env[{i}]", text) for i, text in enumerate(process.env)]
    for i, mount in enumerate(config.mounts):
        texts.append((f"mounts[{i}].destination", mount.destination))
        texts.append((f"mounts[{i}].source", mount.source))
    found += [(member, "contains a NUL character") for member, text in texts if "\0" in text]
    return found


def without_nulls(value: object) -> object:
    """Take out the members that are null: runc and crun take those for absent."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value


def read_file(name: str) -> bytes:
    """Read a regular file of bounded size; never wait for a FIFO's writer.

    Raises:
        BundleError: It cannot be read, is no regular file, or too large.
    """
    try:
        return read_regular(name)
    except OSError as error:
        raise BundleError(f"{name}: {error.strerror}") from error
    except ValueError as error:  # NUL or a lone surrogate
        raise BundleError(f"{name!r}: is not a file name: {error}") from error
