"""Makes the config.json of a container of an image."""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scrun.core.errors import UsageError
from scrun.core.text import is_unicode
from scrun.core.typed import decode_as
from scrun.images.store import ROOTFS, Defaults

# podman's
_CAPABILITIES = [
    f"CAP_{name}"
    for name in (
        "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP",
        "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
    )
]  # fmt: skip
# the node's, because nobody sets up a network, and programs of a job share memory
_OF_THE_NODE = ("/etc/hosts", "/etc/resolv.conf")
_NAMESPACES = ("pid", "mount")
_LEFT_OUT = ("/dev/mqueue", "/dev/shm")  # need a namespace of their own
_WRITABLE = ("/run", "/tmp", "/var/tmp")  # also of a container that is read-only, as with podman
_OF_THE_CALLER = ("_", "HOME", "OLDPWD", "PATH", "PWD", "SHLVL", "TMPDIR")
_FLAGS = (
    "ro", "rw", "bind", "rbind", "private", "rprivate", "slave", "rslave", "shared", "rshared",
    "nosuid", "nodev", "noexec",
)  # fmt: skip


class Wishes(msgspec.Struct, frozen=True):
    """What a user wants of a container, besides the image; "" or None stands for the image's.

    `below` are variables that the image may set otherwise, `mounts` entries of config.json, `home`
    the home directory to mount. It has more namespaces of its own than each has, in `unshare`.
    """

    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    env: tuple[str, ...] = ()
    below: tuple[str, ...] = ()
    cwd: str = ""
    mounts: tuple[dict[str, Any], ...] = ()
    home: str = ""
    read_only: bool = False
    user: str = ""
    terminal: bool = False
    umask: int = 0o022
    unshare: tuple[str, ...] = ()


def words_of(entrypoint: str) -> tuple[str, ...]:
    """Split the value of `--entrypoint`: JSON, or words as for a shell."""
    try:
        if entrypoint.startswith("["):
            return decode_as(entrypoint, tuple[str, ...])
        return tuple(shlex.split(entrypoint))
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(f"--entrypoint {entrypoint}: neither words nor JSON: {error}") from None


_KINDS = {"ipc": "ipc", "net": "network", "uts": "uts"}


def namespaces(text: str) -> tuple[str, ...]:
    """Read the value of `--unshare`: kinds of namespaces, as in config.json."""
    given = [kind for kind in text.split(",") if text]
    if wrong := [kind for kind in given if kind not in _KINDS]:
        raise UsageError(
            f"--unshare {text}: unknown namespace {wrong[0]!r}: only {', '.join(_KINDS)}"
        )
    return tuple(dict.fromkeys(_KINDS[kind] for kind in given))


def mount_of(text: str) -> dict[str, Any]:
    """Read the value of `--mount`: `SRC`, `SRC:DST` or `SRC:DST:FLAGS`, joined by `+` or `,`."""
    source, _, rest = text.partition(":")
    target, _, flags = rest.partition(":")
    given = [flag for flag in flags.replace("+", ",").split(",") if flag]
    if wrong := [flag for flag in given if flag not in _FLAGS]:
        raise UsageError(f"--mount {text}: cannot be {wrong[0]!r}, only {', '.join(_FLAGS)}")
    path = os.path.abspath(os.path.expanduser(source))
    target = target or path
    if not source or not target.startswith("/"):
        raise UsageError(f"--mount {text}: write SRC:DST, where DST is absolute")
    return _bind(path, target, *given)


def _bind(source: str, target: str, *flags: str) -> dict[str, Any]:
    kind = () if {"bind", "rbind"} & set(flags) else ("rbind",)
    return {"destination": target, "type": "bind", "source": source, "options": [*kind, *flags]}


