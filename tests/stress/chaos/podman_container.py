"""A container under rootless podman: `podman run`, a fault, `podman rm`."""

import os
import time

import trio

from tests.harness.podman import RUN, Podman
from tests.harness.users import User
from tests.stress.chaos.children import Call, Children, Done, Stream, begin
from tests.stress.chaos.container import CALL, Late, Noted, in_time
from tests.stress.chaos.faults import TRAPPED, Moment
from tests.stress.chaos.plan import Plan
from tests.stress.chaos.seen import Answer, Seen
from tests.stress.chaos.testbed import TAG, Testbed
from tests.stress.chaos.victims import children_of, signalled, words_of

_APPEARS = 10.0


class PodmanTestbed(Testbed):
    """Where podman's containers run: storage, settings and records of its own."""

    def __init__(self, user: User, children: Children) -> None:
        super().__init__("slurm", user, children)
        self.podman = Podman(self.site)
        self.podman.__enter__()

    @property
    def root(self) -> str:
        return f"{self.site.base}/x/scrun"

    def close(self) -> None:
        """Put everything back as it was."""
        super().close()
        self.podman.__exit__(None, None, None)

    async def podman_call(self, *words: str, stdin: int | None = None) -> Call:
        """Begin a call of podman."""
        base = self.site.base
        environment = {**self.site.user.environment, "XDG_RUNTIME_DIR": f"{base}/x"}
        command = [*self.site.user.prefix, *self.podman.command, *words]
        environment["TMPDIR"] = str(base)
        return await begin(self.children, command, environment, stdin=stdin)


class PodmanContainer(Noted):
    """Such a container; the same to its caller as `Container`."""

    def __init__(self, plan: Plan, testbed: PodmanTestbed) -> None:
        super().__init__()
        self.plan = plan
        self.testbed = testbed
        self.log = ""
        self.seen = Seen(own=frozenset({plan.status}))
        self._name = f"c{plan.number}"

    async def run(self) -> Seen:
        """Run it to its end."""
        try:
            await self._run_and_break()
        except Late as late:
            self.seen.hangs.append(str(late))
            self.note(f"hang: {late}")
        await self._remove()
        self.seen.seconds = time.monotonic() - (self._hit_at or self._began)
        return self.seen

    async def _run_and_break(self) -> None:
        before, after = self.plan.lines
        script = f"trap 'exit {TRAPPED}' TERM INT; seq {before}; read gate; seq {after}; "
        words = [*RUN, "-i", "--name", self._name, "-e", f"{TAG}={self.testbed.tag(self.plan)}"]
        words += ["--annotation", f"SCRUN_JOB_NAME={self.testbed.tag(self.plan)}", "busybox"]
        theirs, ours = os.pipe()
        stdin = Stream(ours)
        try:
            call = await self.testbed.podman_call(
                *words, "sh", "-c", f"{script}exit {self.plan.status}", stdin=theirs
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._break, call)
                done = await self._run(call, stdin)
                nursery.cancel_scope.cancel()
        finally:
            await stdin.aclose()
        self.note(f"podman run ended with {done.status}: {done.err}")
        self.seen.create = Answer(0)
        self.seen.expected = b"".join(
            b"%d\n" % number for count in self.plan.lines for number in range(1, count + 1)
        )
        self.seen.out = done.out.encode()
        self.seen.anchor = done.status

    async def _run(self, call: Call, stdin: Stream) -> Done:
        """Let the container go when it has said its first lines, or have it removed."""
        first = f"{self.plan.lines[0]}\n".encode()

        async def talk() -> None:
            await call.out.until(first)
            if self.plan.moment is not Moment.RUNNING:
                await self._write(stdin)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(talk)
            if self.plan.moment is not None:
                nursery.start_soon(self._end_it, stdin)
            done = await in_time(CALL, "podman run", call.done)
            nursery.cancel_scope.cancel()
        return done

    async def _write(self, stdin: Stream) -> None:
        try:
            await stdin.write(b"go\n")
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.note("nobody reads its standard input")

    async def _end_it(self, stdin: Stream) -> None:
        """After the fault: what has survived may go on, and what then is left is removed."""
        while not self.seen.hit:
            await trio.sleep(0.05)
        await trio.sleep(self.plan.pause)
        await self._write(stdin)
        if self.plan.fault.action != "STOP":
            await trio.sleep(3)
            await self._remove()

    async def _break(self, call: Call) -> None:
        """Do what the plan says to podman, or to its conmon."""
        if self.plan.moment is None:
            return
        if self.plan.moment is Moment.RUNNING:
            await call.out.until(b"1\n")
        await trio.sleep(self.plan.delay * 3)  # podman takes its time
        with trio.move_on_after(_APPEARS):
            while not (pid := self._victim(call)):
                await trio.sleep(0.01)
            await signalled(self, pid, self.plan.fault.action)

    def _victim(self, call: Call) -> int:
        if self.plan.fault.target == "podman":
            return call.pid
        for pid in children_of(os.getpid()):
            words = words_of(pid)
            if words and os.path.basename(words[0]) == "conmon" and self._name in words:
                return pid
        return 0

    def hit(self, text: str) -> None:
        """Take notice that the fault has come."""
        self.note(text)
        self.seen.hit = True
        self._hit_at = self._hit_at or time.monotonic()

    async def _remove(self) -> None:
        """`podman rm`, until it succeeds."""
        deadline = trio.current_time() + CALL
        while trio.current_time() < deadline:
            call = await self.testbed.podman_call(
                "rm", "--force", "--ignore", "--time", "1", self._name
            )
            done = await in_time(CALL, "podman rm", call.done)
            self.note(f"podman rm: {done.status} {done.err}")
            if done.status == 0:
                return
            await trio.sleep(0.5)
        self.seen.hangs.append("podman rm does not succeed")
