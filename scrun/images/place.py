"""Where the store of images is, and what a bundle has to do with it."""

import os
import pwd
from collections.abc import Mapping

from scrun.core.errors import SettingsError
from scrun.core.paths import real_id
from scrun.images.store import ROOTFS, Facts, read_facts
from scrun.settings.file.load import Settings
from scrun.settings.oci_conf.patterns import substitute


def path_for(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return the directory of this user's store; asks the name service.

    HOME in `environment` counts.

    Raises:
        SettingsError: The user can have none.
    """
    uid = real_id("uid")
    home = environment.get("HOME")
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return store_path(settings, uid=uid, user=None, home=home)
    return store_path(settings, uid=uid, user=user.pw_name, home=home or user.pw_dir)


def store_path(settings: Settings, *, uid: int, user: "str | None", home: "str | None") -> str:
    """Return the directory of a user's store. Pure.

    `user` is their name, for `%u`; None: they have none. `home` is their home, for the default;
    None: they have none.

    Raises:
        SettingsError: The settings use a name or a home that the user does not have.
    """
    named = settings.images.store
    if named is not None:
        return _fill_in("[images] store", named, uid, user)
    if (scratch := settings.staging.scratch) is not None:
        return os.path.join(_fill_in("[staging] scratch", scratch, uid, user), f"images-{uid}")
    if home is None:
        raise SettingsError(
            f"no directory for the images of uid {uid}, who has no home: set `store` in the "
            "section [images] of scrun.toml"
        )
    return os.path.join(home, ".cache", "scrun", "images")


def _fill_in(setting: str, pattern: str, uid: int, user: "str | None") -> str:
    if user is None and "%u" in pattern.replace("%%", ""):
        raise SettingsError(
            f"{setting} = {pattern!r}: uid {uid} has no user name: use %U, the uid, instead of %u"
        )
    values = {"u": user or str(uid), "U": str(uid)}
    return substitute(pattern, values, shell=False)


def image_of(bundle: str, rootfs: str) -> "Facts | None":
    """Return the image that a bundle's root file system is, or None.

    `rootfs` is `root.path` of its config.json.
    """
    if os.path.normpath(os.path.join(bundle, rootfs)) != os.path.join(bundle, ROOTFS):
        return None
    return read_facts(bundle)
