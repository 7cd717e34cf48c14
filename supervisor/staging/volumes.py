"""Volumes: directories and files that a container mounts, and only the submit host has.

Container and node see a copy, on the file system that they share. All containers that use a volume
at the same time have the same copy; when one ends, the changes in it come back, and the last
one removes it. The engine's files for one container (/etc/hosts) have a copy in its staged bundle.

::

    ~volumes-ROOT/KEY/      beside the staged bundles; KEY is a digest of the source
        lock                held by whoever copies, brings back or removes
        volume.json         is there while the copy is complete, and counts
        folders.json        the inodes of directories (`bring_back.Merged`)
        data                the copy; of a file, the directory that has it
        leases/             a file for each container (`scrun.images.leases`)
    BUNDLE/files/N/         the same, without `lock` and `leases`, for one container
    BUNDLE/volumes.json     which volumes a container uses; written before the first is copied

Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from scrun.core.errors import StagingError, described
from scrun.core.paths import read_regular
from scrun.core.trees import everything_below
from scrun.core.typed import decode_as
from scrun.images.leases import Lease, give_back, locked, locked_if_free, take, those_that_hold
from scrun.supervisor.core.files import not_ours, write
from scrun.supervisor.log.supervisor_log import log
from scrun.supervisor.staging.bring_back import NEVER
from scrun.supervisor.staging.id_maps import remove_whoever_owns_it
from scrun.supervisor.staging.mounts import DATA, Volume, data_in
from scrun.supervisor.staging.owner import beside, kept_prefix
from scrun.supervisor.staging.transfer import (
    RECORDS,
    Transfer,
    VolumeState,
    carry_over,
    read_folders,
    read_state,
    why,
    write_folders,
    write_state,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

USED = "volumes.json"
"""The file in a staged bundle that names the volumes of its container."""

_LEASES = "leases"
_LOCK = "lock"
_LARGEST = 1 << 20
_MOST_NAMED = 5
_MOST_KNOWN = 50  # paths, of up to 16 KiB each in ASCII: the file has to stay below _LARGEST
# the kernel's file times are some milliseconds behind the clock; some file systems keep seconds
_COARSE = 5  # CLOCK_REALTIME_COARSE, from which the kernel takes file times
_PAUSE = 0.002
_LONGEST = 3.0  # somebody may set the clock back


class _Used(msgspec.Struct, frozen=True):
    """What a container uses; `owners`: it has several users, so that the owners of files count."""

    lease: Lease
    volumes: tuple[Volume, ...]
    owners: bool


def bring_in(
    directory: str,
    volumes: Sequence[Volume],
    transfer: Transfer,
    *,
    owners: bool,
    mode: int,
) -> list[str]:
    """Copy the volumes of a container to where its nodes see them, below directories of a mode.

    With several users the owners count. Returns what could not be copied, for the container's
    user; after an error `bring_back` undoes the others.
    """
    if not volumes:
        return []
    assert transfer.lease is not None
    used = _Used(transfer.lease, tuple(volumes), owners)
    write(os.path.join(directory, USED), msgspec.json.encode(used))
    missing = []
    for volume in used.volumes:
        try:
            left_out = _bring_in(volume, used, transfer, mode)
        except (OSError, RecursionError, StagingError) as error:
            raise StagingError(
                f"mount {volume.destination}: {volume.source} is only on this machine, and cannot "
                f"be copied: {why(error)}"
            ) from error
        if left_out:
            missing.append(
                f"sockets, devices and mounts in {volume.destination} ({_named(left_out)})"
            )
    return missing


def _bring_in(volume: Volume, used: _Used, transfer: Transfer, mode: int) -> Sequence[str]:
    if not volume.shared:
        os.mkdir(volume.place, mode)
        return _fill(volume, used, transfer)
    leases = os.path.join(volume.place, _LEASES)
    with _held(volume.place, transfer, mode) as state:
        if state is not None and not those_that_hold(leases):  # its last user never ended
            try:
                _settle(state, volume.place, "", _base(volume.place), transfer)
            except StagingError as error:  # what did not come back is kept
                transfer.tell(str(error))
                log.warning("%s", error)
            state = None
        take(leases, used.lease)
        if state is None:
            return _fill(volume, used, transfer)
        _refresh(state, volume.place, state.others_since, state.since, transfer)
        owners, written = state.owners or used.owners, state.written or not volume.read_only
        write_state(volume.place, msgspec.structs.replace(state, owners=owners, written=written))
        return ()


def _fill(volume: Volume, used: _Used, transfer: Transfer) -> Sequence[str]:
    """Make a copy; what is there of an earlier one was never complete.

    To wait for the next tick of file times is for copies that containers use already. For the
    engine's own files it would cost each container some 30 ms, and none begins in the same tick.
    """
    for name in RECORDS:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(volume.place, name))
    folder = os.path.join(volume.place, DATA)
    if os.path.lexists(folder):
        remove_whoever_owns_it(folder)
    os.mkdir(folder, 0o700)
    state = VolumeState(
        source=volume.source,
        is_file=volume.is_file,
        since=0,
        others_since=time_here() if volume.shared else time.time_ns(),
        owners=used.owners,
        written=not volume.read_only,
    )
    parts = (volume.source, volume.data)
    merged = carry_over(parts, state, volume.place, -1, NEVER - 1, transfer, inwards=True)
    if merged.folders:
        write_folders(volume.place, merged.folders)
    since = (time_at if volume.shared else _mark_at)(volume.place)
    write_state(volume.place, msgspec.structs.replace(state, since=since))
    return merged.left_out


def uses_volumes(directory: str) -> bool:
    """Return whether the container of a staged bundle uses volumes of which there are copies."""
    return os.path.lexists(os.path.join(directory, USED))


def bring_back(directory: str, transfer: Transfer) -> None:
    """Bring back what a container has changed in its volumes, and stop using them.

    What cannot be brought back is kept: StagingError says what, why, and where it is. The
    transfer's limit does not count.
    """
    path = os.path.join(directory, USED)
    if not uses_volumes(directory):
        return
    transfer = msgspec.structs.replace(transfer, limit=0)
    try:
        used = decode_as(read_regular(path, _LARGEST), _Used)
    except (OSError, msgspec.MsgspecError) as error:
        raise StagingError(f"{path}: {error}") from error
    failures = []
    for volume in used.volumes:
        try:
            _bring_back(volume, used.lease, beside(directory), transfer)
        except StagingError as error:
            failures.append(str(error))
        except FileNotFoundError as error:
            if os.path.isdir(volume.place):  # else somebody else has brought it back meanwhile
                failures.append(f"{volume.source}: {described(error)}")
        except OSError as error:
            failures.append(f"{volume.source}: {described(error)}")
    if failures:
        raise StagingError("; ".join(failures))


def _bring_back(volume: Volume, lease: Lease, base: str, transfer: Transfer) -> None:
    place = volume.place
    if not volume.shared:
        if (state := read_state(place)) is not None:
            _settle(state, place, lease.id, base, transfer)
        return
    if not os.path.isdir(place):  # it was never copied, or was brought back before
        return
    leases = os.path.join(place, _LEASES)
    with _held(place, transfer) as state:
        others = any(one != lease for one in those_that_hold(leases))
        kept: StagingError | None = None
        try:
            if state is not None and others:
                _catch_up(state, place, lease.id, transfer)
            elif state is not None:
                _settle(state, place, lease.id, base, transfer)
        except StagingError as error:
            kept = error
        finally:
            give_back(leases, lease)
        if not others:  # an OSError leaves it to whoever tidies up
            _remove(place)
        if kept is not None:
            raise kept


def _catch_up(state: VolumeState, place: str, container: str, transfer: Transfer) -> None:
    """Bring back the changes until now in a copy that others go on using.

    After an error the next container that ends tries again.
    """
    if not state.written:
        return
    since, began = time_at(place), time_here()
    conflicts, folders = _return(state, place, container, transfer)
    write_folders(place, folders)
    others_since = time_here()
    # what others make here meanwhile would look as if containers had removed it
    _refresh(state, place, began, since, transfer)
    state = msgspec.structs.replace(
        state,
        since=since,
        others_since=others_since,
        conflicts=tuple(dict.fromkeys((*state.conflicts, *conflicts)))[:_MOST_KNOWN],
    )
    write_state(place, state)
    if conflicts:
        where = f"{place}/{DATA}, until the last container that uses it has ended"
        raise StagingError(_both(state.source, container, conflicts, where))


def _refresh(state: VolumeState, place: str, began: int, since: int, transfer: Transfer) -> None:
    """Carry changes of the source into a copy, unless containers have changed the same.

    Changes in the source after `began` count (nanoseconds); those in the copy after `since` are
    the containers'.
    """
    if os.path.lexists(state.source):
        parts = (state.source, data_in(place, state.source, is_file=state.is_file))
        made = carry_over(parts, state, place, began, since, transfer, inwards=True).folders
        if made:
            write_folders(place, {**read_folders(place), **made})


def _settle(state: VolumeState, place: str, container: str, base: str, transfer: Transfer) -> None:
    """Bring back the changes in a copy, or keep the copy: StagingError says where.

    After an OSError it is where it was.
    """
    if not state.written:
        return
    try:
        both, _ = _return(state, place, container, transfer)
        conflicts = dict.fromkeys((*state.conflicts, *both))
    except StagingError as error:
        kept = _keep(place, container, base)
        remedy = (
            f"the container's files are kept in {kept}: remove it when you need them no longer"
        )
        raise StagingError(f"{error}; {remedy}") from error
    if conflicts:
        kept = _keep(place, container, base)
        raise StagingError(_both(state.source, container, tuple(conflicts), kept))


def _return(
    state: VolumeState, place: str, container: str, transfer: Transfer
) -> tuple[Sequence[str], dict[str, tuple[int, int]]]:
    """Bring back the changes in a copy; return what others have changed, and the directories."""
    parts = (data_in(place, state.source, is_file=state.is_file), state.source)
    if not (state.is_file or os.path.lexists(state.source)) and _unchanged(state, parts[0]):
        return (), read_folders(place)
    try:
        merged = carry_over(parts, state, place, state.since, state.others_since, transfer)
        return merged.conflicts, merged.folders
    except (OSError, RecursionError, StagingError) as error:
        if _unchanged(state, parts[0]):  # nothing is lost
            return (), read_folders(place)
        raise StagingError(
            f"not all changes of {_who(container)} are in {state.source}: {why(error)}"
        ) from error


def _unchanged(state: VolumeState, copy: str) -> bool:
    """Return whether no container has changed, made or removed anything in a copy."""
    found = itertools.chain((os.lstat(copy),), everything_below(copy))
    return all(one.st_ctime_ns <= state.since for one in found)


def _both(source: str, container: str, conflicts: Sequence[str], where: str) -> str:
    return (
        f"{source}: {_named(conflicts)} changed here while {_who(container)} changed it, too, "
        f"and stays as it is here; the container's is in {where}"
    )


def _who(container: str) -> str:
    return f"container {container}" if container else "a container that has gone"


def _named(paths: Sequence[str]) -> str:
    more = len(paths) - _MOST_NAMED
    shown = ", ".join(paths[:_MOST_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown


def _keep(place: str, container: str, base: str) -> str:
    kept = tempfile.mkdtemp(prefix=kept_prefix(container or "volume"), dir=base)
    try:
        os.rename(os.path.join(place, DATA), os.path.join(kept, DATA))
    except OSError:
        os.rmdir(kept)
        raise
    return kept


@contextlib.contextmanager
def _held(place: str, transfer: Transfer, mode: int = 0) -> Iterator[VolumeState | None]:
    """Hold the lock of a shared volume; yields what is known of its copy, if that is complete.

    A missing directory is made with this mode; 0: it is there.
    """
    path = os.path.join(place, _LOCK)

    def waiting(said: str) -> None:
        transfer.wait()
        transfer.tell(f"{place} is being copied for another container")

    while True:
        with contextlib.ExitStack() as stack:
            try:
                if mode:
                    _make(place, mode)
                lock = stack.enter_context(locked(path, waiting=waiting))
            except FileNotFoundError:
                if not mode or not os.path.isdir(_base(place)):
                    raise
                transfer.wait()
                continue  # whoever used it last has removed it
            if lock.is_at(path):  # likewise
                yield read_state(place)
                return


def _base(place: str) -> str:
    """Return what `beside` said for a shared volume."""
    return os.path.dirname(os.path.dirname(place))


def _make(place: str, mode: int) -> None:
    """Make the directory of a shared volume, if it is missing.

    Raises:
        StagingError: Others may change it.
        FileNotFoundError: Somebody removes it at this moment.
    """
    folder = os.path.dirname(place)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if why := not_ours(folder):
        raise StagingError(f"{folder}: {why}")
    if mode & 0o11:
        os.chmod(folder, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(place, mode)


def _remove(place: str) -> None:
    """Remove a shared volume whose lock is held; first what says that its copy counts."""
    for name in (*RECORDS, DATA, _LEASES, _LOCK):
        if os.path.lexists(path := os.path.join(place, name)):
            remove_whoever_owns_it(path)
    with contextlib.suppress(OSError):  # others are there by now
        os.rmdir(place)
        os.rmdir(os.path.dirname(place))


def tidy(folder: str) -> Iterator[str]:
    """Bring back the shared volumes that no container uses, and remove them; yield a line of each.

    Their users have ended with the machine, or have lost their records.
    """
    try:
        places = [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return
    for place in places:
        path = os.path.join(place, _LOCK)
        with contextlib.suppress(FileNotFoundError), locked_if_free(path) as free:
            if not free or those_that_hold(os.path.join(place, _LEASES)):
                continue
            try:
                if (state := read_state(place)) is not None:
                    yield _settled(state, place)
                _remove(place)
            except (StagingError, OSError) as error:
                yield why(error)


def _settled(state: VolumeState, place: str) -> str:
    try:
        _settle(state, place, "", _base(place), Transfer())
    except StagingError as error:  # what did not come back is kept
        return str(error)
    return f"{state.source}: the containers' changes are back"


def time_here() -> int:
    """Return a time (nanoseconds), once this machine's file times are later."""
    now = time.time_ns()
    _pass(now, lambda: time.clock_gettime_ns(_COARSE))
    return now


def time_at(directory: str) -> int:
    """Return a time of a directory's file system (nanoseconds), once its file times are later."""
    now = _mark_at(directory)
    _pass(now, lambda: _mark_at(directory))
    return now


def _mark_at(directory: str) -> int:
    """Return the same at once: changes of the next milliseconds may have that time, too."""
    os.utime(directory)
    return os.stat(directory).st_ctime_ns


def _pass(now: int, clock: Callable[[], int]) -> None:
    end = time.monotonic() + _LONGEST
    while clock() <= now and time.monotonic() < end:
        time.sleep(_PAUSE)
