"""Writes staged bundles.

A staged bundle is a directory with config.json, `rootfs` where one is needed, and the copies
of mount sources in `files`. Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import StagingError, described
from scrun.core.trees import size_of
from scrun.images.place import image_of
from scrun.images.squashfs import linked_in
from scrun.images.store import EMPTY
from scrun.model.identity import is_dead
from scrun.oci.userns import INITIAL, has_several, maps_for, read_map
from scrun.supervisor.contracts.staged import MOUNTED, OVERLAY, Image, Staged
from scrun.supervisor.core.files import mebibytes, write
from scrun.supervisor.core.private import make_private
from scrun.supervisor.staging.commands import run
from scrun.supervisor.staging.image_store import copying
from scrun.supervisor.staging.layout import ROOTFS, Rootfs
from scrun.supervisor.staging.mounts import FILES, CopyPlaces
from scrun.supervisor.staging.overlaid import LaidOut, Overlays, lay_out, written_at
from scrun.supervisor.staging.overlay_options import Unusable, is_plain
from scrun.supervisor.staging.own_file import UNPACK, OwnFile
from scrun.supervisor.staging.owner import (
    OWNER,
    Owner,
    beside,
    read_owner,
    volumes_in,
)
from scrun.supervisor.staging.owner import directory_for as directory_for  # for plugins
from scrun.supervisor.staging.packing import Packing
from scrun.supervisor.staging.plain import why_unseen
from scrun.supervisor.staging.policy import fit
from scrun.supervisor.staging.stage_out import CONFIG, FINAL, clean, remove_all, stage_out
from scrun.supervisor.staging.survey import MountPoint, mount_of, on_the_nodes, read_mounts, survey
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.view import view_of
from scrun.supervisor.staging.volumes import bring_back, bring_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrun.oci.userns import BothIds
    from scrun.supervisor.contracts.target import Target
    from scrun.supervisor.staging.overlaid import Overlays

_LAYERS = {
    "layers": "the layers",
    "store": "copies of the layers",
    "squashfs": "squashfs images of the layers",
}
_AUTOREMOVE = "io.podman.annotations.autoremove"

REMEDY = "set `scratch` in the section [staging] of scrun.toml to another directory"
_PROBE = "probe"
_NOBODY = 65534  # whoever has no id in a user namespace


def stage_in(
    config: Mapping[str, Any],
    bundle: str,
    directory: str,
    target: Target,
    *,
    owner: Owner | None = None,
    transfer: Transfer | None = None,
    execute: Callable[[Sequence[str]], None] = run,
    overlays: Overlays | None = None,
) -> Staged:
    """Write a bundle that runs at the target.

    Args:
        config: The submitted config.json, valid; not changed.
        bundle: The submitted bundle; not changed.
        directory: The directory of the staged bundle, empty or missing, and visible on the
            nodes.
        owner: The owner, for a directory that several share.
        transfer: How its volumes are copied; None: the target is here.
        overlays: How nodes are asked, and mount overlays; None: the container gets a copy.

    Raises:
        StagingError: Staging failed; nothing is left behind.
    """
    bundle = os.path.abspath(bundle)
    directory = os.path.abspath(directory)
    make_directory(directory, owner=owner)
    try:
        return _fill(config, bundle, directory, target, transfer or Transfer(), execute, overlays)
    except BaseException as error:
        with contextlib.suppress(StagingError):  # nothing was changed yet
            bring_back(directory, Transfer())
        stage_out(directory)
        if isinstance(error, OSError):
            raise StagingError(f"staging in {directory}: {described(error)}") from error
        raise


def make_directory(directory: str, *, owner: Owner | None = None) -> None:
    """Make the directory of a staged bundle, if it is missing.

    Args:
        owner: The new owner; with one, what a dead supervisor left there is cleaned up.

    Raises:
        StagingError: It does not belong to this user alone, or is not empty.
    """

    def clean_up() -> None:
        if owner is not None and (left := read_owner(directory)) and is_dead(left.supervisor):
            clean(directory, left.rootfs)
            os.makedirs(directory, mode=0o700, exist_ok=True)

    make_private(directory, REMEDY, clean_up)
    if owner is not None:
        try:
            write(os.path.join(directory, OWNER), msgspec.json.encode(owner))
        except OSError as error:
            raise StagingError(f"staging in {directory}: {error.strerror}; {REMEDY}") from error


def _fill(
    config: Mapping[str, Any],
    bundle: str,
    directory: str,
    target: Target,
    transfer: Transfer,
    execute: Callable[[Sequence[str]], None],
    overlays: Overlays | None,
) -> Staged:
    root = config.get("root")
    if root is None:
        raise StagingError("root: missing; a container needs a root file system")
    # runc refuses a path with a link ("invalid rootfs: not an absolute path, or a symlink")
    mounted = rootfs = os.path.realpath(os.path.join(bundle, root["path"]))
    staged_rootfs = os.path.join(directory, ROOTFS)
    why_copied, copied_from = None, ""
    laid: LaidOut | None = None
    mounts = read_mounts()
    if target.elsewhere:
        real = os.path.realpath(bundle)
        rootfs, why_copied = _rootfs_for_nodes(rootfs, config, real, target, mounts)
    own = (facts := image_of(bundle, root["path"])) is not None and not facts.writable
    if target.elsewhere and overlays is not None and not (own or why_copied):
        why_copied = why_unseen(rootfs, directory, mounts, overlays)
    why_one_user = ""
    if own:
        why_copied = why_copied or "is an image, which containers do not change"
    elif why_copied and target.ids and (why_one_user := _owners_are_lost(directory, target.ids)):
        target = msgspec.structs.replace(target, ids=None)
    container, records = transfer.whose
    plan = fit(
        config,
        bundle=bundle,
        staged=directory,
        place=CopyPlaces(volumes_in(beside(directory), records), transfer.limit),
        rootfs=staged_rootfs if why_copied else rootfs,
        target=target,
        sources=survey(
            config,
            bundle,
            mounted,
            target,
            directory,
            mounts,
            container=container,
            limit=transfer.limit,
        ),
    )
    notes = [*filter(None, [why_one_user]), *plan.notes]
    mode = 0o700 if target.rootless or not _maps_users(plan.config) else 0o711
    os.chmod(directory, mode)
    if plan.volumes:
        os.mkdir(os.path.join(directory, FILES), mode)
    several = not target.rootless or has_several(plan.config)
    missed = bring_in(directory, plan.volumes, transfer, owners=several, mode=mode)
    image: Image = "copy" if why_copied else ""
    if why_copied and overlays is not None and overlays.wanted:
        of_image = bundle if own else ""
        laid, said = _overlaid(plan.config, rootfs, directory, target, overlays, of_image, mounts)
        notes += said
        if laid is not None:
            image, copied_from = laid.image, rootfs
    if image == "copy":
        packed = linked_in(bundle) if own else ""
        if transfer.limit and size_of(rootfs, transfer.limit) > transfer.limit:
            raise StagingError(
                f"root: {rootfs} {why_copied}, and has more than {transfer.limit >> 20} MiB to "
                "copy: move it to a file system that the nodes share, or raise `copy_size` in the "
                "section [staging] of scrun.toml"
            )
        transfer.tell(f"copying {rootfs}, which {why_copied}")
        execute(_copy_command(rootfs, packed, staged_rootfs, owners=several))
        size = mebibytes(staged_rootfs)
        back = "" if own else "; changes to it are copied back at the end"
        notes.append(f"root: copied {size} MiB, because {rootfs} {why_copied}{back}")
        copied_from, rootfs = rootfs, staged_rootfs
    elif not why_copied and target.link_rootfs:
        if target.link_refused:
            raise StagingError(f"root: {rootfs}: {target.link_refused}")
        os.symlink(rootfs, staged_rootfs)
    write(os.path.join(directory, CONFIG), msgspec.json.encode(plan.config))
    if own or root.get("readonly") or _is_removed_at_its_end(config):
        copied_from = ""
        write(os.path.join(directory, FINAL), b"")
    place, tasks = written_at(laid, directory, rootless=target.rootless, final=not copied_from)
    # what the node's overlay has is not seen here, not even by mounting the same directories
    view = view_of(plan.config, rootfs, directory, elsewhere=target.elsewhere)
    return Staged(
        directory,
        rootfs,
        tuple(notes),
        copied_from=copied_from,
        image=image,
        place=place,
        tasks=tasks,
        view=None if image in MOUNTED else view,
        missed=(*plan.missed, *missed),
        final=not copied_from and not any(one.comes_back for one in plan.volumes),
    )


def _overlaid(
    config: dict[str, Any],
    rootfs: str,
    directory: str,
    target: Target,
    overlays: Overlays,
    of_image: str,
    mounts: list[MountPoint],
) -> tuple[LaidOut | None, list[str]]:
    """Let the node mount a root file system if it can; return how, and what to log.

    `of_image` is the directory in the store of an image that scrun itself keeps; else "". `mounts`
    are those of this mount namespace.
    """
    try:
        if of_image:
            rootless = target.rootless
            laid = _lay_out_image(config, rootfs, of_image, directory, overlays, rootless=rootless)
            what = linked_in(of_image) or rootfs
            by = f" by {laid.way}" if laid.packed else f", unpacked: {laid.way}" * bool(laid.way)
            return laid, [f"root: the node mounts {what}{by}; changes are not kept"]
        mount = mount_of(rootfs, mounts)
        laid = lay_out(Rootfs(rootfs, mount, config, target.rootless), directory, overlays)
    except Unusable as error:
        remove_all(directory, (OVERLAY, ROOTFS))
        return None, [f"root: the layers of {rootfs} {error}"]
    what = _LAYERS[laid.image]
    by = " by fuse-overlayfs" * laid.by_fuse
    notes = [f"root: the node mounts {what} of {rootfs}{by}; changes come back at the end"]
    if laid.way:
        how = "the images are mounted by" if laid.packed else "copies are not squashfs images:"
        notes.append(f"root: {how} {laid.way}")
    return laid, notes


def _is_removed_at_its_end(config: Mapping[str, Any]) -> bool:
    """Return whether podman removes the container (`--rm`), and so what it has changed."""
    return (config.get("annotations") or {}).get(_AUTOREMOVE) == "TRUE"


def _maps_users(config: Mapping[str, Any]) -> bool:
    """Return whether root maps ids, whose users have to pass through the directory."""
    return bool((config.get("linux") or {}).get("uidMappings"))


def _rootfs_for_nodes(
    rootfs: str,
    config: Mapping[str, Any],
    bundle: str,
    target: Target,
    mounts: list[MountPoint],
) -> tuple[str, str | None]:
    """Return the path of a root file system on the nodes, and why it has to be copied, or None.

    `rootfs` and `bundle` are without symbolic links; `mounts` are of this mount namespace.
    """
    there = on_the_nodes(rootfs, bundle, rootfs, mounts)
    mount = mount_of(there or rootfs, mounts)
    if there is None or mount.private:
        return rootfs, f"is on {mount.kind}, mounted only on this machine"
    # podman's keep-id gives its store, or from 5.0 on only the root file system, to a subordinate
    # id, which a map of one id lacks
    if target.rootless and not _user_reaches(there):
        return rootfs, "is not reachable for the job's user"
    has_one_user = target.ids is None or maps_for(config, target.ids) is None
    if target.rootless and has_one_user and _is_lent(os.stat(there).st_uid):
        return rootfs, "belongs to a subordinate id, which the container does not have"
    return there, None


def _user_reaches(path: str) -> bool:
    """Return whether this user could enter a directory without privileges of a namespace."""
    while True:
        status = os.stat(path)
        if status.st_uid == os.geteuid():
            enter = stat.S_IXUSR
        elif status.st_gid == os.getegid():
            enter = stat.S_IXGRP
        else:
            enter = stat.S_IXOTH
        if not status.st_mode & enter:
            return False
        if path == "/":
            return True
        path = os.path.dirname(path)


def _is_lent(uid: int) -> bool:
    """Return whether an id that this process sees is one of subuid(5)'s: rootless podman's."""
    here = read_map(Path("/proc/self/uid_map").read_text())
    others = uid not in (os.geteuid(), _NOBODY)
    return here != INITIAL and others and any(each.holds(uid) for each in here)


def _owners_are_lost(directory: str, ids: BothIds) -> str:
    """Return why a copy of a root file system loses the owners of the image's files, or ""."""
    if not ids.lent:
        return "the container has one user: its root file system is copied, and belongs to you"
    probe = os.path.join(directory, _PROBE)
    write(probe, b"")
    try:
        os.chown(probe, ids.uids.known[-1].inside, ids.gids.known[-1].inside)
    except OSError as error:
        reason = f"files in {directory} cannot have other owners ({error.strerror})"
        return f"the container has one user: {reason}; {REMEDY}"
    finally:
        os.unlink(probe)
    return ""


