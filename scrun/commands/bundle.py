"""scrun bundle: make a bundle from an image on disk.

The image is in an OCI image layout, as `skopeo copy … oci:DIRECTORY:TAG` and `podman save
--format oci-dir` write it. umoci unpacks it; for an ordinary user, all files belong to that user.
The bundle is made in a temporary directory beside its path, and renamed when it is complete: so an
incomplete bundle never appears, and a failure or an interrupt leaves nothing behind.

umoci makes config.json from the image's configuration. Only the terminal is changed: jobs seldom
have one, so the container has none without `--tty`.

Errors: BundleError, when there is no such image, or umoci is missing or fails; StateError, when
the bundle's path exists already.
"""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Collection

from scrun.cli.parse import Parsed
from scrun.core.errors import BundleError, StateError
from scrun.oci.document import read_file
from scrun.oci.image import Image, find_image
from scrun.pull.interrupts import Interrupted, interruptible
from scrun.pull.layout import unpack, volumes_of
from scrun.pull.programs import find


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Make the bundle.

    Raises:
        BundleError: There is no such image, or it cannot be unpacked.
        StateError: The path exists already.
    """
    del argv
    source, target = parsed.operands
    target = os.path.normpath(os.path.abspath(target))
    image = find_image(source)
    find("umoci")
    if os.path.lexists(target):
        raise StateError(f"{target} exists: remove it first, or name another path")
    try:
        with interruptible():
            make(image, target, terminal=bool(parsed.options.get("tty")))
    except Interrupted as signal:
        return signal.status
    return 0


def make(image: Image, target: str, *, terminal: bool) -> None:
    """Make a bundle.

    Args:
        image: The image.
        target: The bundle's path, which does not exist yet.
        terminal: Whether the container's program gets a terminal.

    Raises:
        BundleError: It cannot be made; nothing is left behind.
    """
    parent, name = os.path.split(target)
    try:
        workshop = tempfile.mkdtemp(prefix=f".{name[:100]}.", dir=parent)
    except OSError as error:
        raise BundleError(f"{target}: cannot be made: {error.strerror}") from error
    try:
        made = unpack(image, workshop)
        _adapt(os.path.join(made, "config.json"), volumes_of(image), terminal=terminal)
        os.rename(made, target)
    except OSError as error:
        raise BundleError(f"{target}: cannot be made: {error.strerror}") from error
    finally:
        _remove(workshop)


def _adapt(name: str, volumes: Collection[str], *, terminal: bool) -> None:
    """Rewrite config.json.

    Args:
        name: Its path.
        volumes: The image's volumes: umoci mounts an empty tmpfs over what is there.
        terminal: Whether the program gets a terminal.
    """
    config = json.loads(read_file(name))
    config["process"]["terminal"] = terminal
    config["mounts"] = [
        mount
        for mount in config.get("mounts") or []
        if not (mount.get("type") == "tmpfs" and mount["destination"] in volumes)
    ]
    with open(name, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)


def _remove(workshop: str) -> None:
    """Remove the temporary directory; the image may have directories that are read-only."""
    for directory, folders, _ in os.walk(workshop):
        for folder in folders:
            path = os.path.join(directory, folder)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                os.chmod(path, 0o700)
    shutil.rmtree(workshop)
