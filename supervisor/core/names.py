"""Names of users and groups, from a name service that may hang (nsswitch.conf(5)).

Each `create` looks up its user in a thread (`learn`); the event loop uses the cached entries.
"""

import grp
import os
import pwd

import msgspec

from scrun.core.paths import real_id
from scrun.settings.file.sources import real_uid


class UserEntry(msgspec.Struct, frozen=True):
    """An entry of the name service; `group` is the name of `gid`, or its number."""

    name: str
    gid: int
    group: str


_known: dict[int, UserEntry] = {}


def learn() -> None:
    """Look up the users of this supervisor; in a thread. Missing entries are not cached."""
    outer = real_id("uid")
    for uid in {os.getuid(), os.geteuid(), outer, real_uid(os.environ)}:
        if uid not in _known:
            try:
                entry = pwd.getpwuid(uid)
            except KeyError:
                continue
            _known[uid] = UserEntry(entry.pw_name, entry.pw_gid, group_name(entry.pw_gid))


def user_of(uid: int) -> UserEntry | None:
    """Return the entry of a user that `learn` has looked up; None if there is no entry."""
    return _known.get(uid)


def user_name(uid: int) -> str:
    """Return the name of a user that `learn` has looked up, or the number."""
    return user.name if (user := user_of(uid)) else str(uid)


def group_name(gid: int) -> str:
    """Look up the name of a group, or return the number; in a thread."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
