"""Registries of images."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

from tests.conftest import PLACES
from tests.harness.registry import SET, Registry
from tests.harness.site import Site
from tests.harness.users import ordinary, root


@pytest.fixture(scope="session")
def _registries() -> Iterator[dict[str, Registry]]:
    found: dict[str, Registry] = {}
    with contextlib.ExitStack() as stack:
        yield found
        for registry in found.values():
            stack.callback(registry.site.close)
            stack.callback(registry.close)


@pytest.fixture(params=PLACES)
def registry(
    request: pytest.FixtureRequest, _registries: dict[str, Registry]
) -> Iterator[Registry]:
    """A registry with an image box:1, and a site that uses it, whose store is empty."""
    if request.param not in _registries:
        engine, _, who = request.param.partition("-")
        made = Registry(Site(engine, root() if who == "root" else ordinary()))
        _registries[request.param] = made
        made.start()
        made.push("box:1", **SET)
    registry = _registries[request.param]
    yield registry
    registry.site.clear()
    shutil.rmtree(registry.store, ignore_errors=True)
