"""Places inside jobs from which commands are called: scripts, elements of arrays, tasks of steps.

In each a program of ours (`agent.py`) starts the commands, so that they are children of the job's
script, and reaps them.
"""

import array
import contextlib
import itertools
import json
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import trio

from tests.harness.processes import signal_quietly
from tests.stress.chaos.testbed import Testbed

AGENT = str(Path(__file__).with_name("agent.py"))
_ELEMENTS = 8
_SIDE_BY_SIDE = 3
_LIVES = 12
_COMES = 120.0
_GOES = 60.0
_LOOKS = 0.2
_LARGEST = 1 << 16
LOST = -9
"""How a command has ended whose job was taken away, as far as anybody knows."""


class Place:
    """One of them; its commands are to their callers as those of `Children`.

    Attributes:
        kind: One of `jobs.INSIDE`.
        job: Its job, as Slurm's commands take it.
        agent: The pid of who starts the commands.
        lost: The agent is gone, and its commands with it.
        users: How many containers use it now.
        lives: How many have used it.
    """

    def __init__(self, kind: str, sock: trio.socket.SocketType, hello: dict[str, Any]) -> None:
        self.kind = kind
        job = hello["job"]
        self.job = str(job["SLURM_JOB_ID"])
        if element := job.get("SLURM_ARRAY_TASK_ID"):  # the last one's number is the whole array's
            self.job = f"{job['SLURM_ARRAY_JOB_ID']}_{element}"
        self.agent = int(hello["pid"])
        self.lost = trio.Event()
        self.users = 0
        self.lives = 0
        self._sock = sock
        self._asking = trio.Lock()
        self._answered, self._answers = trio.open_memory_channel[dict[str, Any]](1)
        self._waiting: dict[int, trio.Event] = {}
        self._ended: dict[int, tuple[float, int]] = {}

    async def listen(self) -> None:
        """Hear what it says, until it is gone."""
        with self._sock, self._answered, contextlib.suppress(OSError):
            while data := await self._sock.recv(_LARGEST):
                message = json.loads(data)
                if "ended" in message:
                    self._ended[message["ended"]] = (time.monotonic(), message["status"])
                    self._waiting.pop(message["ended"], trio.Event()).set()
                else:  # of an earlier process of that number nobody asks any more
                    self._ended.pop(message.get("started", 0), None)
                    await self._answered.send(message)
        self.lost.set()
        for event in self._waiting.values():
            event.set()

    async def spawn(
        self, argv: Sequence[str], environment: Mapping[str, str], stdio: tuple[int, int, int]
    ) -> int:
        """Start a command there; 0 if the job is gone.

        Raises:
            RuntimeError: It cannot be started.
        """
        message = json.dumps({"argv": list(argv), "environment": dict(environment)}).encode()
        fds = array.array("i", stdio)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)]
        async with self._asking:
            try:
                await self._sock.sendmsg([message], rights)
                answer = await self._answers.receive()
            except (OSError, trio.EndOfChannel):
                await self.lost.wait()
                return 0
        if "failed" in answer:
            raise RuntimeError(f"{argv[0]} in job {self.job}: {answer['failed']}")
        return int(answer["started"])

    async def wait(self, pid: int, since: float = 0.0) -> int:
        """Wait for a child; see `Children.wait`."""
        if not self.has_ended(pid, since):
            await self._waiting.setdefault(pid, trio.Event()).wait()
        return self._ended.get(pid, (0.0, LOST))[1]

    def has_ended(self, pid: int, since: float) -> bool:
        """Tell whether a child that began after `since` has ended."""
        entry = self._ended.get(pid)
        return self.lost.is_set() or (entry is not None and entry[0] >= since)

    def leave(self) -> None:
        """Let the agent, and its script, end."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        signal_quietly(self.agent, signal.SIGKILL)


class Places:
    """All of them. They are made when they are needed, and most serve several containers."""

    def __init__(self, testbed: Testbed) -> None:
        """Begin without any.

        Args:
            testbed: A site on the cluster.
        """
        self._testbed = testbed
        self._path = str(testbed.site.base / "agents")
        self._here: list[Place] = []
        self._spare: dict[str, list[Place]] = {}
        self._jobs: set[str] = set()
        self._expected: dict[str, trio.MemorySendChannel[Place]] = {}
        self._numbers = itertools.count(1)
        self._asking: dict[str, trio.Lock] = {}

    async def serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            await listener.bind(self._path)
            os.chmod(self._path, 0o666)
            listener.listen(64)
            task_status.started()
            async with trio.open_nursery() as nursery:
                while True:
                    sock, _ = await listener.accept()
                    nursery.start_soon(self._welcome, sock)

    async def _welcome(self, sock: trio.socket.SocketType) -> None:
        data = await sock.recv(_LARGEST)
        hello = json.loads(data) if data else {"name": ""}
        if hello["name"] not in self._expected:  # of a script that Slurm has run again
            sock.close()
            return
        place = Place(hello["name"].partition("-")[0], sock, hello)
        self._jobs.add(place.job)
        await self._expected[hello["name"]].send(place)
        await place.listen()

    async def take(self, kind: str, *, alone: bool) -> Place:
        """Return a place for a container.

        Args:
            kind: One of `jobs.INSIDE`.
            alone: Whether no other container may use it.
        """
        async with self._asking.setdefault(kind, trio.Lock()):
            found = None if alone else self._shared(kind)
            if found is None:
                found = await self._new(kind)
                if not alone:
                    self._here.append(found)
            found.users += 1
            found.lives += 1
        return found

    def give_back(self, place: Place) -> None:
        """Take a place back: one that has served enough ends."""
        place.users -= 1
        # the first stays: what its supervisors have open at the end is compared
        serves = place is self._first(place.kind) or place.lives < _LIVES or place.users
        if place in self._here:
            if serves and not place.lost.is_set():
                return
            self._here.remove(place)
        if not place.users:
            place.leave()

    def _shared(self, kind: str) -> Place | None:
        for place in self._here:
            full = place.lives >= _LIVES and place is not self._first(kind)
            full |= place.users >= _SIDE_BY_SIDE
            if place.kind == kind and not (full or place.lost.is_set()):
                return place
        return None

    def _first(self, kind: str) -> Place | None:
        return next((place for place in self._here if place.kind == kind), None)

    async def _new(self, kind: str) -> Place:
        spare = self._spare.setdefault(kind, [])
        while spare:
            if not (place := spare.pop()).lost.is_set():
                return place
        name = f"{kind}-{next(self._numbers)}"
        count = _ELEMENTS if kind == "array" else 1
        expected, coming = trio.open_memory_channel[Place](count)
        self._expected[name] = expected
        job = await self._submit(kind, name)
        self._jobs.add(job)
        with trio.fail_after(_COMES):
            for _ in range(count):
                spare.append(await coming.receive())
        del self._expected[name]
        return spare.pop()

    async def _submit(self, kind: str, name: str) -> str:
        agent = shlex.join([sys.executable, "-I", AGENT, self._path, name])
        if kind == "step":
            agent = f"srun {agent}"
        script = self._testbed.site.base / f"{name}.sh"
        script.write_text(f"#!/bin/sh\n{agent}\n")
        words = ["sbatch", "--parsable", "--requeue", "--chdir=/", "--output=none"]
        words += ["--ntasks=1", f"--job-name={name}"]
        words += [f"--array=0-{_ELEMENTS - 1}"] if kind == "array" else []
        user = self._testbed.site.user
        environment = {**self._testbed.slurm_environment, "HOME": user.home, "USER": user.name}
        done = await self._testbed.children.run([*user.prefix, *words, str(script)], environment)
        if done.status:
            raise RuntimeError(f"sbatch ended with {done.status}: {done.err}")
        return done.out.strip()

    async def close(self) -> list[str]:
        """End all of them; return those of their jobs that do not go."""
        for place in (*self._here, *(p for places in self._spare.values() for p in places)):
            place.leave()
        run, environment = self._testbed.children.run, self._testbed.slurm_environment
        queued: list[str] = []
        with trio.move_on_after(_GOES):
            while True:
                asked = ["squeue", "-h", "-u", self._testbed.site.user.name, "-o", "%A %i %T %j"]
                lines = (await run(asked, environment)).out.splitlines()
                queued = [line for line in lines if self._jobs & {*line.split()[:2]}]
                if not queued:
                    break
                again = [line.split()[1] for line in queued if " PENDING " in line]
                if again:  # they were requeued
                    await run(["scancel", *again], environment)
                await trio.sleep(_LOOKS)
        return queued
