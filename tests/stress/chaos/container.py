"""One container: from `create` to `delete`, with a fault on the way."""

import itertools
import json
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import trio

from tests.stress.chaos import networks, points
from tests.stress.chaos.actions import harm
from tests.stress.chaos.children import Done, Parent
from tests.stress.chaos.disks import disk_of
from tests.stress.chaos.ends import Ends, ends
from tests.stress.chaos.faults import (
    CREATED,
    CREATING,
    DELETING,
    DETACHED,
    ENDING,
    HELD,
    RUNNING,
    STARTING,
    WAITING,
    Moment,
)
from tests.stress.chaos.files import storage_of
from tests.stress.chaos.inside import Place
from tests.stress.chaos.outages import Outage
from tests.stress.chaos.plan import Plan
from tests.stress.chaos.seen import KILLED, Answer, Seen
from tests.stress.chaos.testbed import Testbed
from tests.stress.chaos.victims import Where
from tests.stress.chaos.watchers import answers, execute, watching

T = TypeVar("T")

CALL = 150.0
"""Seconds that any call of scrun may take, and the container to do what is next."""
DELETE = 150.0
_EOF = 10.0
_TOGETHER = 2.0  # a member of a pod stays for the fault of another one
_LOOKS = 0.02


class Late(Exception):
    """Something took longer than it may."""


class Noted:
    """Whoever keeps what happened to a container, and when, from its beginning on."""

    def __init__(self) -> None:
        self._notes: list[str] = []
        self._began = time.monotonic()
        self._hit_at = 0.0

    def note(self, text: str) -> None:
        self._notes.append(f"{time.monotonic() - self._began:.3f} {text}")

    @property
    def notes(self) -> str:
        return "\n".join(self._notes)


