"""Writes staged bundles.

A staged bundle is a directory with config.json, `rootfs` where one is needed, and the copies
of mount sources in `files`. Its container gets its root file system by the best way that works.
Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import EngineError, StagingError, described, why
from scrun.core.trees import size_of
from scrun.images.squashfs import linked_in
from scrun.images.store import EMPTY, image_of
from scrun.model.identity import is_dead
from scrun.oci.userns import INITIAL, has_several, is_mapped_to, read_map
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.contracts.target import Mounting, OthersThere
from scrun.supervisor.core.files import make_private, mebibytes, write
from scrun.supervisor.staging.commands import run
from scrun.supervisor.staging.image_store import UNPACK, copying
from scrun.supervisor.staging.layers import Overlay, Unusable, is_plain, overlay_of
from scrun.supervisor.staging.layout import ROOTFS
from scrun.supervisor.staging.mounts import FILES, CopyPlaces, view_of
from scrun.supervisor.staging.on_node import remote
from scrun.supervisor.staging.overlaid import Mounts, Overlays
from scrun.supervisor.staging.owner import OWNER, Owner, beside, read_owner, volumes_in
from scrun.supervisor.staging.owner import directory_for as directory_for
from scrun.supervisor.staging.policy import fit, maps_at
from scrun.supervisor.staging.stage_out import CONFIG, FINAL, clean, stage_out
from scrun.supervisor.staging.survey import mount_of, on_the_nodes, read_mounts, survey
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import bring_back, bring_in
from scrun.supervisor.staging.ways import RootFilesystem, remaining, ways

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrun.oci.userns import BothIds
    from scrun.supervisor.contracts.target import Target
    from scrun.supervisor.staging.survey import MountPoint

_AUTOREMOVE = "io.podman.annotations.autoremove"
REMEDY = "set `scratch` in the section [staging] of scrun.toml to another directory"
_PROBE = "probe"
_NOBODY = 65534  # whoever has no id in a user namespace
_INODE = re.compile(r"^inode ([0-9]+)$", re.ASCII | re.MULTILINE)


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
    """Write a bundle that runs at the target; after an error nothing is left behind.

    Args:
        config: The submitted config.json, valid; not changed.
        directory: The directory of the staged bundle, empty or missing, and visible on the nodes.
        owner: The owner, for a directory that several share.
        transfer: How its volumes are copied; None: the target is here.
        overlays: How nodes are asked, and mount overlays; None: the container gets a copy.
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
    """Make the directory of a staged bundle, if it is missing, for this user alone.

    With an owner, what a dead supervisor left there is cleaned up.
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
            raise StagingError(f"staging in {directory}: {why(error, REMEDY)}") from error


def _fill(
    config: Mapping[str, Any],
    bundle: str,
    directory: str,
    target: Target,
    transfer: Transfer,
    execute: Callable[[Sequence[str]], None],
    overlays: Overlays | None,
) -> Staged:
    mounts = read_mounts()
    why_one_user = ""
    if target.nests and not _is_reached(directory, partial(_root_enters, config=config)):
        reason = f"{directory} is below a directory that its user 0 cannot enter"
        why_one_user = f"the container has one user: {reason}; {REMEDY}"
        target = msgspec.structs.replace(target, nests=False)
    root = _find_root(config, bundle, directory, target, overlays, mounts)
    is_moved = root.why_moved and not root.image
    if is_moved and target.ids and (why_lost := _owners_are_lost(directory, target.ids)):
        why_one_user, target = why_lost, msgspec.structs.replace(target, ids=None)
    container, records = transfer.whose
    plan = fit(
        config,
        bundle=bundle,
        staged=directory,
        place=CopyPlaces(volumes_in(beside(directory), records), transfer.limit),
        rootfs=os.path.join(directory, ROOTFS) if root.why_moved else root.path,
        target=target,
        sources=survey(
            config,
            bundle,
            os.path.realpath(os.path.join(bundle, config["root"]["path"])),
            target,
            directory,
            mounts,
            container=container,
            limit=transfer.limit,
        ),
    )
    # users whose ids root maps have to pass through it
    maps = (plan.config.get("linux") or {}).get("uidMappings")
    mode = 0o711 if plan.outer or (maps and not target.rootless) else 0o700
    os.chmod(directory, mode)
    if plan.volumes:
        os.mkdir(os.path.join(directory, FILES), mode)
    several = not target.rootless or has_several(plan.config)
    missed = bring_in(directory, plan.volumes, transfer, owners=several, mode=mode)
    is_removed = (config.get("annotations") or {}).get(_AUTOREMOVE) == "TRUE"  # podman's --rm
    final = bool(root.image or config["root"].get("readonly") or is_removed)
    given = _give_root(
        msgspec.structs.replace(root, config=plan.config, outer=plan.outer),
        directory,
        target,
        overlays,
        mounts,
        final=final,
        execute=execute,
        transfer=transfer,
    )
    write(os.path.join(directory, CONFIG), msgspec.json.encode(plan.config))
    if final:
        write(os.path.join(directory, FINAL), b"")
    # what the node's overlay has is not seen here, not even by mounting the same directories
    view = view_of(plan.config, given.rootfs, directory, elsewhere=target.elsewhere)
    return msgspec.structs.replace(
        given,
        notes=(*filter(None, [why_one_user]), *plan.notes, *given.notes),
        view=None if given.overlaid else view,
        missed=(*plan.missed, *missed),
        sockets=plan.sockets,
        final=not given.copied_from and not any(one.comes_back for one in plan.volumes),
    )


def _find_root(
    config: Mapping[str, Any],
    bundle: str,
    directory: str,
    target: Target,
    overlays: Overlays | None,
    mounts: list[MountPoint],
) -> RootFilesystem:
    root = config.get("root")
    if root is None:
        raise StagingError("root: missing; a container needs a root file system")
    # runc refuses a path with a link ("invalid rootfs: not an absolute path, or a symlink")
    path = os.path.realpath(os.path.join(bundle, root["path"]))
    why_moved: str | None = None
    if target.elsewhere:
        path, why_moved = _rootfs_for_nodes(path, config, os.path.realpath(bundle), target, mounts)
    image = file = ""
    if (facts := image_of(bundle, root["path"])) is not None and not facts.writable:
        why_moved = why_moved or "is an image, which containers do not change"
        image, file = bundle, linked_in(bundle)
    elif target.elsewhere and overlays is not None and not why_moved:
        why_moved = why_unseen(path, directory, mounts, overlays)
    return RootFilesystem(path, dict(config), target.rootless, why_moved or "", image, file)


def _give_root(
    root: RootFilesystem,
    directory: str,
    target: Target,
    overlays: Overlays | None,
    mounts: list[MountPoint],
    *,
    final: bool,
    execute: Callable[[Sequence[str]], None],
    transfer: Transfer,
) -> Staged:
    """Give a container its root file system.

    `root` has the config.json that will run. `final`: nothing comes back. `execute` runs a command
    that copies.
    """
    mounter = overlays.mounter if overlays is not None else None
    if overlays is not None and overlays.wanted and root.why_moved:
        root = _with_layers(root, directory, overlays, mounts)
        why = root.why_no_overlay(overlays)
    else:
        overlays, why = None, ""
    ladder = ways(root, overlays, remote=remote(os.path.realpath(directory)))
    tries = None if overlays is None else Mounts(root, directory, overlays, final=final)
    while (way := ladder[0]).source:
        assert tries is not None
        try:
            tries.write(way)
            return tries.try_(way)
        except Unusable as error:
            tries.undo(error)
            ladder = remaining(ladder, error)
            why = str(error)
    if root.outer is not None:
        assert mounter is not None
        mounter.mount(root.mounting)
    if way.how == "in place":
        return _in_place(root, directory, target)
    notes = [f"root: the layers of {root.path} {why}"] if why else []
    return _copy(root, directory, execute, transfer, notes, final=final)


def _with_layers(
    root: RootFilesystem, directory: str, overlays: Overlays, mounts: list[MountPoint]
) -> RootFilesystem:
    """Look at the layers of a root file system, which nodes are to mount in a staged bundle.

    An image has one, and above it, where an engine would have the container's, an empty directory.
    """
    root = msgspec.structs.replace(root, tasks=max(1, overlays.tasks))
    try:
        if not is_plain(directory):
            raise Unusable(f"cannot be mounted in {directory!a}")
        if not root.image:
            overlay = overlay_of(mount_of(root.path, mounts), root.path)
        elif root.file and not overlays.has_store:
            raise Unusable("cannot be mounted without a store of images")
        else:
            layers = (os.path.join(root.image, EMPTY), root.path)
            overlay = Overlay(layers, users=root.rootless)
    except Unusable as error:
        return msgspec.structs.replace(root, why_not=str(error))
    if overlay.users != root.rootless and not overlay.why_not:
        why_not = "have marks of deletions that the node does not read"
        overlay = msgspec.structs.replace(overlay, why_not=why_not)
    return msgspec.structs.replace(root, overlay=overlay)


def _in_place(root: RootFilesystem, directory: str, target: Target) -> Staged:
    if target.link_rootfs:
        if target.link_refused:
            raise StagingError(f"root: {root.path}: {target.link_refused}")
        os.symlink(root.path, os.path.join(directory, ROOTFS))
    return Staged(directory, root.path, ())


def _copy(
    root: RootFilesystem,
    directory: str,
    execute: Callable[[Sequence[str]], None],
    transfer: Transfer,
    notes: list[str],
    *,
    final: bool,
) -> Staged:
    path, why = root.path, root.why_moved
    copied = os.path.join(directory, ROOTFS)
    if transfer.limit and size_of(path, transfer.limit) > transfer.limit:
        raise StagingError(
            f"root: {path} {why}, and has more than {transfer.limit >> 20} MiB to copy: move it "
            "to a file system that the nodes share, or raise `copy_size` in the section [staging] "
            "of scrun.toml"
        )
    transfer.tell(f"copying {path}, which {why}")
    execute(_copy_command(path, root.file, copied, owners=root.owners))
    back = "" if root.image else "; changes to it are copied back at the end"
    notes.append(f"root: copied {mebibytes(copied)} MiB, because {path} {why}{back}")
    back_to = "" if final else path
    return Staged(directory, copied, tuple(notes), copied_from=back_to, image="copy")


def why_unseen(
    rootfs: str, staged: str, mounts: list[MountPoint], overlays: Overlays
) -> str | None:
    """Return why a root file system, a path without links, has to be copied, or None.

    What is on the mount that also has the staged bundle is where that is, on the nodes too. Else
    they are asked; nodes that cannot be asked are believed to see it.
    """
    if mount_of(rootfs, mounts) == mount_of(os.path.realpath(staged), mounts):
        return None
    inode = os.stat(rootfs).st_ino
    return None if _is_seen(rootfs, inode, overlays) else "is not there on the node"


def _is_seen(rootfs: str, inode: int, overlays: Overlays) -> bool:
    if overlays.mounter is not None:
        try:
            overlays.mounter.mount(Mounting(looks=((rootfs, inode, None),)))
        except OthersThere:
            return False
        except EngineError:  # a shim of an older scrun would mount as well
            pass
        else:
            return True
    try:
        answers = overlays.ask(f"stat -c 'inode %i' -- {shlex.quote(rootfs)}")
    except Unusable:
        return True
    seen = [found and int(found[1]) for found in map(_INODE.search, answers)]
    return all(one == inode for one in seen)


def _rootfs_for_nodes(
    rootfs: str,
    config: Mapping[str, Any],
    bundle: str,
    target: Target,
    mounts: list[MountPoint],
) -> tuple[str, str | None]:
    """Return the path of a root file system on the nodes, and why it has to be copied, or None.

    The paths are without symbolic links.
    """
    there = on_the_nodes(rootfs, bundle, rootfs, mounts)
    mount = mount_of(there or rootfs, mounts)
    if there is None or mount.private:
        return rootfs, f"is on {mount.kind}, mounted only on this machine"
    # podman's keep-id gives its store, or from 5.0 on only the root file system, to a subordinate
    # id, which a map of one id lacks
    if target.rootless and not _is_reached(there, _user_enters):
        return rootfs, "is not reachable for the job's user"
    has_one_user = maps_at(config, target) is None
    if target.rootless and has_one_user and _is_lent(os.stat(there).st_uid):
        return rootfs, "belongs to a subordinate id, which the container does not have"
    return there, None


def _is_reached(path: str, may_enter: Callable[[os.stat_result], bool]) -> bool:
    """Return whether somebody may enter a directory and all above it."""
    while may_enter(os.stat(path)):
        if path == "/":
            return True
        path = os.path.dirname(path)
    return False


def _user_enters(status: os.stat_result) -> bool:
    """Return whether this user may enter a directory without privileges of a namespace."""
    if status.st_uid == os.geteuid():
        enter = stat.S_IXUSR
    elif status.st_gid == os.getegid():
        enter = stat.S_IXGRP
    else:
        enter = stat.S_IXOTH
    return bool(status.st_mode & enter)


def _root_enters(status: os.stat_result, config: Mapping[str, Any]) -> bool:
    """Return whether root of a container may enter a directory, by the maps of its config.json.

    It has rights where both the owner and the group are mapped (user_namespaces(7)).
    """
    linux = config.get("linux") or {}
    kinds = (("uidMappings", status.st_uid), ("gidMappings", status.st_gid))
    is_mapped = all(is_mapped_to(number, linux.get(name) or []) for name, number in kinds)
    return is_mapped or bool(status.st_mode & stat.S_IXOTH)


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
