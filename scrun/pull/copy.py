"""Makes a root file system that is written to, of an image that is not."""

import os

from scrun.images.locks import Lock
from scrun.images.squashfs import linked_in
from scrun.images.store import ROOTFS, Entry, Facts, Fill
from scrun.pull.programs import run
from scrun.pull.squashfs import unpack_squashfs


def copy_of(image: Entry, most: int) -> Fill:
    """Return what makes a copy of an image."""

    def fill(directory: str, lock: Lock) -> Facts:
        lock.say("it is being copied")
        target = os.path.join(directory, ROOTFS)
        if file := linked_in(image.directory):
            unpack_squashfs(file, target, most)
        else:
            copy_tree(os.path.realpath(image.rootfs), target)
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
