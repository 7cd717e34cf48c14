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
import signal
import stat
import subprocess
import tempfile

from scrun.cli.parse import Parsed
from scrun.core.errors import BundleError, StateError
from scrun.oci.document import read_file
from scrun.oci.image import Image, find_image

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


class _Interrupted(BaseException):
    """A signal has asked the command to end."""


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
    umoci = shutil.which("umoci")
    if umoci is None:
        raise BundleError("umoci, which unpacks images, is not installed: apt install umoci")
    if os.path.lexists(target):
        raise StateError(f"{target} exists: remove it first, or name another path")
    caught: list[int] = []

    def end(number: int, frame: "FrameType | None") -> None:
        caught.append(number)
        raise _Interrupted

    for number in _ENDING:
        signal.signal(number, end)
    try:
        make(image, target, umoci, terminal=bool(parsed.options.get("tty")))
    except _Interrupted:
        return 128 + caught[0]
    return 0


def make(image: Image, target: str, umoci: str, *, terminal: bool) -> None:
    """Make a bundle.

    Args:
        image: The image.
        target: The bundle's path, which does not exist yet.
        umoci: The program.
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
        _unpack(image, workshop, umoci)
        made = os.path.join(workshop, "bundle")
        _set_terminal(os.path.join(made, "config.json"), terminal=terminal)
        os.rename(made, target)
    except OSError as error:
        raise BundleError(f"{target}: cannot be made: {error.strerror}") from error
    finally:
        for number in _ENDING:  # nothing may interrupt the cleanup
            signal.signal(number, signal.SIG_IGN)
        _remove(workshop)


def _unpack(image: Image, workshop: str, umoci: str) -> None:
    """Have umoci unpack an image to `bundle` in a directory.

    It takes everything after the first colon for the tag, so it gets the layout by a symbolic
    link.
    """
    os.symlink(image.layout, os.path.join(workshop, "image"))
    rootless = [] if os.geteuid() == 0 else ["--rootless"]
    done = subprocess.run(
        [umoci, "unpack", *rootless, f"--image=image:{image.tag}", "bundle"],
        cwd=workshop,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        lines = [line.strip(" \u2a2f") for line in (done.stdout + done.stderr).splitlines()]
        reason = next(filter(None, reversed(lines)), f"exit status {done.returncode}")
        raise BundleError(f"{image.layout}:{image.tag}: umoci cannot unpack it: {reason}")


def _set_terminal(name: str, *, terminal: bool) -> None:
    """Rewrite config.json, with or without a terminal for its program."""
    config = json.loads(read_file(name))
    config["process"]["terminal"] = terminal
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
