"""Threads that hang take none away from others, and every look has an end."""

import os
import threading
import time

import pytest
import trio

from scrun.core.errors import BundleError, StagingError
from scrun.settings.file.load import Staging
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.containers import creation
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import JobRequest
from scrun.supervisor.core import names, threads
from scrun.supervisor.core.nurseries import bulkhead
from scrun.supervisor.core.threads import in_thread, look
from scrun.supervisor.staging.staged_bundle import directory_for


async def test_creates_on_a_hung_file_system_take_no_threads_from_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sixty of them: trio has forty threads for everybody."""
    hang = threading.Event()
    monkeypatch.setattr(creation, "_look", lambda *_: hang.wait())
    monkeypatch.setattr(creation, "_READING", 0.3)
    refused = 0

    async def create() -> None:
        nonlocal refused
        with pytest.raises(BundleError, match="/b: the file system did not answer"):
            await creation.admit(ORDER, 0, "local", at_terminal=False)
        refused += 1

    try:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(bulkhead, "a container", create)
            assert refused == 60
            with trio.fail_after(3):
                assert await in_thread(lambda: 1) == 1
                assert await trio.to_thread.run_sync(lambda: 1) == 1
    finally:
        hang.set()


ORDER = CreateRequest(
    id="c",
    bundle="/b",
    config_file=None,
    directory="/",
    pid_file=None,
    child_env=ChildEnv({}),
    settings=None,  # type: ignore[arg-type]
    shown=None,  # type: ignore[arg-type]
    console=None,
)


async def test_one_that_takes_all_its_threads_has_no_more() -> None:
    hang = threading.Event()
    done: list[int] = []

    async def greedy() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(threads._MOST):
                nursery.start_soon(lambda: in_thread(hang.wait, abandon=True))
            await trio.testing.wait_all_tasks_blocked(0.1)
            with trio.move_on_after(0.2):
                done.append(await in_thread(lambda: 1))
            nursery.cancel_scope.cancel()

    try:
        await bulkhead("a container", greedy)
        assert done == []
        await bulkhead("another", lambda: look("x", done.append, 2))
        assert done == [2]
    finally:
        hang.set()


async def test_a_look_without_an_answer() -> None:
    hang = threading.Event()
    began = time.monotonic()
    try:
        with pytest.raises(StagingError, match="the settings: the file system did not answer"):
            await look("the settings", hang.wait, failure=StagingError, patience=0.1)
        assert time.monotonic() - began < 5
    finally:
        hang.set()


def test_a_user_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container, or where the name service does not answer."""
    monkeypatch.setattr(names, "_known", {})
    monkeypatch.setattr("os.getuid", lambda: 54321)
    request = JobRequest(
        container="c1", child_env=ChildEnv({}), directory="/", record="/r",
        journal=None, on_job_id=None, on_lost=None,  # type: ignore[arg-type]
    )  # fmt: skip
    assert os.path.dirname(directory_for(Staging(scratch="/s/%U"), request)) == "/s/54321"
    assert os.path.dirname(directory_for(Staging(scratch="/s/%%u"), request)) == "/s/%u"
    with pytest.raises(StagingError, match="uid 54321 has no user name"):
        directory_for(Staging(scratch="/s/%u"), request)
