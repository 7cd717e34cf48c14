"""Writes staged bundles.

A staged bundle is a directory with config.json, `rootfs` where one is needed, and the copies
of mount sources in `files`. Everything here blocks: call it in a worker thread.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.errors import StagingError, described
from scrun.model.identity import is_dead
from scrun.oci.userns import has_several
from scrun.supervisor.contracts.staged import MOUNTED, Staged
from scrun.supervisor.core.files import write
from scrun.supervisor.core.private import make_private
from scrun.supervisor.staging.commands import run
from scrun.supervisor.staging.layout import ROOTFS
from scrun.supervisor.staging.mounts import FILES, CopyPlaces
from scrun.supervisor.staging.overlaid import Overlays
from scrun.supervisor.staging.owner import (
    OWNER,
    Owner,
    beside,
    read_owner,
    volumes_in,
)
from scrun.supervisor.staging.owner import directory_for as directory_for  # for plugins
from scrun.supervisor.staging.policy import fit
from scrun.supervisor.staging.root import REMEDY, find_root, give_root, owners_are_lost
from scrun.supervisor.staging.stage_out import CONFIG, FINAL, clean, stage_out
from scrun.supervisor.staging.survey import read_mounts, survey
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.view import view_of
from scrun.supervisor.staging.volumes import bring_back, bring_in

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from scrun.supervisor.contracts.target import Target
    from scrun.supervisor.staging.overlaid import Overlays

_AUTOREMOVE = "io.podman.annotations.autoremove"


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
    mounts = read_mounts()
    root = find_root(config, bundle, directory, target, overlays, mounts)
    why_one_user = ""
    if root.why_moved and not root.image and target.ids:
        why_one_user = owners_are_lost(directory, target.ids)
        target = msgspec.structs.replace(target, ids=None) if why_one_user else target
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
    mode = 0o700 if target.rootless or not _maps_users(plan.config) else 0o711
    os.chmod(directory, mode)
    if plan.volumes:
        os.mkdir(os.path.join(directory, FILES), mode)
    several = not target.rootless or has_several(plan.config)
    missed = bring_in(directory, plan.volumes, transfer, owners=several, mode=mode)
    final = bool(root.image or config["root"].get("readonly") or _is_removed_at_its_end(config))
    given = give_root(
        msgspec.structs.replace(root, config=plan.config),
        directory,
        target,
        overlays,
        mounts,
        final=final,
        execute=execute,
        transfer=transfer,
    )
    if given.mounts is not None:
        plan.config["mounts"] = given.mounts
    write(os.path.join(directory, CONFIG), msgspec.json.encode(plan.config))
    if final:
        write(os.path.join(directory, FINAL), b"")
    copied_from = "" if final else given.comes_from
    # what the node's overlay has is not seen here, not even by mounting the same directories
    view = view_of(plan.config, given.rootfs, directory, elsewhere=target.elsewhere)
    return Staged(
        directory,
        given.rootfs,
        (*filter(None, [why_one_user]), *plan.notes, *given.notes),
        copied_from=copied_from,
        image=given.image,
        place=given.place,
        tasks=given.tasks,
        view=None if given.image in MOUNTED else view,
        missed=(*plan.missed, *missed),
        final=not copied_from and not any(one.comes_back for one in plan.volumes),
    )


def _is_removed_at_its_end(config: Mapping[str, Any]) -> bool:
    """Return whether podman removes the container (`--rm`), and so what it has changed."""
    return (config.get("annotations") or {}).get(_AUTOREMOVE) == "TRUE"


def _maps_users(config: Mapping[str, Any]) -> bool:
    """Return whether root maps ids, whose users have to pass through the directory."""
    return bool((config.get("linux") or {}).get("uidMappings"))
