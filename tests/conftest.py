"""Fixtures of the tests of the whole: where containers run, and that nothing is left of them."""

import contextlib
import os
import random
import re
import signal
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.harness")

from tests.harness import apart, users  # noqa: E402  (rewritten when imported after that line)
from tests.harness.processes import descriptors  # noqa: E402
from tests.harness.site import Site  # noqa: E402


def pytest_configure() -> None:
    """Have none of this machine's own settings count, and change none."""
    apart.enter()


# A shell that runs the tests in the background has these ignored; what we start inherits that.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# The same few examples at every run, for a run says whether a change broke something; new ones are
# looked for by `--hypothesis-profile=long`, or with their number in SCRUN_FUZZ_EXAMPLES.
_examples = os.environ.get("SCRUN_FUZZ_EXAMPLES")
settings.register_profile("same", max_examples=25, derandomize=True, database=None, deadline=None)
settings.register_profile("long", max_examples=int(_examples or 20_000), deadline=None)
settings.load_profile("long" if _examples else "same")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this run is not for."""
    marks = []
    if os.geteuid() != 0:
        marks.append("by_root")
    if not os.environ.get("SCRUN_NIGHTLY"):
        marks.append("nightly")
    if os.environ.get("SCRUN_TEST_LAUNCH") != "shim":
        marks.append("by_shim")
    if os.environ.get("SLURM_CLUSTER_OCI_CONF") == "no":
        marks.append("oci_conf")
    kept = [item for item in items if not any(map(item.get_closest_marker, marks))]
    if "nightly" in marks:
        elsewhere = {*_elsewhere(kept)}
        kept = [item for item in kept if item not in elsewhere]
    left_out = {*items} - {*kept}
    items[:] = kept
    pid = re.compile(rf"\b{os.getpid()}\b")
    if found := next((item for item in items if pid.search(item.name)), None):
        raise pytest.UsageError(f"{found.nodeid}: no other process would find that: name its ids")
    config.hook.pytest_deselected(items=[*left_out])


PLACES = ("local-root", "local-user", "slurm-root", "slurm-user")
USUAL = ("local-root", "slurm-user")
"""A test in several places runs on Slurm, in the one of these if it can, and nightly in all.

`pytest.mark.both_engines` says that it differs between engines, `everywhere` between users, too.
"""


def _elsewhere(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests that run in another place which finds as much or more."""
    found: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        place = re.search(rf"(?<=[\[-])({'|'.join(PLACES)})(?=[-\]])", item.nodeid)
        if place and not item.get_closest_marker("everywhere"):
            engine, _, _ = place[0].partition("-")
            both = item.get_closest_marker("both_engines")
            test = item.nodeid.replace(place[0], engine if both else "")
            found.setdefault(test, {})[place[0]] = item
    return [
        item
        for by_place in found.values()
        for place, item in by_place.items()
        if place not in _enough(by_place)
    ]


def _enough(places: Collection[str]) -> Collection[str]:
    """The places of a test that are enough."""
    on_slurm = [place for place in places if place.startswith("slurm")] or places
    return [place for place in on_slurm if place in USUAL] or on_slurm


MakeSite = Callable[..., Site]


def _site(place: str, **settings: Any) -> Site:
    engine, _, who = place.partition("-")
    return Site(engine, users.root() if who == "root" else users.ordinary(), **settings)


@pytest.fixture(scope="session")
def _sites() -> Iterator[dict[str, Site]]:
    """The places of this session: made when first used, one supervisor each."""
    sites: dict[str, Site] = {}
    with contextlib.ExitStack() as stack:
        yield sites
        for site in sites.values():
            stack.callback(site.close)


@pytest.fixture(params=PLACES)
def site(request: pytest.FixtureRequest, _sites: dict[str, Site]) -> Iterator[Site]:
    """A place to run containers: every engine, as root and as the ordinary user.

    `pytest.mark.parametrize("site", [...], indirect=True)` takes only some of `PLACES`.
    """
    if request.param not in _sites:
        _sites[request.param] = _site(request.param)
    yield _sites[request.param]
    _sites[request.param].clear()


@pytest.fixture(scope="module")
def _shared() -> Iterator[dict[object, Site]]:
    sites: dict[object, Site] = {}
    with contextlib.ExitStack() as stack:
        yield sites
        for site in sites.values():
            stack.callback(site.close)


@pytest.fixture
def make_site(request: pytest.FixtureRequest, _shared: dict[object, Site]) -> Iterator[MakeSite]:
    """Makes a place with a supervisor of its own, for tests that harm it or want it alone.

    With the mark `shares_sites`, tests of a module that ask for the same have the same, one after
    the other: to make and end a supervisor costs twice as much as a container.
    """
    shares = request.node.get_closest_marker("shares_sites") is not None
    used: dict[object, Site] = {}
    with contextlib.ExitStack() as stack:

        def make(place: str, **settings: Any) -> Site:
            if not shares:
                site = _site(place, **settings)
                stack.callback(site.finish)
                return site
            key = (place, *sorted(settings.items()))
            if key not in used:
                if key not in _shared:
                    _shared[key] = _site(place, **settings, shared=True)
                used[key] = site = _shared.pop(key)
                stack.enter_context(site.cluster_for_it())
                stack.callback(renew, key, site)
            return used[key]

        def renew(key: object, site: Site) -> None:
            try:
                site.renew()
            except BaseException:
                site.close()
                raise
            _shared[key] = site

        yield make


@pytest.fixture
def no_descriptor_stays() -> Iterator[None]:
    """Holds that what the test has opened is closed at its end."""
    before = descriptors()
    yield
    assert descriptors() == before


@pytest.fixture
def dice() -> random.Random:
    """A source of random moments; a failing test shows its seed, SCRUN_SEED repeats it."""
    seed = int(os.environ.get("SCRUN_SEED") or random.randrange(1 << 32))
    print(f"SCRUN_SEED={seed}")
    return random.Random(seed)
