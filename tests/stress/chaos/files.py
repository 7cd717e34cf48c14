"""What an engine sees of a container's files, looked at while things break.

An overlay stands for what an engine mounts, and a thread for an engine that enters namespaces. A
fault may make a look fail. The next one works, as long as the container lives.
"""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import trio

from scrun.core import namespaces as ns
from scrun.supervisor.core.threads import in_last_thread
from tests.stress.chaos.forwards import Asking

if TYPE_CHECKING:
    from tests.stress.chaos.container import Container

SETTINGS = 'live_files = "storage"\n'
"""Both are shown: what podman enters, and what it has mounted."""

UNDER_CONMON = {"_OCI_SYNCPIPE": "3"}
"""In the environment of `create`: podman calls it."""

_PAUSE = 0.1
_LASTS = 100.0
_SETTLES = 10.0
_NOT_SHOWN = ("do not see the container's files", "see the root file system as it was")


@asynccontextmanager
async def storage_of(container: "Container") -> AsyncIterator[None]:
    """Have the root file system of a container mounted, as an engine has it until `delete`."""
    if not container.plan.files:
        yield
        return
    testbed = container.testbed
    place = testbed.storage(container.plan)
    for name in ("merged", "upper", "work"):
        (place / name).mkdir(parents=True)
    options = f"lowerdir={testbed.site.rootfs},upperdir={place}/upper,workdir={place}/work"
    ns.mount("overlay", f"{place}/merged", "overlay", 0, options)
    try:
        yield
        ns.detach(f"{place}/merged")
        with trio.move_on_after(_SETTLES):
            while _mounts_below(place):
                await trio.sleep(0.1)
        container.seen.left += [f"a mount on {path}" for path in _mounts_below(place)]
    finally:
        for path in reversed(_mounts_below(place)):
            ns.detach(path)
        shutil.rmtree(place)


def _mounts_below(place: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [path for line in lines if (path := line.split()[4]).startswith(f"{place}/")]


def file_systems(base: str) -> set[str]:
    """Return the numbers of the file systems by FUSE here, without what others have mounted.

    Args:
        base: What is in the paths of our own mounts.
    """
    with TemporaryDirectory() as place:
        ns.mount("fusectl", place, "fusectl", 0)
        try:
            found = {f"0:{number}" for number in os.listdir(place)}
        finally:
            ns.detach(place)
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            lines = mounts.read_text().splitlines()
        except OSError:  # it has ended
            continue
        found -= {line.split()[2] for line in lines if base not in line}
    return found


class Looking(Asking):
    """Somebody who looks at the files of one container, in both places."""

    async def run(self) -> None:
        """Look until the container has ended."""
        container = self._container
        while not (container.is_over or self.may_break):
            answered = self._answered
            with trio.move_on_after(_LASTS) as patience:
                try:
                    await self._look()
                    answered.set()
                except OSError as error:
                    container.note(f"a look failed: {error}")
                    container.seen.broken += not self.may_break
                    if self._is_told():
                        break
            if patience.cancelled_caught:
                container.seen.hangs.append(f"a look takes longer than {_LASTS:g} s")
                break
            await trio.sleep(_PAUSE)
        container.note(f"{next(self._numbers) - 1} looks")
        self._answered.set()

    async def _look(self) -> None:
        container = self._container
        namespace = os.open(f"/proc/{container.where.anchor}/ns/mnt", os.O_RDONLY)
        storage = container.testbed.storage(container.plan)
        text = f"{next(self._numbers)}\n"
        calls = (
            partial(_in_anchor, namespace, text),
            partial(_written, f"{storage}/merged/looked", text),
        )
        for call in calls:
            found = await trio.to_thread.run_sync(call, abandon_on_cancel=True)
            if found != text:
                container.seen.wrong_answers.append(f"{found!r} instead of {text!r}")

    def _is_told(self) -> bool:
        """Tell whether the container's log says that nothing is shown."""
        container = self._container
        log = Path(container.testbed.root_of(container.plan), container.id, "log")
        try:
            said = log.read_text(errors="replace")
        except OSError:
            return False
        return any(words in said for words in _NOT_SHOWN)


def _in_anchor(namespace: int, text: str) -> str:
    def enter() -> str:
        try:
            ns.unshare(ns.NEW_ROOT)
            ns.enter(namespace, ns.NEW_MOUNT)
        finally:
            os.close(namespace)
        return _written("/dev/shm/looked", text)

    return in_last_thread(enter)


def _written(path: str, text: str) -> str:
    """Write a text to a file; return what is there then, if that is the same file system."""
    with open(path, "w") as file:
        file.write(text)
        device = os.fstat(file.fileno()).st_dev
    with open(path) as file:
        return file.read() if os.fstat(file.fileno()).st_dev == device else text
