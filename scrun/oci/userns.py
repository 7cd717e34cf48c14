"""Which users and groups a container can have where an ordinary user runs it. Pure.

An ordinary user may map the own id, and with newuidmap(1) those that subuid(5) lends. A container
that has only the own one cannot change users or owners: package managers, and servers that drop
root, fail in it. So it gets all of them, where that can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 340  # lines that a map may have, user_namespaces(7)


class Range(msgspec.Struct, frozen=True):
    """A line of an id map: `size` ids from `inside` on are those from `outside` on."""

    inside: int
    outside: int
    size: int

    def holds(self, number: int) -> bool:
        """Tell whether an id is one of those inside."""
        return self.inside <= number < self.inside + self.size


Ranges = tuple[Range, ...]

INITIAL: Ranges = (Range(0, 0, 4294967295),)
"""The map of the initial user namespace: no other one can have it."""


class Ids(msgspec.Struct, frozen=True):
    """The ids of one kind, users or groups, that somebody can map.

    Attributes:
        own: The id that is the user's own, as nodes count ids.
        known: What the ids that this process sees are on the nodes.
        lent: Whether files of a root file system have the owners that the image says, because
            this process sees the lent ids as a container does (rootless podman); else all of
            them belong to the user.
    """

    own: int
    known: Ranges
    lent: bool

    @property
    def whole(self) -> Ranges:
        """The map for a container that brings none."""
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
        """See `Ids`."""
        return self.uids.lent and self.gids.lent


class Maps(msgspec.Struct, frozen=True):
    """What a container gets."""

    uids: Ranges
    gids: Ranges


def read_map(text: str) -> Ranges:
    """Read /proc/PID/uid_map."""
    lines = (tuple(map(int, line.split())) for line in text.splitlines())
    return tuple(Range(*line) for line in lines if len(line) == 3)


def read_subordinate(text: str, names: Sequence[str]) -> list[tuple[int, int]]:
    """Read what a file of subuid(5) lends to a user.

    Args:
        text: The file.
        names: The user's name and uid: a line may have either.

    Returns:
        The first id and the number of each range.
    """
    found = []
    for line in text.splitlines():
        name, *numbers = line.strip().split(":")
        if name in names and len(numbers) == 2 and all(_is_number(each) for each in numbers):
            found.append((int(numbers[0]), int(numbers[1])))
    return [(first, size) for first, size in found if size]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 11


def ids_here(own: int, inside: Ranges, subordinate: Sequence[tuple[int, int]]) -> Ids | None:
    """Put together what can be mapped.

    Args:
        own: The user's id, outside of all namespaces.
        inside: The map of this process's namespace.
        subordinate: What subuid(5) lends.

    Returns:
        The ids; None when there is but the own one.
    """
    if inside and inside != INITIAL:
        lent = sum(each.size for each in inside) > 1 and inside[0].outside == own
        return Ids(own, inside, lent=True) if lent else None
    if not subordinate:
        return None
    known = (Range(own, own, 1), *(Range(first, first, size) for first, size in subordinate))
    return Ids(own, known, lent=False)


def maps_for(config: Mapping[str, Any], ids: BothIds) -> Maps | None:
    """Return the maps of a container, or None when it can have but one user and one group.

    Root in it is the user: whatever the runtime makes before it has changed the root directory,
    the user has to be able to reach.

    Args:
        config: The submitted config.json, valid.
        ids: What can be mapped.
    """
    user = (config.get("process") or {}).get("user") or {}
    linux = config.get("linux") or {}
    uids = _map(linux.get("uidMappings") or [], user.get("uid", 0), ids.uids)
    gids = _map(linux.get("gidMappings") or [], user.get("gid", 0), ids.gids)
    return Maps(uids, gids) if uids and gids else None


def _map(wanted: Sequence[Mapping[str, int]], member: int, ids: Ids) -> Ranges | None:
    """Return the map of one kind.

    Args:
        wanted: `uidMappings` or `gidMappings`; empty if the container brings none.
        member: The id that its process has.
        ids: What can be mapped.
    """
    found = composed(wanted, ids.known) if wanted else ids.whole
    if found == (Range(0, ids.own, 1),):  # all that `runc spec --rootless` knows of
        found = ids.whole
    if not found or len(found) > _MOST or sum(each.size for each in found) == 1:
        return None
    if not ids.lent and member != 0:  # all files belong to root, it could write none
        return None
    root = next((each for each in found if each.holds(0)), None)
    if root is None or root.outside - root.inside != ids.own:
        return None
    return found if any(each.holds(member) for each in found) else None


def composed(wanted: Sequence[Mapping[str, int]], known: Ranges) -> Ranges | None:
    """Put a map of a container behind that of this process.

    Returns:
        What ids of the container are on the nodes; None when some of them are nothing there.
    """
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


def mappings(ranges: Ranges) -> list[dict[str, int]]:
    """Return a map as config.json has it."""
    return [
        {"containerID": each.inside, "hostID": each.outside, "size": each.size} for each in ranges
    ]


def has_several(config: Mapping[str, Any]) -> bool:
    """Tell whether a staged config.json has more than one user."""
    wanted = (config.get("linux") or {}).get("uidMappings") or []
    return sum(int(entry["size"]) for entry in wanted) > 1


def is_mapped(number: int, wanted: Sequence[Mapping[str, int]]) -> bool:
    """Tell whether an id is in a map of config.json."""
    return any(
        entry["containerID"] <= number < entry["containerID"] + entry["size"] for entry in wanted
    )
