"""Id maps for containers of an ordinary user. Pure.

An ordinary user may map the own id and, with newuidmap(1), those that subuid(5) lends. With only
the own id a container cannot change users or owners: package managers, and servers that drop root,
fail. So it gets all of these ids where that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

_MOST = 340  # lines that a map may have, user_namespaces(7)


class Range(msgspec.Struct, frozen=True):
    """A line of an id map: `size` ids from `inside` on map to those from `outside` on."""

    inside: int
    outside: int
    size: int

    def holds(self, number: int) -> bool:
        return self.inside <= number < self.inside + self.size


Ranges = tuple[Range, ...]

INITIAL: Ranges = (Range(0, 0, 4294967295),)
"""The map of the initial user namespace, and of no other."""


class Ids(msgspec.Struct, frozen=True):
    """The ids of one kind, users or groups, that a user can map.

    Attributes:
        own: The user's own id, as on the nodes.
        known: The map from ids that this process sees to ids on the nodes.
        lent: Whether files of a root file system have their owners of the image, because this
            process sees the lent ids as a container does (rootless podman); else all of them
            belong to the user.
    """

    own: int
    known: Ranges
    lent: bool

    @property
    def whole(self) -> Ranges:
        """The map for a container without one in its config.json."""
        if self.lent:
            return self.known
        maps, inside = [Range(0, self.own, 1)], 1
        for known in self.known:
            if known.outside != self.own:
                maps.append(Range(inside, known.outside, known.size))
                inside += known.size
        return tuple(maps)


class BothIds(msgspec.Struct, frozen=True):
    """Users and groups."""

    uids: Ids
    gids: Ids

    @property
    def lent(self) -> bool:
        return self.uids.lent and self.gids.lent


class Maps(msgspec.Struct, frozen=True):
    """The maps of a container.

    Attributes:
        outer: Those of a user namespace around the container's, to whose ids the container's are
            mapped then; None: they are mapped to the node's.
    """

    uids: Ranges
    gids: Ranges
    outer: Maps | None = None


def read_map(text: str) -> Ranges:
    """Read /proc/PID/uid_map."""
    lines = (tuple(map(int, line.split())) for line in text.splitlines())
    return tuple(Range(*line) for line in lines if len(line) == 3)


def read_subordinate(text: str, names: Sequence[str]) -> list[tuple[int, int]]:
    """Read the ranges (first id, number) that a file of subuid(5) lends to a name or uid."""
    found = []
    for line in text.splitlines():
        name, *numbers = line.strip().split(":")
        if name in names and len(numbers) == 2 and all(_is_number(each) for each in numbers):
            found.append((int(numbers[0]), int(numbers[1])))
    return [(first, size) for first, size in found if size]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 11


def ids_here(own: int, inside: Ranges, subordinate: Sequence[tuple[int, int]]) -> Ids | None:
    """Return the ids that the user can map, own and subuid(5)'s; None without the latter."""
    if inside and inside != INITIAL:
        lent = sum(each.size for each in inside) > 1 and inside[0].outside == own
        return Ids(own, inside, lent=True) if lent else None
    if not subordinate:
        return None
    known = (Range(own, own, 1), *(Range(first, first, size) for first, size in subordinate))
    return Ids(own, known, lent=False)


def maps_for(config: Mapping[str, Any], ids: BothIds, *, nests: bool = False) -> Maps | None:
    """Return the maps of a container, or None if it can only have one user and one group.

    The runtime makes files that belong to the user, so the user has to be root where it is called.
    If the container's root is another one (podman's `keep-id`), it is called in a user namespace
    around the container's, like podman's own; `nests` says that it can be.
    """
    user = (config.get("process") or {}).get("user") or {}
    linux = config.get("linux") or {}
    wanted = [linux.get(f"{kind}Mappings") or [] for kind in ("uid", "gid")]
    uids = _map(wanted[0], user.get("uid", 0), ids.uids)
    gids = _map(wanted[1], user.get("gid", 0), ids.gids)
    if not uids or not gids:
        return None
    if _has_own_root(uids, ids.uids) and _has_own_root(gids, ids.gids):
        return Maps(uids, gids)
    if not nests or not ids.lent:
        return None
    outer = Maps(ids.uids.known, ids.gids.known)
    return Maps(_inside(wanted[0], outer.uids), _inside(wanted[1], outer.gids), outer)


def _has_own_root(found: Ranges, ids: Ids) -> bool:
    root = next((each for each in found if each.holds(0)), None)
    return root is not None and root.outside - root.inside == ids.own


def _inside(wanted: Sequence[Mapping[str, int]], known: Ranges) -> Ranges:
    """Return a map to the ids that this process sees; all of these, if nothing is wanted."""
    if not wanted:
        return tuple(Range(each.inside, each.inside, each.size) for each in known)
    return tuple(Range(one["containerID"], one["hostID"], one["size"]) for one in wanted)


def _map(wanted: Sequence[Mapping[str, int]], member: int, ids: Ids) -> Ranges | None:
    """Return the map of one kind, as config.json wants it, with the `member` id of its process."""
    found = composed(wanted, ids.known) if wanted else ids.whole
    if found == (Range(0, ids.own, 1),):  # the map that `runc spec --rootless` writes
        found = ids.whole
    if not found or len(found) > _MOST or sum(each.size for each in found) == 1:
        return None
    if not ids.lent and member != 0:  # all files belong to root, so it could write none of them
        return None
    return found if any(each.holds(member) for each in found) else None


def composed(wanted: Sequence[Mapping[str, int]], known: Ranges) -> Ranges | None:
    """Compose a container's map with this process's, to the nodes' ids; None if not whole."""
    found: list[Range] = []
    for entry in wanted:
        inside, here, left = entry["containerID"], entry["hostID"], entry["size"]
        while left:
            outer = next((each for each in known if each.holds(here)), None)
            if outer is None or len(found) > _MOST:
                return None
            size = min(left, outer.inside + outer.size - here)
            found.append(Range(inside, outer.outside + here - outer.inside, size))
            inside, here, left = inside + size, here + size, left - size
    return tuple(found)


def is_nested(config: Mapping[str, Any], ids: BothIds) -> bool:
    """Tell whether a container needs a user namespace around its own."""
    maps = maps_for(config, ids, nests=True)
    return maps is not None and maps.outer is not None


def members(maps: Maps) -> dict[str, Any]:
    """Return maps in the form of config.json."""
    return {"uidMappings": mappings(maps.uids), "gidMappings": mappings(maps.gids)}


def mappings(ranges: Ranges) -> list[dict[str, int]]:
    """Return a map in the form of config.json."""
    return [
        {"containerID": each.inside, "hostID": each.outside, "size": each.size} for each in ranges
    ]


def has_several(config: Mapping[str, Any]) -> bool:
    """Tell whether a staged config.json has more than one user."""
    wanted = (config.get("linux") or {}).get("uidMappings") or []
    return sum(int(entry["size"]) for entry in wanted) > 1


def is_mapped_to(number: int, wanted: Sequence[Mapping[str, int]]) -> bool:
    """Tell whether some id of a container is a number here; without a map, each is itself."""
    return not wanted or any(0 <= number - one["hostID"] < one["size"] for one in wanted)


def is_mapped(number: int, wanted: Sequence[Mapping[str, int]]) -> bool:
    """Tell whether an id is in a map of config.json."""
    return any(
        entry["containerID"] <= number < entry["containerID"] + entry["size"] for entry in wanted
    )
