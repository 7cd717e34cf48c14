"""The plan how nodes get a root file system: a best way for all of them, and a ladder below it."""

from itertools import groupby
from typing import Never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrun.images.leases import lease_of
from scrun.supervisor.staging.image_store import ContainerImages, Copier
from scrun.supervisor.staging.layers import Overlay, Unusable
from scrun.supervisor.staging.overlaid import BY_FUSE, NO_ROOT, Overlays
from scrun.supervisor.staging.stored import Mounter
from scrun.supervisor.staging.ways import (
    BundleRefused,
    How,
    NotMounted,
    RootFilesystem,
    Source,
    Unseen,
    Way,
    remaining,
    ways,
)  # fmt: skip
from tests.harness.nightly import often

HOW: tuple[How, ...] = ("in place", "shim", "fuse", "runtime", "copy")
SOURCES: tuple[Source, ...] = ("there", "copies", "unpacked", "sent")
MAP = [{"containerID": 0, "hostID": 0, "size": 1}]
MAPS = [*MAP, {"containerID": 1, "hostID": 100000, "size": 65536}]


def _nothing(*_: object) -> Never:
    raise AssertionError("a plan asks nobody")


STORE = ContainerImages("/store", lease_of("/root", "c"), Copier(_nothing, _nothing, _nothing))
MOUNTER = Mounter(_nothing, _nothing, lambda: None)
BOOLS = st.booleans()


@st.composite
def roots(draw: st.DrawFn, *, moved: bool = False) -> RootFilesystem:
    """Return any; if `moved`, one whose layers can be mounted, as far as it decides that."""
    users = draw(st.sampled_from([None, {"type": "user"}, {"type": "user", "path": "/p/1/user"}]))
    maps = draw(st.sampled_from([MAP, MAPS]))
    linux = {"namespaces": [users] if users else [], "uidMappings": maps, "gidMappings": maps}
    overlay = Overlay(("/mine", "/image"), users=True, why_not=draw(st.sampled_from(["", "odd"])))
    return RootFilesystem(
        "/rootfs",
        {"root": {"path": "rootfs", "readonly": draw(BOOLS)}, "linux": linux},
        rootless=draw(BOOLS),
        why_moved="is on tmpfs" if moved else draw(st.sampled_from(["", "is on tmpfs"])),
        file=draw(st.sampled_from(["", "/x.sqsh"])),
        overlay=overlay,
        why_not="" if moved else draw(st.sampled_from(["", "", "are not all here"])),
    )


@st.composite
def nodes(draw: st.DrawFn) -> Overlays:
    return Overlays(
        _nothing,
        "/cache",
        images=draw(st.sampled_from([None, STORE])),
        keeps=draw(BOOLS),
        tasks=draw(st.integers(0, 2)),
        mounter=draw(st.sampled_from([None, MOUNTER])),
        mounted=draw(st.sets(st.sampled_from([NO_ROOT, BY_FUSE]))),
    )


FAILURES = st.one_of(
    st.builds(Unusable),
    st.builds(BundleRefused),
    st.builds(NotMounted, st.just(""), images=BOOLS),
    st.builds(Unseen, st.just(""), st.just(frozenset((1,))), store=BOOLS),
)


@given(roots(), st.none() | nodes(), BOOLS)
def test_one_way_is_the_best_and_the_last_always_works(
    root: RootFilesystem, node: Overlays | None, remote: bool
) -> None:
    ladder = ways(root, node, remote=remote)
    assert len(set(ladder)) == len(ladder)
    assert [way for way in ladder if not way.source] == ladder[-1:]
    assert (ladder[-1].how == "in place") is (not root.why_moved)
    if not root.why_moved or node is None or root.why_no_overlay(node):
        assert len(ladder) == 1
    else:
        assert [way for way in ladder if way.how == "runtime"]
        # whoever mounts better is tried with all layers before anybody else
        orders = [HOW.index(how) for how, _ in groupby(ladder, lambda way: way.how)]
        assert orders == sorted(set(orders))
        for _, same in groupby(ladder[:-1], lambda way: (way.how, way.on_node)):
            numbers = [SOURCES.index(way.source) for way in same]
            assert numbers == sorted(set(numbers))


