"""scrun bundle: make a bundle of an image that lies on disk.

The image is one of an OCI image layout, as `skopeo copy … oci:DIRECTORY:TAG` and `podman save
--format oci-dir` write it. umoci unpacks it; for an ordinary user so that all files are the
user's. The bundle is made beside where it will be, and gets its name when it is complete: so there
is never half of one, and what fails or is interrupted leaves nothing.

config.json is what umoci makes of the image's, but for the terminal: jobs seldom have one, so the
container has none without `--tty`.

Errors: BundleError, when there is no such image, umoci is missing or fails; StateError, when
something is at the bundle's place already.
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
    """Somebody wants it to end."""


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Make it.

    Raises:
        BundleError: There is no such image, or it cannot be unpacked.
        StateError: There is something already.
    """
    del argv
    source, place = parsed.operands
    place = os.path.normpath(os.path.abspath(place))
    image = find_image(source)
    umoci = shutil.which("umoci")
    if umoci is None:
        raise BundleError("umoci is not installed, and unpacks images: apt install umoci")
    if os.path.lexists(place):
        raise StateError(f"{place} exists: remove it first, or name another place")
    caught: list[int] = []

    def end(number: int, frame: "FrameType | None") -> None:
        caught.append(number)
        raise _Interrupted

    for number in _ENDING:
        signal.signal(number, end)
    try:
        make(image, place, umoci, terminal=bool(parsed.options.get("tty")))
    except _Interrupted:
        return 128 + caught[0]
    return 0


def make(image: Image, place: str, umoci: str, *, terminal: bool) -> None:
    """Make a bundle.

    Args:
        image: Of what.
        place: Where; nothing is there yet.
        umoci: The program.
        terminal: Whether its program gets one.

    Raises:
        BundleError: It cannot be made; nothing is left.
    """
    parent, name = os.path.split(place)
    try:
        workshop = tempfile.mkdtemp(prefix=f".{name[:100]}.", dir=parent)
    except OSError as error:
        raise BundleError(f"{place}: cannot be made: {error.strerror}") from error
    try:
        _unpack(image, workshop, umoci)
        made = os.path.join(workshop, "bundle")
        _set_terminal(os.path.join(made, "config.json"), terminal=terminal)
        os.rename(made, place)
    except OSError as error:
        raise BundleError(f"{place}: cannot be made: {error.strerror}") from error
    finally:
        for number in _ENDING:  # once is enough to be heard
            signal.signal(number, signal.SIG_IGN)
        _remove(workshop)


def _unpack(image: Image, workshop: str, umoci: str) -> None:
    """Have umoci unpack an image to `bundle` in a directory.

    It takes all from the first colon for the tag, so it gets the layout under another name.
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
        said = [line.strip(" \u2a2f") for line in (done.stdout + done.stderr).splitlines()]
        reason = next(filter(None, reversed(said)), f"exit status {done.returncode}")
        raise BundleError(f"{image.layout}:{image.tag}: umoci cannot unpack it: {reason}")


def _set_terminal(name: str, *, terminal: bool) -> None:
    """Write config.json again, with a terminal for its program or without."""
    config = json.loads(read_file(name))
    config["process"]["terminal"] = terminal
    with open(name, "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)


def _remove(workshop: str) -> None:
    """Remove a tree of ours; an image may have directories that their owner cannot change."""
    for directory, folders, _ in os.walk(workshop):
        for folder in folders:
            path = os.path.join(directory, folder)
            if stat.S_ISDIR(os.lstat(path).st_mode):
                os.chmod(path, 0o700)
    shutil.rmtree(workshop)
