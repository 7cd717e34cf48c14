"""A short name for the links to layers, where an overlay has many of them.

The options of a mount have to fit into a page, and the path of a staged bundle contains a
container's id. So a link beside the staged bundle leads to the links to the layers.
"""

import contextlib
import os
from _blake2 import blake2s  # hashlib brings OpenSSL

_MANY = 16


def folder_of(links: str, directory: str, count: int) -> str:
    """Return the path by which mounts reach the links."""
    if count <= _MANY:
        return links
    path = _name(directory)
    try:
        os.symlink(links, path)
    except OSError:  # the name is taken, or only the bundle itself can be written
        return links
    return path


def remove_link(directory: str) -> None:
    """Remove the link of a staged bundle, if it has one."""
    path = _name(directory)
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith(os.path.join(directory, "")):
            os.unlink(path)


def _name(directory: str) -> str:
    digest = blake2s(os.fsencode(directory), digest_size=5).hexdigest()
    return os.path.join(os.path.dirname(directory), f".scrun-{digest}")
