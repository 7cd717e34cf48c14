"""The check of the store of images."""

import os

import trio

from scrun.core.errors import ImageError, SettingsError
from scrun.core.paths import of_path, replaceable
from scrun.images.limits import size_of
from scrun.images.place import path_for
from scrun.images.store import Store
from scrun.settings.file.load import ImageSettings
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, Reporter
from scrun.supervisor.programs.doctor.findings import Finding
from scrun.supervisor.staging.packing import NO_TOOL, tool

_NAME = "images"
_GIB = 1 << 30


async def _images(call: DoctorCall, report: Reporter) -> None:
    report(await trio.to_thread.run_sync(_look, call, abandon_on_cancel=True))


def _look(call: DoctorCall) -> Finding:
    wanted = call.settings.images
    remedy = "set `store` in the section [images] of scrun.toml to a directory that nodes share"
    try:
        path = path_for(call.settings, call.child_env.environment)
        unusable = [reason for one in wanted.also if (reason := _why_not(one))]
        if unusable:
            return Finding(_NAME, "warn", unusable[0], "correct `also` in the section [images]")
        if not os.path.isdir(path):
            return Finding(_NAME, "ok", f"{path}: not used yet")
        entries = Store(path).entries()
    except (SettingsError, ImageError, OSError) as error:
        return Finding(_NAME, "warn", str(error), remedy)
    used = size_of(entries)
    limit = wanted.size << 20
    of = f" of {limit / _GIB:.1f}" if limit else ""
    finding = (
        f"{path}: {len(entries)} images and layers, {used / _GIB:.1f}{of} GiB; {_how(wanted)}"
    )
    if limit and used > limit:
        remedy = "containers use all of it; a larger `size` in the section [images] avoids waiting"
        return Finding(_NAME, "warn", finding, remedy)
    return Finding(_NAME, "ok", finding)


def _how(wanted: ImageSettings) -> str:
    """Return what copies of layers are, as far as this machine decides."""
    if wanted.format == "files":
        return "copies of layers are directories"
    if not tool():
        return f"copies of layers are directories: {NO_TOOL}"
    return "copies of layers are squashfs images where nodes mount them"


def _why_not(store: str) -> str:
    """Return why a store that is only read cannot be used, or ""."""
    if not os.path.isdir(store):
        return f"{store}: is not there"
    return of_path(store, reason) if (reason := replaceable(store)) else ""


CHECKS = (Check((_NAME,), _images),)
