"""Which users and groups a container can have: maps of config.json behind those of a namespace."""

from typing import Any

import pytest

from scrun.oci.userns import (
    BothIds,
    Ids,
    Maps,
    Range,
    Ranges,
    composed,
    has_several,
    ids_here,
    is_nested,
    maps_for,
    read_map,
    read_subordinate,
)

ALL = (Range(0, 0, 4294967295),)
PODMAN = (Range(0, 1000, 1), Range(1, 165536, 65536))
LENT = Ids(1000, PODMAN, lent=True)
OWN = Ids(1000, (Range(1000, 1000, 1), Range(165536, 165536, 65536)), lent=False)


def config(uid: int = 0, maps: list[tuple[int, int, int]] | None = None) -> dict[str, Any]:
    keys = ("containerID", "hostID", "size")
    listed = [dict(zip(keys, entry, strict=True)) for entry in maps or []]
    linux = {"uidMappings": listed, "gidMappings": listed} if listed else {}
    return {"process": {"user": {"uid": uid, "gid": uid}}, "linux": linux}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ann:100000:65536\nbob:165536:65536\n", [(165536, 65536)]),
        ("1001:5:6\nbob:1:2\n", [(5, 6), (1, 2)]),
        ("bob:1:0\nbob:x:2\nbob:1\nbob:1:2:3\n\n#bob:1:2\nbob:-1:2\nbob:²:2\n", []),
        (f"bob:{'9' * 5000}:1\n", []),
    ],
)
def test_what_subuid_lends(text: str, expected: list[tuple[int, int]]) -> None:
    assert read_subordinate(text, ("bob", "1001")) == expected


def test_maps_of_the_kernel() -> None:
    assert (
        read_map("         0       1000          1\n         1     165536      65536\n") == PODMAN
    )


@pytest.mark.parametrize(
    ("inside", "subordinate", "expected"),
    [
        (ALL, [(165536, 65536)], OWN),
        (ALL, [], None),
        (PODMAN, [], LENT),
        (PODMAN, [(165536, 65536)], LENT),
        ((Range(0, 1000, 1),), [(165536, 65536)], None),  # `unshare --map-root-user`
        ((Range(0, 165536, 65536),), [], None),  # root of it is not the user
    ],
)
def test_what_can_be_mapped(
    inside: Ranges, subordinate: list[tuple[int, int]], expected: Ids | None
) -> None:
    assert ids_here(1000, inside, subordinate) == expected


WHOLE = PODMAN
KEEP_ID = [(0, 1, 1000), (1000, 0, 1), (1001, 1001, 64536)]


@pytest.mark.parametrize(
    ("ids", "uid", "maps", "expected"),
    [
        (LENT, 0, None, WHOLE),
        (LENT, 33, None, WHOLE),
        (LENT, 65537, None, None),  # nobody has that id
        (LENT, 0, [(0, 0, 1), (1, 1, 65536)], WHOLE),
        (LENT, 0, [(0, 0, 10)], (Range(0, 1000, 1), Range(1, 165536, 9))),
        (LENT, 0, [(0, 0, 1)], WHOLE),
        (LENT, 0, [(0, 0, 100000)], None),
        (LENT, 1000, KEEP_ID, None),  # its root cannot reach what is the user's, see below
        (OWN, 0, None, WHOLE),
        (OWN, 1000, None, None),
        (OWN, 0, [(0, 1000, 1)], WHOLE),  # `runc spec --rootless`
        (OWN, 0, [(0, 1000, 1), (1, 165536, 10)], (Range(0, 1000, 1), Range(1, 165536, 10))),
        (OWN, 0, [(0, 5, 1)], None),
        (OWN, 0, [(0, 165536, 10)], None),
    ],
)
def test_maps_of_a_container(
    ids: Ids, uid: int, maps: list[tuple[int, int, int]] | None, expected: Ranges | None
) -> None:
    found = maps_for(config(uid, maps), BothIds(ids, ids))
    assert (found and found.uids) == expected
    assert (found and found.gids) == expected


@pytest.mark.parametrize(
    ("ids", "uid", "maps", "outer", "inner"),
    [
        (LENT, 1000, KEEP_ID, PODMAN, KEEP_ID),
        (LENT, 0, KEEP_ID, PODMAN, KEEP_ID),
        (LENT, 65537, KEEP_ID, None, None),  # nobody has that id
        (LENT, 0, None, None, [(0, 1000, 1), (1, 165536, 65536)]),
        (LENT, 0, [(0, 5, 10)], PODMAN, [(0, 5, 10)]),  # `auto` of podman
        (LENT, 0, [(0, 5, 100000)], None, None),
        (OWN, 1000, KEEP_ID, None, None),  # those of files are not the container's
    ],
)
def test_maps_in_another_namespace(
    ids: Ids,
    uid: int,
    maps: list[tuple[int, int, int]] | None,
    outer: Ranges | None,
    inner: list[tuple[int, int, int]] | None,
) -> None:
    wanted, both = config(uid, maps), BothIds(ids, ids)
    found = maps_for(wanted, both, nests=True)
    assert is_nested(wanted, both) is (outer is not None)
    assert (found and found.outer) == (outer and Maps(outer, outer))
    expected = inner and tuple(Range(*one) for one in inner)
    assert (found and (found.uids, found.gids)) == (expected and (expected, expected))


def test_maps_of_users_alone() -> None:
    """Groups are those that podman has then."""
    wanted = config(1000, KEEP_ID)
    wanted["linux"]["gidMappings"] = []
    found = maps_for(wanted, BothIds(LENT, LENT), nests=True)
    assert found is not None
    assert found.gids == (Range(0, 0, 1), Range(1, 1, 65536))


def test_a_map_has_no_end_of_lines() -> None:
    """The kernel takes 340; a hostile image may ask for any number."""
    many = [(number, number % 9, 1) for number in range(5000)]
    assert maps_for(config(0, many), BothIds(LENT, LENT)) is None


def test_several_ranges_behind_one() -> None:
    wanted = [{"containerID": 0, "hostID": 0, "size": 3}]
    assert composed(wanted, PODMAN) == (Range(0, 1000, 1), Range(1, 165536, 2))


@pytest.mark.parametrize(
    ("maps", "several"), [(None, False), ([(0, 1000, 1)], False), ([(0, 0, 2)], True)]
)
def test_what_a_staged_bundle_has(maps: list[tuple[int, int, int]] | None, several: bool) -> None:
    assert has_several(config(0, maps)) is several