def variables(given: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the values of `--env`: of one without a value, that of the caller."""
    found = []
    for entry in given:
        name, equals, _ = entry.partition("=")
        if not name:
            raise UsageError(f"--env {entry}: has no name; write NAME=VALUE")
        if equals:
            found.append(entry)
        elif name in environment:
            found.append(f"{name}={environment[name]}")
    return tuple(found)


def all_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the caller's variables, except those of this machine or of Slurm, or not UTF-8."""
    return tuple(
        f"{name}={value}"
        for name, value in environment.items()
        if name.isidentifier()
        and name not in _OF_THE_CALLER
        and is_unicode(value)
        and not name.startswith(("SLURM_", "SCRUN_", "PYXIS_", "XDG_"))
    )


def config_of(defaults: Defaults, wishes: Wishes, spec: dict[str, Any]) -> dict[str, Any]:
    """Make the config.json of what `scrun spec` prints, which is changed."""
    process = spec["process"]
    entrypoint = defaults.entrypoint if wishes.entrypoint is None else wishes.entrypoint
    command = wishes.command or (defaults.cmd if wishes.entrypoint in (None, ()) else ())
    if not (args := [*entrypoint, *command]):
        raise UsageError("the image names no command: write one after it")
    process["args"] = args
    process["env"] = _merged(
        process["env"], wishes.below, defaults.env, _added(wishes), wishes.env
    )
    process["cwd"] = wishes.cwd or defaults.cwd or "/"
    process["user"] = {**_user(defaults, wishes.user), "umask": wishes.umask}
    if not process["user"].get("additionalGids"):
        # crun's, with which it leaves the groups as they are; runc never takes an ordinary user's
        spec["annotations"] = {"run.oci.keep_original_groups": "1"}
    process["terminal"] = wishes.terminal
    process["noNewPrivileges"] = False
    process["capabilities"] = dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES)
    spec["root"] = {"path": ROOTFS, "readonly": wishes.read_only}
    spec["linux"]["namespaces"] = [
        {"type": kind} for kind in dict.fromkeys((*_NAMESPACES, *wishes.unshare))
    ]
    del spec["hostname"]
    mounts = [each for each in spec["mounts"] if each["destination"] not in _LEFT_OUT]
    mounts.append(_bind("/dev/shm", "/dev/shm", "nosuid", "nodev"))
    mounts += [_bind(path, path, "ro") for path in _OF_THE_NODE if os.path.exists(path)]
    if wishes.read_only:
        mounts += [_memory(path) for path in _WRITABLE]
    if wishes.home:
        mounts.append(_bind(wishes.home, wishes.home))
    spec["mounts"] = [*mounts, *wishes.mounts]
    paths = [process["cwd"]]
    paths += [each[end] for each in spec["mounts"] for end in ("source", "destination")]
    for text in (*args, *process["env"], *paths):
        if not is_unicode(text):
            raise UsageError(f"run: {os.fsencode(text)!r}: is not UTF-8, as config.json has to be")
    return spec


def _memory(path: str) -> dict[str, Any]:
    options = ["nosuid", "nodev", "mode=1777"]
    return {"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options}


def _added(wishes: Wishes) -> list[str]:
    home = [f"HOME={wishes.home}"] if wishes.home else []
    term = os.environ.get("TERM") if wishes.terminal else ""
    return [*home, *([f"TERM={term}"] if term else [])]


def _merged(*sources: Sequence[str]) -> list[str]:
    found: dict[str, str] = {}
    for source in sources:
        for entry in source:
            name, _, value = entry.partition("=")
            found[name] = value
    return [f"{name}={value}" for name, value in found.items()]


def _user(defaults: Defaults, wanted: str) -> dict[str, Any]:
    if not wanted:
        if defaults.unknown_user:
            raise UsageError(defaults.unknown_user)
        groups = {"additionalGids": list(defaults.groups)} if defaults.groups else {}
        return {"uid": defaults.uid, "gid": defaults.gid, **groups}
    uid, _, gid = wanted.partition(":")
    if not (
        uid.isdecimal() and uid.isascii() and (not gid or (gid.isdecimal() and gid.isascii()))
    ):
        raise UsageError(f"--user {wanted}: is not a number: write UID or UID:GID")
    return {"uid": int(uid), "gid": int(gid or 0)}
