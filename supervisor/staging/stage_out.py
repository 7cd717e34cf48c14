"""Brings the changes in staged bundles back, or keeps them, and removes the bundles.

Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import msgspec

from scrun.core.errors import StagingError
from scrun.core.paths import read_regular, real_id
from scrun.core.trees import OPEN_FOLDER, remove
from scrun.model.adoption import is_held
from scrun.model.identity import is_dead
from scrun.oci.userns import has_several
from scrun.supervisor.contracts.staged import OVERLAY
from scrun.supervisor.core.files import not_ours
from scrun.supervisor.core.names import learn
from scrun.supervisor.log.supervisor_log import fault, log
from scrun.supervisor.staging.bring_back import bring_back, bring_difference_back
from scrun.supervisor.staging.commands import run
from scrun.supervisor.staging.id_maps import remove_mapped, remove_whoever_owns_it
from scrun.supervisor.staging.layers import Whiteouts, opaque, remove_link
from scrun.supervisor.staging.layout import BY_FUSE, ONE, PLACE, ROOTFS, UPPER, uppers_in
from scrun.supervisor.staging.live_mounts import detach_here
from scrun.supervisor.staging.mounts import FILES
from scrun.supervisor.staging.on_node import archives_in, unpacking
from scrun.supervisor.staging.owner import (
    OWNER,
    beginning,
    kept_prefix,
    read_owner,
    scratch_of,
    volumes_in,
)
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import USED, tidy
from scrun.supervisor.staging.volumes import bring_back as bring_back_volumes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

CONFIG = "config.json"
FINAL = "final"
"""The name of a file in a staged bundle whose changes do not come back."""


def return_changes(
    directory: str,
    original: str,
    *,
    privileged: bool,
    go_on: Callable[[], bool] = lambda: True,
    uppers: Sequence[str] = (),
) -> None:
    """Copy a container's changes in a copied root file system back.

    Args:
        directory: The staged bundle. Its config.json was written when the copy was complete.
        privileged: Whether the container ran as root of the node; if not, and with only one user,
            the copy has lost the owners of its files.
        go_on: Called now and then; returns whether there is time left.
        uppers: What was written on the nodes, brought here; empty: it is in the staged bundle.
    """
    try:
        since = os.lstat(config := os.path.join(directory, CONFIG)).st_ctime_ns
        owners = privileged or has_several(msgspec.json.decode(Path(config).read_bytes()))
    except OSError as error:
        raise StagingError(f"copying changes back from {directory}: {error.strerror}") from error
    copied = os.path.join(directory, ROOTFS)
    by_fuse = os.path.join(directory, OVERLAY, BY_FUSE)
    if uppers := uppers or uppers_in(os.path.join(directory, OVERLAY)):
        bring_difference_back(
            uppers,
            copied,
            original,
            since,
            marks=Whiteouts(opaque(users=not privileged), os.path.exists(by_fuse)),
            owners=owners,
            whole=os.path.exists(os.path.join(directory, OVERLAY, ONE)),
            go_on=go_on,
        )
    else:
        bring_back(copied, original, since, owners=owners, go_on=go_on)


def clean(directory: str, submitted: str) -> None:
    """Bring changes in a staged bundle back, and remove it, unless it belongs to somebody else.

    What its node had sent as an archive counts; what it had not is out of reach. Its container is
    gone; `submitted` is the root file system that may have been copied.
    """
    try:
        if not_ours(directory):  # then scrun did not stage it
            return
    except FileNotFoundError:
        return
    failure = ""
    if submitted:
        detach_here(submitted)
    try:
        bring_back_volumes(directory, Transfer())
    except StagingError as error:  # what did not come back is kept
        failure = str(error)
    copied = os.path.join(directory, ROOTFS)
    there = os.listdir(directory)
    goes_back = submitted and CONFIG in there and FINAL not in there
    if goes_back and os.path.isdir(copied) and not os.path.islink(copied):
        overlay, privileged = os.path.join(directory, OVERLAY), real_id("uid") == 0
        archives = archives_in(overlay)
        if len(archives) < len(places := _places(overlay)):
            where = ", ".join(places)
            log.warning("%s: the container's changes were on its node, in %s", directory, where)
        with unpacked(archives, owners=privileged) as uppers:
            original = os.path.realpath(submitted)
            return_changes(directory, original, privileged=privileged, uppers=uppers)
    stage_out(directory)
    if failure:
        log.warning("%s", failure)


def _places(overlay: str) -> list[str]:
    """Return the directories on its nodes in which a container wrote."""
    place = os.path.join(overlay, PLACE)
    return os.fsdecode(read_regular(place)).split("\n") if os.path.isfile(place) else []


@contextmanager
def unpacked(archives: Sequence[str], *, owners: bool) -> Iterator[list[str]]:
    """Unpack archives from nodes while the block runs; yield the directories for bringing back."""
    if not archives:
        yield []
        return
    into = tempfile.mkdtemp(prefix="scrun-", dir="/var/tmp")
    try:
        uppers = []
        for number, archive in enumerate(archives):
            folder = os.path.join(into, str(number))
            os.mkdir(folder, 0o700)
            run(unpacking(archive, folder, owners=owners), "unpacking the container's changes")
            uppers.append(os.path.join(folder, UPPER))
        yield uppers
    finally:
        remove_whoever_owns_it(into)


def stage_out(directory: str) -> None:
    """Remove what `stage_in` made, and the directory if it is empty then.

    Calls for the same directory in several threads wait for each other.
    """
    with _removals:
        removal = _at_work.setdefault(directory, threading.Lock())
    with removal:
        remove_link(directory)
        remove_all(directory, (CONFIG, FINAL, ROOTFS, FILES, USED, OVERLAY, OWNER), whole=True)


_removals = threading.Lock()
_at_work: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()


def _remove(parent: int, name: str, device: int, directory: str) -> None:
    """Remove an entry of a staged bundle, whoever owns it by now."""
    try:
        remove(parent, name, device)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        # The container had more ids than this process and gave a file in a copied mount away;
        # or it was one of a rootless engine, whose supervisor was killed.
        remove_mapped(os.path.join(directory, name))
        remove(parent, name, device)


def remove_all(directory: str, names: Sequence[str], *, whole: bool = False) -> None:
    """Remove entries of a staged bundle, and itself if it is `whole` and empty then."""
    try:
        parent = os.open(directory, OPEN_FOLDER)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StagingError(f"cleaning {directory}: {error.strerror}") from error
    try:
        device = os.fstat(parent).st_dev
        for name in names:
            _remove(parent, name, device, directory)
        if whole and not os.listdir(parent):
            os.rmdir(directory)
    except StagingError as error:
        raise StagingError(f"cleaning {directory}/{error}") from None
    except OSError as error:
        raise StagingError(f"cleaning {directory}: {error}") from error
    finally:
        os.close(parent)


def keep_changes(directory: str, container: str, beside: str) -> str:
    """Move changes out of a staged bundle, which is about to be removed.

    They go beside `beside`, a directory on its file system that stays. Returns what has them now:
    copied directories, the upper ones of overlays, or archives of these; "" if they are not there.
    """
    overlay, copied = os.path.join(directory, OVERLAY), os.path.join(directory, ROOTFS)
    found = archives_in(overlay)
    if not os.path.exists(os.path.join(overlay, PLACE)):  # else they are on the node
        found = uppers_in(overlay)
        if not found and os.path.isdir(copied) and not os.path.islink(copied):
            found = [copied]
    if not found:
        return ""
    place = tempfile.mkdtemp(prefix=kept_prefix(container), dir=beside)
    for number, path in enumerate(found):
        os.rename(path, os.path.join(place, f"{number}-{os.path.basename(path)}"))
    return place


def remove_leftovers(scratch: str | None, root: str) -> None:
    """Remove the staged bundles and volumes of dead supervisors of this machine and root.

    Changes are brought back first. A restart of the machine, or the end of a session, removes the
    records in /run, but not the scratch directory; without that, the records have the staged
    bundles. Blocks on the site's file system.
    """
    learn()
    directory = root if scratch is None else scratch_of(scratch)
    for line in tidy(volumes_in(directory, root)):
        log.warning("%s", line)
    if scratch is None:
        return
    try:
        names = [name for name in os.listdir(directory) if name.startswith(beginning(root))]
    except OSError:
        return
    for path in (os.path.join(directory, name) for name in names):
        owner = read_owner(path)
        if owner is None or not is_dead(owner.supervisor):
            continue
        if is_held(os.path.join(owner.root, owner.id)):  # a successor of its has it
            continue
        log.warning("%s: of container %s, whose supervisor is dead: removed", path, owner.id)
        try:
            clean(path, owner.rootfs)
        except (StagingError, OSError) as error:  # the next call tries again
            fault(path, error)
