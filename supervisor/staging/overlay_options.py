"""Reads and writes the options of overlay mounts. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

LONGEST = 4000
"""The most bytes of a mount's options: the kernel takes a page, with what the runtime adds."""

# others may change what the layers mean
_HARMLESS = re.compile(
    r"rw|ro|userxattr|volatile|(uuid|xino|index|nfs_export|verity|fsync)=[a-z]+"
    r"|redirect_dir=(off|nofollow)|metacopy=off|default_permissions|noatime|relatime",
    re.ASCII,
)
# these leave files without content, or elsewhere, in the layer that is written to
_MARKING = re.compile(r"redirect_dir=(on|follow)|metacopy=on", re.ASCII)
_OCTAL = re.compile(r"\\([0-3][0-7][0-7])", re.ASCII)
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/@%+=~^-]+", re.ASCII)


class Unusable(ValueError):
    """The layers cannot be mounted; says why, as the end of a sentence about them."""


class Overlay(msgspec.Struct, frozen=True):
    """The layers of an overlay, as its options name them.

    Attributes:
        layers: The directories, the one that is written to first; perhaps relative.
        users: Whether its marks are in the extended attributes that users may set.
        why_not: Why a node cannot mount them as they are, though it could mount copies; as the end
            of a sentence about them.
        by_fuse: Whether they may have the marks of fuse-overlayfs.
        plain: Whether the first is all that the container has, and the other its whole image.
    """

    layers: tuple[str, ...]
    users: bool
    why_not: str = ""
    by_fuse: bool = False
    plain: bool = False


def parse(options: str) -> Overlay:
    r"""Parse the options of a mounted overlay.

    Args:
        options: As mountinfo has them. Commas and backslashes of a value are octal there, `\054`;
            a colon in a lower directory has had a backslash before it all the time.

    Raises:
        Unusable: The overlay is not understood here.
    """
    lower: list[str] = []
    upper = ""
    users = False
    why_not = ""
    for word in options.split(","):
        name, _, escaped = word.partition("=")
        value = _OCTAL.sub(lambda found: chr(int(found[1], 8)), escaped)
        if name == "lowerdir":
            lower = _split(value)
        elif name == "lowerdir+":
            lower.append(value)
        elif name == "upperdir":
            upper = value
        elif name == "workdir":
            continue
        elif _MARKING.fullmatch(word):
            why_not = f"are mounted with {word}"
        elif not _HARMLESS.fullmatch(word):
            raise Unusable(f"are mounted with {word[:64]}")
        users |= word == "userxattr"
    if not lower or not upper or "\\" in upper:
        raise Unusable("are not known: its options name no upper and lower directory")
    return Overlay((upper, *lower), users, why_not)


def _split(value: str) -> list[str]:
    """Split lower directories at colons; a backslash protects the next character."""
    found = [""]
    characters = iter(value)
    for one in characters:
        if one == "\\":
            found[-1] += next(characters, "")
        elif one == ":":
            found.append("")
        else:
            found[-1] += one
    if not all(found):  # `::` begins layers with data only
        raise Unusable("have layers with data only")
    return found


def is_plain(path: str) -> bool:
    """Return whether a path means itself in options, in config.json and in a shell."""
    return bool(_PLAIN_PATH.fullmatch(path))


def options_of(lower: Sequence[str], written: tuple[str, str] | None, *, users: bool) -> list[str]:
    """Return the options for an overlay of plain paths.

    Args:
        lower: The directories below, the upmost first.
        written: What is written to, and the kernel's own on the same file system; None: nothing
            can be written.
        users: Whether the mounting process has rights in a user namespace only.

    Raises:
        Unusable: They are too long.
    """
    words = [f"lowerdir={':'.join(lower)}"]
    if written is not None:
        words += [f"upperdir={written[0]}", f"workdir={written[1]}"]
    words += marks(users=users)
    if len(",".join(words)) > LONGEST:
        raise Unusable(f"are too many: {len(lower)}, with long paths")
    return words


def opaque(*, users: bool) -> str:
    """Return the extended attribute of a directory that hides those of the layers below."""
    return ("user" if users else "trusted") + ".overlay.opaque"


def marks(*, users: bool) -> list[str]:
    """Return the options that say how the kernel marks changes."""
    # only files, directories and deletions come back, no marks of renames
    return ["userxattr"] if users else ["redirect_dir=nofollow", "metacopy=off", "index=off"]


def mount_of_layers(name: str, options: Sequence[str]) -> dict[str, Any]:
    """Return the entry of `mounts` for a directory in the root directory."""
    return {
        "destination": f"/{name}",
        "type": "overlay",
        "source": "overlay",
        "options": list(options),
    }