class Container(Noted):
    """A container.

    Attributes:
        plan: What it is like.
        testbed: Where.
        id: The container's.
        place: The place in a job from which its commands are called; None: they are called here.
        moment: What is going on.
        where: How to find its processes.
        seen: What was seen of it.
        log: The container's own.
    """

    def __init__(
        self,
        plan: Plan,
        testbed: Testbed,
        outage: Outage | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__()
        self.plan = plan
        self._outage = outage
        self.testbed = testbed
        self.place = place
        self.id = f"c{plan.number}"
        self.moment: Moment | None = None
        self.where = Where(testbed.root_of(plan), self.id, testbed.tag(plan))
        self.log = ""
        self._reached = {moment: trio.Event() for moment in Moment}
        self._harmed = trio.Event()
        self._waited = False
        self._is_up = False
        before, after = (b"".join(b"%d\n" % n for n in range(1, m + 1)) for m in plan.lines)
        text = {"lines": before + after, "terminal": b"down\n", "stdin": before}
        text |= {"logs": text["lines"], "attach": answers(plan).encode()}
        own = {137, 33} if plan.kind == "kill" else {plan.status}
        self.seen = Seen(expected=b"up\n" + text.get(plan.kind, b""), own=frozenset(own))
        self._typed = before if plan.kind == "stdin" else b""
        self._first = b"up\n" + before if plan.kind in ("lines", "logs") else b"up"

    async def run(self) -> Seen:
        """Run it to its end. Never raises but for a fault of this program."""
        directory = self.testbed.site.base / "l" / self.id
        directory.mkdir()
        self.testbed.site.user.give(directory)
        if self.plan.fault.point:
            self._prepare_point()
        async with (
            disk_of(self),
            storage_of(self),
            ends(directory, terminal=self.plan.kind == "terminal") as held,
            trio.open_nursery() as nursery,
        ):
            if self.plan.moment is not None and self._outage is None:
                nursery.start_soon(self._harm, self.plan.moment)
            try:
                await self._run(held, directory / "pid")
            except Late as late:
                self.seen.hangs.append(str(late))
                self.note(f"hang: {late}")
                self._pass_by()
                await self._tidy_up()
            nursery.cancel_scope.cancel()
        if self.plan.fault.point:
            self.seen.hit = self.seen.hit or points.reached(self.where.root)
            self.seen.left += points.forget(self.where.root)
        self.seen.lost = self.place is not None and self.place.lost.is_set()
        self.seen.hit |= self.plan.is_beside and self.plan.pod in self.testbed.hit_pods
        self.seen.seconds = time.monotonic() - (self._hit_at or self._began)
        return self.seen

    # The fault

    def _prepare_point(self) -> None:
        fault = self.plan.fault
        action = fault.name.rpartition("-")[2]
        root = Path(self.where.root)
        root.mkdir(mode=0o700)
        self.testbed.site.user.give(root)
        call = 1 + self.plan.number % 4 if fault.point in points.REPEATED else 1
        points.prepare(str(root), fault.point, action, self.plan.pause, call)

    async def _harm(self, moment: Moment) -> None:
        try:
            await self._reached[moment].wait()
            await trio.sleep(self.plan.delay)
            await harm(self)
        finally:
            self._harmed.set()

    def harmed(self) -> None:
        """Let the container go on, although the fault is not over."""
        self._harmed.set()

    def hit(self, text: str) -> None:
        """Take notice that the fault has come."""
        self.note(text)
        self.seen.hit = True
        self._hit_at = self._hit_at or time.monotonic()
        self.testbed.hit_pods.add(self.plan.pod)
        if self.moment is WAITING:
            self._harmed.set()  # its job may come while it lasts

    async def _enter(self, moment: Moment) -> None:
        self.moment = moment
        self.note(moment.value)
        self._reached[moment].set()
        if self._outage is None or self._waited:
            return
        if moment is self.plan.moment:
            self._waited = True
            await in_time(CALL, "the outage", self._outage.wait)
            self.hit(self.plan.fault.name)
        elif moment is DELETING:  # it did not come that far
            self._pass_by()

    def _pass_by(self) -> None:
        if self._outage is not None and not self._waited:
            self._waited = True
            self._outage.here()

    async def _held(self) -> None:
        """Let the fault come, when it is for this moment: then what follows is no race."""
        if self.moment is self.plan.moment and self.moment in HELD and self._outage is None:
            await in_time(CALL, "the fault", self._harmed.wait)
        elif self.plan.is_beside and self.moment is RUNNING:
            with trio.move_on_after(_TOGETHER):
                while self.plan.pod not in self.testbed.hit_pods:
                    await trio.sleep(_LOOKS)

    @property
    def _doomed(self) -> bool:
        """Whether the fault has ended the container in any case."""
        fault = self.plan.fault
        return self.seen.hit and bool(fault.ends) and fault.surely and self.plan.moment in HELD

    # Its course

    async def _run(self, held: Ends, pid_file: Path) -> None:
        if await self._create(held, pid_file):
            await self._enter(CREATED)
            await self._held()
            await self._start_and_run(held)
            anchor = self.where.anchor
            if self.seen.hit and "keepalive" in self.plan.fault.beside:
                # nobody is left who would end it here: the engine has its process still
                await self.call("delete", "--force")
            self.seen.anchor = await in_time(
                CALL, "end of the container", lambda: self._wait(anchor)
            )
            if self.plan.has_own_process and self.seen.anchor < 0:
                self.seen.anchor = 128 - self.seen.anchor
            self.note(f"the anchor ended with {self.seen.anchor}")
            if self.plan.number % 2:
                self.seen.state = await self._asked_state() or None
        await self._delete()
        for name, stream in (("output", held.stdout), ("error", held.stderr)):
            if stream:
                await in_time(_EOF, f"end of standard {name}", stream.ended.wait)
        if self.plan.kind not in DETACHED:
            self.seen.out = bytes(held.stdout.data) if held.stdout else b""
        self.note(f"standard error: {held.stderr.text!r}")
        if self._is_up and self.plan.has_volume:
            self.seen.missing = self.testbed.what_is_missing(self.plan)
        if os.path.lexists(f"{self.testbed.root_of(self.plan)}/{self.id}"):
            self.seen.left.append("its record")
        if self.plan.network:
            self.seen.left += await networks.forgotten(self.testbed.network(self.plan))
        if self.plan.kind == "script":
            staged_out = self.testbed.staged_out.read_text().splitlines()
            self.seen.staged_out = staged_out.count(self.id)

    @property
    def parent(self) -> Parent:
        """Who calls its commands: when its job is gone, we do."""
        if self.place is None or self.place.lost.is_set():
            return self.testbed.children
        return self.place

    @property
    def is_over(self) -> bool:
        """Whether its anchor has ended."""
        return self.parent.has_ended(self.where.anchor, self._began)

    async def _wait(self, pid: int) -> int:
        return await (self.place or self.testbed.children).wait(pid, self._began)

    async def _create(self, held: Ends, pid_file: Path) -> bool:
        words = ["run", "--detach"] if self.plan.kind in DETACHED else ["create"]
        words += ["--bundle", str(self.testbed.bundle(self.plan))]
        words += ["--pid-file", str(pid_file)]
        if held.console:
            words += ["--console-socket", str(held.console)]
        parent = self.parent
        command = self.testbed.command(self.plan, *words, self.id, parent=parent)
        environment = self.testbed.environment(self.plan)
        await self._enter(CREATING)
        pid = await parent.spawn(command, environment, held.given)
        held.give()
        self.where.client = self.where.create = pid
        if self.plan.fault.before:
            self.hit(f"create has only {' '.join(self.plan.fault.before)}")
        if self.plan.fault.few_ports:
            self.hit("SrunPortRange is narrow")
        status = await in_time(CALL, "create", lambda: self._wait(pid))
        self.where.client = self.where.create = 0
        self.note(f"create ended with {status}")
        held.take_terminal()
        if status == 0:
            self.where.anchor = int(pid_file.read_text())
            self.seen.create = Answer(0)
            return True
        if status in KILLED and pid_file.exists():  # when all was done; engines do this then
            await self.call("delete", "--force")
        await in_time(_EOF, "end of create's standard error", held.stderr.ended.wait)
        self.seen.create = Answer(status, "", held.stderr.text)
        return False

    async def _start_and_run(self, held: Ends) -> None:
        if self.plan.kind not in DETACHED and not await self._start(held):
            return
        await self._wait_for_its_job()
        async with watching(self) as watchers:
            stdout, plain = watchers.output or held.stdout, self._first
            assert stdout is not None
            await in_time(CALL, "first output", lambda: stdout.until(plain))
            self._is_up = b"up" in stdout.data.split()  # else that was the end of it
            await watchers.begin()
            await self._enter(RUNNING)
            if self.plan.kind == "exec":
                await execute(self)
            await watchers.converse()
            await self._held()
            await watchers.end()
            if not self._doomed:
                await self._let_go(held)

    async def _start(self, held: Ends) -> bool:
        await self._enter(STARTING)
        done = await self.call("start")
        self.seen.start = Answer(done.status, done.out, done.err)
        if self.plan.fault.target == "client" and done.status in KILLED:
            again = await self.call("start")  # it may have been asked for, or not
            self.note(f"start again: {again.status} {again.err}")
        elif done.status or held.stdout is None:
            await self._kill("KILL")  # it is created still, or has ended
            return False
        return True

    async def _wait_for_its_job(self) -> None:
        """Be in the queue still, until the fault has come."""
        if not self.plan.waits:
            return
        await self._enter(WAITING)
        await self._held()
        if not self._doomed:
            self.seen.waiting = (await self._asked_state()).get("status", "")
            opened = self.testbed.open_gate
            await in_time(CALL, "the job", lambda: opened(self.plan, lambda: self.is_over))

    async def _let_go(self, held: Ends) -> None:
        """Have the container go on to its end."""
        await self._enter(ENDING)
        if self.plan.kind == "kill":
            await self._kill("KILL" if self.plan.force else "TERM")
            return
        if self.plan.kind == "attach":  # who has typed `end` already
            return
        stdin, stdout = held.stdin, held.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            await stdin.write(self._typed or b"go\n")
            if self._typed:
                await in_time(CALL, "what was typed", lambda: stdout.until(self._typed))
                await stdin.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.note("nobody reads its standard input")

    async def _kill(self, number: str) -> None:
        """Send a signal, again if the fault has prevented it."""
        for _ in range(20):
            done = await self.call("kill", after=(number,))
            self.note(f"kill: {done.status} {done.err}")
            self.seen.kills.append(Answer(done.status, done.out, done.err))
            if done.status == 0 or "is stopped" in done.err:
                return
            await trio.sleep(0.3)

    async def _asked_state(self) -> dict[str, str]:
        """Return what `state` says: nothing if it is refused."""
        done = await self.call("state")
        self.seen.states.append(Answer(done.status, "", done.err))
        if done.status:
            self.note(f"state: {done.status} {done.err}")
            return {}
        try:
            state = json.loads(done.out)
        except ValueError:
            return {"status": f"no JSON: {done.out!r}"}
        notes = state.get("annotations", {})
        names = ("reason", "exit_status", "message", "pending")
        found = {
            name: notes[f"org.scrun.{name}"] for name in names if f"org.scrun.{name}" in notes
        }
        self.note(f"state: {state['status']} {found}")
        return {"status": state["status"], **found}

    async def _delete(self) -> None:
        self._keep_log()
        await self._enter(DELETING)
        force = self.plan.force or self.seen.create is None or self.seen.create.status != 0
        deadline = trio.current_time() + DELETE
        for attempt in itertools.count():
            done = await self.call("delete", *(["--force"] if force or attempt else []))
            self.seen.deletes.append(Answer(done.status, done.out, done.err))
            self.note(f"delete: {done.status} {done.err}")
            if done.status == 0:
                return
            if trio.current_time() > deadline:
                raise Late(f"delete did not succeed within {DELETE:g} s: {done.err}")
            await trio.sleep(0.2)

    async def _tidy_up(self) -> None:
        """Remove what hangs, for the sake of those that follow."""
        self._keep_log()
        with trio.move_on_after(CALL):
            call = await self.testbed.call(self.plan, self.parent, "delete", "--force", self.id)
            done = await call.done()
            self.note(f"delete at last: {done.status} {done.err}")

    # Its means

    async def call(self, command: str, *options: str, after: tuple[str, ...] = ()) -> Done:
        """Call scrun, as the container's client at the moment."""
        call = await self.testbed.call(self.plan, self.parent, command, *options, self.id, *after)
        self.where.client = call.pid
        try:
            return await in_time(CALL, command, call.done)
        finally:
            self.where.client = 0

    def _keep_log(self) -> None:
        try:
            text = Path(self.testbed.root_of(self.plan), self.id, "log").read_text(
                errors="replace"
            )
        except OSError:
            return
        self.log = text[-20000:]


async def in_time(seconds: float, what: str, call: Callable[[], Awaitable[T]]) -> T:
    """Wait for something, for as long as it may take.

    Raises:
        Late: It takes longer.
    """
    with trio.move_on_after(seconds):
        return await call()
    raise Late(f"{what}: not within {seconds:g} s")
