"""A shim with a real runtime, and a root file system."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.bundle import make_rootfs
from tests.harness.processes import processes_of
from tests.harness.shim import Shim

MakeShim = Callable[..., Shim]


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shim") / "rootfs"
    make_rootfs(path)
    return path


@pytest.fixture
def make_shim(tmp_path: Path) -> Iterator[MakeShim]:
    """Makes shims, each with TMPDIR in the test's folder; nothing may be left of them."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with contextlib.ExitStack() as stack:

        def make(**options: Any) -> Shim:
            options["env"] = {"TMPDIR": str(temporary), **options.get("env", {})}
            shim = Shim(**options)
            stack.callback(shim.end)
            return shim

        yield make
    assert not os.listdir(temporary)
    assert not processes_of(str(temporary))


@pytest.fixture(params=["crun", "runc"])
def shim(
    request: pytest.FixtureRequest, make_shim: MakeShim, tmp_path: Path, rootfs: Path
) -> Shim:
    """A shim, with each of the runtimes."""
    env = {}
    if request.param == "runc":
        broken = tmp_path / "crun"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o755)
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    made = make_shim(env=env)
    made.rootfs = rootfs
    assert os.path.basename(made.hello["runtime"]) == request.param
    return made
