"""Makes a root file system that is written to, of an image that is not."""

import os

from scrun.images.locks import Lock
from scrun.images.store import ROOTFS, Entry, Facts, Fill
from scrun.pull.programs import run


def copy_of(image: Entry) -> Fill:
    """Return what makes a copy of an image."""

    def fill(directory: str, lock: Lock) -> Facts:
        lock.say("it is being copied")
        copy_tree(os.path.realpath(image.rootfs), os.path.join(directory, ROOTFS))
        facts = image.facts
        return Facts(facts.source, facts.digest, writable=True, defaults=facts.defaults)

    return fill


def copy_tree(rootfs: str, target: str) -> None:
    """Copy a root file system.

    Raises:
        ImageError: It fails.
    """
    owners = () if os.geteuid() == 0 else ("--no-preserve=ownership",)
    options = ("-a", *owners, "--reflink=auto", "--one-file-system", "--")
    content = os.path.join(rootfs, ".")
    run("cp", *options, content, target, what=f"{rootfs}: cannot be copied")
