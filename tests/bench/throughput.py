"""How fast a container's standard output and input are, beside bare srun."""

import os
import subprocess
import time

from tests.bench.figures import Goal
from tests.bench.stand import Stand

SIZE = 64
"""MiB that go through."""

_SOURCE = f"head -c {SIZE}M /dev/zero"
_SINK = "cat >/dev/null"


class Throughput:
    """Seconds for `SIZE` MiB, from the start of the command to the end of the data."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self._source = stand.echo(_SOURCE)
        self._sink = stand.echo(_SINK)
        self._data = stand.site.base / "data"
        with self._data.open("wb") as file:
            file.write(bytes(SIZE << 20))

    def round(self) -> None:
        """Take every measurement once."""
        self._scrun_stdout()
        self._scrun_stdin()
        if self._stand.site.engine == "slurm":
            with self._stand.job() as job:
                self._bare_stdout(job)
                self._bare_stdin(job)

    def _scrun_stdout(self) -> None:
        read, write = os.pipe()
        made = self._stand.create(self._source, stdout=write)
        os.close(write)
        began = time.perf_counter()
        made.take("", "start")
        _drain(read)
        self._stand.times.add("stdout, scrun", time.perf_counter() - began)
        made.wait()
        made.take("", "delete")

    def _bare_stdout(self, job: str) -> None:
        read, write = os.pipe()
        began = time.perf_counter()
        words = self._stand.in_container("sh", "-c", _SOURCE)[1:]
        srun = self._stand.popen(["srun", f"--jobid={job}", *words], stdout=write)
        os.close(write)
        _drain(read)
        self._stand.times.add("stdout, bare srun", time.perf_counter() - began)
        srun.wait()

    def _scrun_stdin(self) -> None:
        read, write = os.pipe()
        made = self._stand.create(self._sink, stdin=read)
        os.close(read)
        began = time.perf_counter()
        made.take("", "start")
        self._feed(write)
        made.wait()
        self._stand.times.add("stdin, scrun", time.perf_counter() - began)
        made.take("", "delete")

    def _bare_stdin(self, job: str) -> None:
        read, write = os.pipe()
        began = time.perf_counter()
        words = self._stand.in_container("sh", "-c", _SINK)[1:]
        srun = self._stand.popen(["srun", f"--jobid={job}", *words], stdin=read)
        os.close(read)
        self._feed(write)
        srun.wait()
        self._stand.times.add("stdin, bare srun", time.perf_counter() - began)

    def _feed(self, pipe: int) -> None:
        with self._data.open("rb") as file:
            subprocess.run(["cat"], stdin=file, stdout=pipe, check=True)
        os.close(pipe)

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


def _drain(pipe: int) -> None:
    """Read a pipe to its end, as fast as can be, and close it."""
    size = 0
    buffer = bytearray(1 << 18)
    with open(pipe, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            size += count
    assert size == SIZE << 20, f"{size} bytes came"
