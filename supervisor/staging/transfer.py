"""Carries changes of a volume from one side to the other, and keeps what is known beside it.

Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from scrun.core.errors import StagingError, described
from scrun.core.paths import python_code, read_regular
from scrun.core.typed import decode_as
from scrun.core.whole_files import PART, write_whole
from scrun.images.leases import Lease
from scrun.oci.signals import its_end
from scrun.supervisor.staging.bring_back import Merged, merge
from scrun.supervisor.staging.id_maps import run_mapped
from scrun.supervisor.staging.mounts import DATA

if TYPE_CHECKING:
    from collections.abc import Mapping

STATE = "volume.json"
_FOLDERS = "folders.json"
RECORDS = (STATE, STATE + PART, _FOLDERS, _FOLDERS + PART)
"""The files; first the one that says that the copy counts."""

_LARGEST = 1 << 20
_LARGEST_FOLDERS = 1 << 28


class VolumeState(msgspec.Struct, frozen=True):
    """A copy of `source`.

    Attributes:
        since: Changes in the copy after this time have to come back (nanoseconds; a time of the
            copy's file system).
        others_since: Changes in the source after this time are others'.
        owners: Whether owners of files count: a container that has used it had several users.
        written: Whether any container could write to it.
        conflicts: What both have changed; of what came back before.
    """

    source: str
    is_file: bool
    since: int
    others_since: int
    owners: bool
    written: bool
    conflicts: tuple[str, ...] = ()


def read_state(place: str) -> VolumeState | None:
    """Return what is known of a copy; None if it does not count."""
    if not os.path.isdir(os.path.join(place, DATA)):  # it was kept
        return None
    try:
        return decode_as(read_regular(os.path.join(place, STATE), _LARGEST), VolumeState)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        raise StagingError(f"{place}/{STATE}: {error}") from error


def read_folders(place: str) -> dict[str, tuple[int, int]]:
    """Return the inodes of the directories: see `bring_back.Merged`."""
    try:
        content = read_regular(os.path.join(place, _FOLDERS), _LARGEST_FOLDERS)
        return decode_as(content, dict[str, tuple[int, int]])
    except FileNotFoundError:
        return {}
    except msgspec.MsgspecError as error:
        raise StagingError(f"{place}/{_FOLDERS}: {error}") from error


def write_state(place: str, state: VolumeState) -> None:
    """Make a copy count; see `VolumeState`."""
    write_whole(os.path.join(place, STATE), msgspec.json.encode(state))


def write_folders(place: str, folders: Mapping[str, tuple[int, int]]) -> None:
    """Keep the inodes of the directories."""
    write_whole(os.path.join(place, _FOLDERS), msgspec.json.encode(folders))


_PAUSE = 0.5  # seconds between two lines of progress
_MERGING = 3600.0
_PROGRAM = "from scrun.supervisor.programs.carry_over import main; sys.exit(main(sys.argv[1]))"


class Transfer(msgspec.Struct, frozen=True):
    """How volumes are copied.

    Attributes:
        lease: The container's, where it is made.
        limit: The most bytes of one; 0: any number.
        tell: Called now and then with a line about the progress.
        wait: Called now and then; raises when it is to be given up.
    """

    lease: Lease | None = None
    limit: int = 0
    tell: Callable[[str], None] = lambda text: None
    wait: Callable[[], None] = lambda: None

    @property
    def whose(self) -> tuple[str, str]:
        """The container's id, and the root directory of its record."""
        return (self.lease.id, self.lease.root) if self.lease else ("", "")


def why(error: Exception) -> str:
    """Return what is wrong, for the end of a line."""
    return described(error) if isinstance(error, OSError) else str(error)


def carry_over(
    parts: tuple[str, str],
    state: VolumeState,
    place: str,
    since: int,
    others_since: int,
    transfer: Transfer,
    *,
    inwards: bool = False,
) -> Merged:
    """Carry over changes as this user, or as one with the subordinate ids as well; see `Order`."""
    order = Order(parts, state, place, since, others_since, transfer.limit, inwards)
    try:
        return carried_here(order, transfer)
    except PermissionError:
        if os.geteuid() == 0 or not state.owners:
            raise
        text = msgspec.json.encode(order).decode()
        done = run_mapped(python_code(_PROGRAM, text), _MERGING)
        if done is None:  # there are no subordinate ids
            raise
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise StagingError(said or f"it {its_end(done.returncode)}")
    return decode_as(done.stdout, Merged)


class Order(msgspec.Struct, frozen=True):
    """What to carry over, from where and to where; see `bring_back.merge`. No limit is 0."""

    parts: tuple[str, str]
    state: VolumeState
    place: str
    since: int
    others_since: int
    limit: int
    inwards: bool


def carried_here(order: Order, transfer: Transfer) -> Merged:
    """Carry out an order with this process's rights.

    After a StagingError, OSError or RecursionError it is incomplete; but each file that was
    carried over is whole.
    """
    copied, original = order.parts
    names: list[str] = []
    if order.state.is_file:
        names = [os.path.basename(original)]
        copied, original = os.path.dirname(copied), os.path.dirname(original)
    shown = time.monotonic()
    total = 0

    def count(size: int) -> None:
        nonlocal total, shown
        total += size
        if order.limit and total > order.limit:
            raise StagingError(f"it has more than {order.limit >> 20} MiB")
        if (now := time.monotonic()) > shown + _PAUSE:
            shown = now
            transfer.tell(f"volume {order.parts[0]}: {total >> 20} MiB copied")

    def go_on() -> bool:
        transfer.wait()
        return True

    return merge(
        copied,
        original,
        names,
        since=order.since,
        others_since=order.others_since,
        owners=order.state.owners,
        known=read_folders(order.place),
        inwards=order.inwards,
        go_on=go_on,
        count=count,
    )
