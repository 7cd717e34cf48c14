"""Containers whose image the nodes do not see: a copy of it comes into a store of their own.

The image is as podman's driver vfs has it: a directory, one more for each container, and records
of what they were made from. It is mounted where it is after the nodes have begun, for this
machine alone.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from scrun.images.leases import those_that_hold

if TYPE_CHECKING:
    from tests.harness.site import Site
    from tests.stress.chaos.container import Container

STORE = "images"
"""The store, on a container's small file system."""

_IMAGE = "a" * 64
_FILES = 1500  # so that a copy takes a while


class HiddenImage:
    """An image, and directories of containers, that only this machine has."""

    def __init__(self, site: "Site") -> None:
        self._site = site
        self._layers = [{"id": _IMAGE, "diff-digest": f"sha256:{1:064x}", "diff-size": 8 << 20}]
        self._root = site.base / "v"
        hidden = site.base / "hidden"
        for folder in (hidden, self._root):
            folder.mkdir()
            site.user.give(folder)
        subprocess.run(["mount", "--bind", hidden, self._root], check=True)
        self._directories = self._root / "vfs" / "dir"
        image = self._directories / _IMAGE
        image.mkdir(parents=True)
        subprocess.run(["cp", "-a", f"{site.rootfs}/.", image], check=True)
        (image / "srv").mkdir(exist_ok=True)
        for number in range(_FILES):
            (image / "srv" / str(number)).write_text(str(number))
        (self._root / "vfs-layers").mkdir()
        subprocess.run(["chown", "-R", f"{site.user.uid}:{site.user.gid}", hidden], check=True)

    def container(self, number: int) -> str:
        """Return the directory of one more container of it."""
        name = f"{number & 0xFFFFFFFF:064x}"
        path = self._directories / name
        # what a container changes is never changed in place
        subprocess.run(["cp", "-al", self._directories / _IMAGE, path], check=True)
        self._layers.append({"id": name, "parent": _IMAGE})
        records = self._root / "vfs-layers" / "layers.json"
        new = records.with_suffix(".new")
        new.write_text(json.dumps(self._layers))
        self._site.user.give(new)
        new.rename(records)
        return str(path)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self._root], check=True)


def left_of(disk: str) -> list[str]:
    """Return what should not be in the store when its only container is gone."""
    store = Path(disk, STORE)
    left = [f"{name} on its file system" for name in os.listdir(disk) if name != STORE]
    if (store / "tmp").exists():
        left += [f"{name}, half made" for name in os.listdir(store / "tmp")]
    if (store / "leases").exists():
        for key in os.listdir(store / "leases"):
            left += [f"a lease of {key}" for _ in those_that_hold(str(store / "leases" / key))]
    return left


async def gone(container: "Container") -> None:
    disk = container.testbed.disk(container.plan)
    assert disk is not None
    shutil.rmtree(Path(disk, STORE), ignore_errors=True)
    container.hit("the store of images is gone")
