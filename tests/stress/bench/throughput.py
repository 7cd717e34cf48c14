"""How fast a container's standard output and input are, beside bare srun."""

import os
import time

from tests.stress.bench.figures import Goal
from tests.stress.bench.stand import Stand

SIZE = 64 << 20
"""Bytes that go through."""

_SOURCE = f"head -c {SIZE} /dev/zero"
_SINK = "echo ready; cat >/dev/null; echo done"
_CHUNK = 1 << 16


class Throughput:
    """Seconds for `SIZE` bytes: from the first to the last one, without start and end."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._source = stand.echo(_SOURCE)
        self._sink = stand.echo(_SINK)

    def round(self) -> None:
        read, write = os.pipe()
        made = self._stand.create(self._source, stdout=write)
        os.close(write)
        made.take("", "start")
        self._take_stdout("stdout, scrun", read)
        made.wait()
        made.take("", "delete")

        (read, theirs), (their_input, write) = os.pipe(), os.pipe()
        made = self._stand.create(self._sink, stdin=their_input, stdout=theirs)
        os.close(theirs)
        os.close(their_input)
        made.take("", "start")
        self._take_stdin("stdin, scrun", read, write)
        made.wait()
        made.take("", "delete")

        if self._stand.site.engine == "slurm":
            with self._stand.job() as job:
                self._bare(job)

    def _bare(self, job: str) -> None:
        srun = ["srun", f"--jobid={job}"]
        read, theirs = os.pipe()
        step = self._stand.popen(
            [*srun, *self._stand.in_container("sh", "-c", _SOURCE)[1:]], stdout=theirs
        )
        os.close(theirs)
        self._take_stdout("stdout, bare srun", read)
        step.wait()

        (read, theirs), (their_input, write) = os.pipe(), os.pipe()
        step = self._stand.popen(
            [*srun, *self._stand.in_container("sh", "-c", _SINK)[1:]],
            stdin=their_input,
            stdout=theirs,
        )
        os.close(theirs)
        os.close(their_input)
        self._take_stdin("stdin, bare srun", read, write)
        step.wait()

    def _take_stdout(self, what: str, read: int) -> None:
        buffer = bytearray(_CHUNK)
        with open(read, "rb", buffering=0) as pipe:
            size = pipe.readinto(buffer) or 0
            began = time.perf_counter()
            while count := pipe.readinto(buffer):
                size += count
        self._stand.times.add(what, time.perf_counter() - began)
        assert size == SIZE, f"{what}: {size} bytes arrived"

    def _take_stdin(self, what: str, read: int, write: int) -> None:
        with open(read, "rb") as lines, open(write, "wb", buffering=0) as pipe:
            assert lines.readline() == b"ready\n", what
            began = time.perf_counter()
            pipe.writelines([bytes(_CHUNK)] * (SIZE // _CHUNK))
            pipe.close()
            assert lines.readline() == b"done\n", what
        self._stand.times.add(what, time.perf_counter() - began)

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        if self._stand.site.engine != "slurm":
            return []
        median = self._stand.times.median
        return [
            Goal(
                f"{kind}, bytes per second",
                "`srun`",
                median(f"{kind}, bare srun") / median(f"{kind}, scrun"),
                0.98,
                at_least=True,
            )
            for kind in ("stdout", "stdin")
        ]
