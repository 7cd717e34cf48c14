"""A shim with a real runtime, and a root file system."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.harness import users
from tests.harness.bundle import make_rootfs
from tests.harness.nightly import nightly
from tests.harness.processes import processes_of
from tests.harness.shim import PURE_V2, Shim, listening, prove
from tests.harness.users import User

MakeShim = Callable[..., Shim]


@pytest.fixture(scope="session")
def rootfs() -> Iterator[Path]:
    """A root file system that everybody may use."""
    with tempfile.TemporaryDirectory(prefix="shim-root-") as directory:
        os.chmod(directory, 0o755)
        path = Path(directory) / "rootfs"
        make_rootfs(path)
        yield path


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for shims' directories; nothing may be left in it, and no process."""
    with tempfile.TemporaryDirectory(prefix="shim-test-") as path:
        os.chmod(path, 0o1777)
        yield Path(path)
        assert not os.listdir(path)
        assert not processes_of(path)


@pytest.fixture
def make_shim(folder: Path, rootfs: Path) -> Iterator[MakeShim]:
    with contextlib.ExitStack() as stack:

        def make(
            env: Mapping[str, str] | None = None,
            user: User | None = None,
            before: Sequence[str] = (),
            place: Sequence[str] = PURE_V2,
            begin: Mapping[str, object] | None = None,
            meet: Callable[[Shim], None] = lambda shim: None,
        ) -> Shim:
            own = {"TMPDIR": str(folder), **(env or {})}
            shim = Shim(rootfs, user or users.root(), own, before, place, begin, meet)
            stack.callback(shim.end)
            return shim

        yield make


def without_crun(rootfs: Path) -> str:
    """A PATH with a crun that does not work."""
    broken = rootfs.parent / "bin" / "crun"
    broken.parent.mkdir(exist_ok=True)
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    return f"{broken.parent}:{os.environ['PATH']}"


@pytest.fixture
def direct(make_shim: MakeShim) -> Shim:
    return connected(make_shim)


def connected(
    make_shim: MakeShim, env: Mapping[str, str] | None = None, mute: str = "", **begin: object
) -> Shim:
    """Make a shim with a direct connection.

    Args:
        make_shim: Makes it.
        env: What is added to its environment.
        mute: Another address, where somebody listens at the same port and says nothing.
        begin: Other fields of `begin`.
    """
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(listening())
        port = sock.getsockname()[1]
        if mute:
            stack.enter_context(listening(mute, port))

        def meet(shim: Shim) -> None:
            connection, _ = sock.accept()
            both = prove(connection)
            assert both
            shim.use_direct(connection.detach(), both)

        return make_shim(env, begin={**begin, "port": port}, meet=meet)


@pytest.fixture(params=["root-crun", nightly("root-runc"), nightly("user-crun"), "user-runc"])
def shim(request: pytest.FixtureRequest, make_shim: MakeShim, rootfs: Path) -> Shim:
    """Each user and each runtime once; nightly, each runtime for each user."""
    who, runtime = request.param.split("-")
    env = {"PATH": without_crun(rootfs)} if runtime == "runc" else {}
    made = make_shim(env, users.root() if who == "root" else users.ordinary())
    assert os.path.basename(made.hello["runtime"]) == runtime
    return made