@settings(max_examples=often(200, 1000))
@given(roots(moved=True), nodes(), BOOLS)
def test_there_is_what_a_way_needs(root: RootFilesystem, node: Overlays, remote: bool) -> None:
    mounted = [way for way in ways(root, node, remote=remote) if way.source]
    for way in mounted:
        assert way.source == "there" or node.images
        assert way.source != ("copies" if root.file else "unpacked")
        assert way.source != "there" or not root.overlay.why_not
        if way.on_node:  # others' files could be neither sent nor removed
            assert node.keeps
            assert not root.read_only
            assert not (root.rootless and root.owners)
        elif remote and node.keeps and not root.read_only:
            assert root.rootless
            assert root.owners
    shim = node.mounter and NO_ROOT not in node.mounted and (root.owners or not root.beside)
    by_kernel = shim and BY_FUSE not in node.mounted
    by_fuse = shim and root.rootless
    wanted = {"shim": by_kernel, "fuse": by_fuse, "runtime": True}
    assert {way.how for way in mounted} == {how for how in wanted if mounted and wanted[how]}


@given(roots(moved=True), nodes(), BOOLS, st.lists(FAILURES, min_size=33, max_size=33))
def test_each_failure_leads_down_the_ladder(
    root: RootFilesystem, node: Overlays, remote: bool, failures: list[Unusable]
) -> None:
    ladder = ways(root, node, remote=remote)
    for failure in failures:
        if len(ladder) == 1:
            break
        below = remaining(ladder, failure)
        assert [way for way in ladder[1:] if way in below] == below
        assert below[-1] == ladder[-1]
        ladder = below
    assert not ladder[0].source


MOUNTS: list[tuple[How, bool]] = [
    ("shim", False), ("shim", True), ("fuse", False), ("runtime", False),
]  # fmt: skip
LADDERS = {
    is_file: [
        *(Way(how, source, on_node) for how, on_node in MOUNTS for source in SOURCES
          if source != ("copies" if is_file else "unpacked")),
        Way("copy"),
    ]
    for is_file in (False, True)
}  # fmt: skip

LEFT: dict[str, tuple[Way, Unusable, Way]] = {
    "written elsewhere": (
        Way("shim", "copies"), BundleRefused(), Way("shim", "there", on_node=True),
    ),
    "fuse-overlayfs": (Way("shim", "sent", on_node=True), BundleRefused(), Way("fuse", "there")),
    "the runtime": (
        Way("shim", "there"), NotMounted("", images=False), Way("runtime", "there"),
    ),
    "a user's file": (Way("shim", "there"), NotMounted("", images=True), Way("shim", "unpacked")),
    "images": (Way("shim", "copies"), NotMounted("", images=True), Way("copy")),
    "images that were sent": (Way("shim", "sent"), NotMounted("", images=True), Way("copy")),
    "layers": (
        Way("shim", "there"), Unseen("", frozenset(), store=True), Way("shim", "copies"),
    ),
    "the store": (
        Way("shim", "there"), Unseen("", frozenset(), store=False), Way("shim", "sent"),
    ),
    "the store later": (
        Way("fuse", "copies"), Unseen("", frozenset(), store=False), Way("fuse", "sent"),
    ),
    "a store in vain": (
        Way("fuse", "copies"), Unseen("", frozenset(), store=True), Way("copy"),
    ),
    "sent in vain": (Way("shim", "sent"), Unseen("", frozenset(), store=False), Way("copy")),
    "anything else": (Way("shim", "there"), Unusable(), Way("copy")),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_a_failure_leaves(case: str) -> None:
    tried, failure, expected = LEFT[case]
    ladder = LADDERS[case == "a user's file"]
    assert remaining(ladder[ladder.index(tried) :], failure)[0] == expected
