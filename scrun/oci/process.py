"""The program of an `exec`: `process` of config.json, from a file or a command line. Pure.

An engine writes all of it into a file (`--process`). A user names a command, and the rest is
copied from the container's first process, as in runc and crun.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scrun.core.errors import BundleError, StateError, UsageError
from scrun.core.text import is_unicode
from scrun.core.typed import convert
from scrun.oci.config import Process, explain
from scrun.oci.document import decode

# As in runc and crun: not inheritable and ambient, which would also give them to programs that it
# starts as another user (CVE-2022-29162 is of that kind).
_SETS = ("bounding", "effective", "permitted")


class ExecOptions(msgspec.Struct, frozen=True):
    """The options of `exec` that describe the program; its user is `UID` or `UID:GID`.

    Variables (`NAME=VALUE`), groups and capabilities are additional ones.
    """

    args: Sequence[str]
    env: Sequence[str] = ()
    cwd: str | None = None
    user: str | None = None
    groups: Sequence[str] = ()
    capabilities: Sequence[str] = ()
    no_new_privileges: bool = False
    terminal: bool = False


def process_from_file(content: bytes, name: str) -> tuple[dict[str, Any], Process]:
    """Parse and check the file of `--process`."""
    raw = decode(content, name)
    if not isinstance(raw, dict):
        raise BundleError(f"{name}: is not the description of a process")
    return raw, checked(raw, name)


def process_from_options(options: ExecOptions, first: Mapping[str, Any]) -> dict[str, Any]:
    """Make the description of a process from a command line, and the container's own process."""
    process = copy.deepcopy(dict(first))
    process.pop("consoleSize", None)
    process["args"] = list(options.args)
    process["terminal"] = options.terminal
    if options.cwd is not None:
        process["cwd"] = options.cwd
    process["env"] = _merged(process.get("env") or [], options.env)
    if options.no_new_privileges:
        process["noNewPrivileges"] = True
    if options.user is not None:
        umask = (process.get("user") or {}).get("umask")
        process["user"] = _user(options.user)
        if umask is not None:
            process["user"]["umask"] = umask
    if options.groups:
        user = process["user"] = process.get("user") or {}  # null is absent
        known = user.get("additionalGids") or []
        user["additionalGids"] = [*known, *(_number(group, "group") for group in options.groups)]
    if options.capabilities:
        names = [f"CAP_{name.upper().removeprefix('CAP_')}" for name in options.capabilities]
        sets = process["capabilities"] = process.get("capabilities") or {}
        for kind in _SETS:
            sets[kind] = list(dict.fromkeys([*(sets.get(kind) or []), *names]))
    return process


def checked(raw: Mapping[str, Any], name: str) -> Process:
    """Check the description of a process; BundleError names the member that is wrong."""
    try:
        process = convert(raw, Process)
    except msgspec.ValidationError as error:
        raise BundleError(f"{name}: {explain(error)}") from error
    if not process.args or not process.args[0]:
        raise BundleError(f"{name}: args: is empty")
    if not process.cwd.startswith("/"):
        raise BundleError(f"{name}: cwd: {process.cwd!r}: is not an absolute path")
    texts = [("cwd", process.cwd)]
    texts += [(f"args[{i}]", text) for i, text in enumerate(process.args)]
    texts += [(f"env[{i}]", text) for i, text in enumerate(process.env)]
    for member, text in texts:
        if "\0" in text:
            raise BundleError(f"{name}: {member}: contains a NUL character")
        if not is_unicode(text):  # the runtime would get something else
            raise BundleError(f"{name}: {member}: is not UTF-8, as JSON requires")
    return process


def fitting_user(process: dict[str, Any], container: Mapping[str, Any]) -> None:
    """Check that the program's user exists in a container that runs with this config.json.

    There may be only one: an ordinary user can map only the own id (user_namespaces(7)). Groups
    that cannot be set are removed.
    """
    linux = container.get("linux") or {}
    user = process.get("user") or {}
    for kind, member in (("uid", "uidMappings"), ("gid", "gidMappings")):
        ranges = [(each["containerID"], each["size"]) for each in linux.get(member) or []]
        wanted = user.get(kind) or 0
        if ranges and not any(first <= wanted < first + size for first, size in ranges):
            known = [
                str(first) if size < 2 else f"{first}-{first + size - 1}" for first, size in ranges
            ]
            raise StateError(
                f"{kind} {wanted} does not exist in the container: on the node it has only {kind} "
                f"{', '.join(known)}: take one of these, or create the container with this {kind}"
            )
    if sum(entry["size"] for entry in linux.get("gidMappings") or []) == 1:
        user.pop("additionalGids", None)


def _merged(env: Sequence[str], more: Sequence[str]) -> list[str]:
    for entry in more:
        if "=" not in entry or entry.startswith("="):
            raise UsageError(f"--env {entry!r}: NAME=VALUE expected")
    # the last of several with the same name counts; getenv(3) would find the first
    added = {entry.partition("=")[0]: entry for entry in more}
    return [*(entry for entry in env if entry.partition("=")[0] not in added), *added.values()]


def _user(text: str) -> dict[str, Any]:
    uid, colon, gid = text.partition(":")
    user = {"uid": _number(uid, "user")}
    user["gid"] = _number(gid, "group") if colon else 0
    return user


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 2**32):
        raise UsageError(
            f"{what} {text!r}: has to be a number, because names are the container's own"
        )
    return int(text)