def _lay_out_image(
    config: dict[str, Any],
    rootfs: str,
    bundle: str,
    directory: str,
    overlays: Overlays,
    *,
    rootless: bool,
) -> LaidOut:
    """Lay out a staged bundle whose root file system is an overlay of an image that scrun keeps.

    The node mounts the overlay, as it mounts those of an engine. Changes are not kept.

    Args:
        config: The config.json that will run; it gets the mounts.
        rootfs: The image's root file system; of a user's squashfs file, its root directory.
        bundle: The image's directory in the store; it has one that is empty, for the layer that an
            engine would write to.
        rootless: Whether the container has rights in a user namespace only.

    Returns:
        How the node mounts it.

    Raises:
        Unusable: It cannot be done; something may have been written.
    """
    empty = os.path.join(bundle, EMPTY)
    if not (is_plain(rootfs) and is_plain(empty)):
        raise Unusable("have characters in their path that no mount can have")
    options = f"lowerdir={rootfs},upperdir={empty}" + (",userxattr" if rootless else "")
    mount = MountPoint(rootfs, "overlay", options=options)
    own = None
    if file := linked_in(bundle):
        if overlays.images is None or not is_plain(overlays.images.path):
            raise Unusable("cannot be mounted without a store of images")
        packing = Packing(overlays.mounter, overlays.images.format, mine=True)
        own = OwnFile(file, os.path.basename(bundle), overlays.images, packing)
    return lay_out(Rootfs(rootfs, mount, config, rootless), directory, overlays, own)


def _copy_command(rootfs: str, file: str, copied: str, *, owners: bool) -> tuple[str, ...]:
    """Return the command that copies a root file system, or unpacks the file that it is.

    With only one user, all files should belong to that user. Otherwise a server could not write
    its data directory, which belongs to another user of the image.
    """
    if file:
        return (*copying(UNPACK), file, copied)
    preserve = () if owners else ("--no-preserve=ownership",)
    # "--": the path may begin with a dash; "/.": the content, even if the path is a link
    options = ("-a", *preserve, "--reflink=auto", "--one-file-system", "--")
    return ("cp", *options, os.path.join(rootfs, "."), copied)
