"""What each operation costs, beside the bare tools."""

import os
import time
from collections.abc import Sequence

from tests.stress.bench.figures import Goal
from tests.stress.bench.stand import BARE, CPU, INTERPRETER, Stand

TRIO = "`python3 -c 'import trio'`"
SALLOC = "bare `salloc` until its environment is readable"
CONTAINER = "bare `salloc` + `srun --container`, `true`"
BYTE = "bare `srun --container` until its first byte"
CANCEL = "bare `scancel` of a step"
_UNTIL_CLEANED_UP = 0.1
"""Seconds: podman and docker start processes of their own between a container's end and delete."""

OPERATIONS = ("state", "start", "kill", "delete")


class Operations:
    """The measurements of a round, each once, so that all meet what else the machine does."""

    def __init__(self, stand: Stand, interpreter: str, other: str | None) -> None:
        """Make ready.

        Args:
            stand: Where.
            interpreter: The python3 that has trio.
            other: Another scrun to measure beside, or None.
        """
        self._stand = stand
        self._interpreter = interpreter
        self._slurm = stand.site.engine == "slurm"
        self._commands: dict[str, Sequence[str]] = {"scrun": stand.site.command}
        if other:
            self._commands["other"] = (other, "--root", str(stand.site.base / "other"))
        self._says = stand.echo("echo x")

    def warm_up(self) -> None:
        """Start the supervisors, fill the caches."""
        for name, command in self._commands.items():
            self._whole_container(name, command)
            if self._slurm:
                self._stand.in_container("true")  # makes the bundle for that
        self._stand.times.taken.clear()

    def round(self) -> None:
        stand = self._stand
        stand.take(TRIO, self._interpreter, "-I", "-c", "import trio")
        for name, command in self._commands.items():
            self._operations(name, command)
            self._whole_container(name, command)
        if self._slurm:
            self._bare_slurm()
        else:
            self._bare_crun()
        self._first_byte()
        self._first_create()

    def _operations(self, name: str, command: Sequence[str]) -> None:
        # an interpreter before each: Slurm has more to do at one time than at another
        stand = self._stand
        stand.take(BARE, *INTERPRETER)
        made = stand.create(stand.sleep, f"{name} create", command)
        stand.take(BARE, *INTERPRETER)
        made.take(f"{name} state", "state")
        stand.take(BARE, *INTERPRETER)
        made.take(f"{name} start", "start")
        made.runs()
        stand.take(BARE, *INTERPRETER)
        made.take(f"{name} kill", "kill", "KILL")
        made.wait()
        time.sleep(_UNTIL_CLEANED_UP)
        stand.take(BARE, *INTERPRETER)
        made.take(f"{name} delete", "delete")

    def _whole_container(self, name: str, command: Sequence[str]) -> None:
        began = time.perf_counter()
        made = self._stand.create(self._stand.true, scrun=command)
        made.take("", "start")
        made.wait()
        made.take(f"{name} delete, right at the end", "delete")
        self._stand.times.add(f"{name}, a container of `true`", time.perf_counter() - began)

    def _bare_slurm(self) -> None:
        stand = self._stand
        stand.take("bare `squeue`", "squeue", "-h")
        with stand.job(SALLOC) as job:
            step = stand.popen(
                ["srun", f"--jobid={job}", "--overlap", *stand.in_container("sleep", "600")[1:]]
            )
            time.sleep(0.3)
            stand.take(CANCEL, "scancel", "--signal=KILL", f"{job}.0")
            step.wait()
        stand.take(CONTAINER, "salloc", "-Q", *stand.in_container("true"))

    def _bare_crun(self) -> None:
        stand = self._stand
        made = stand.create(stand.sleep)
        made.take("", "start")
        made.runs()
        if found := list(stand.site.root.glob("*/runtime/*")):
            root, name = os.path.split(found[0])
            runtime = "crun" if (found[0] / "status").exists() else "runc"
            stand.take("bare `crun state`, or runc's", runtime, f"--root={root}", "state", name)
        made.remove()

    def _first_byte(self) -> None:
        stand = self._stand
        read, write = os.pipe()
        made = stand.create(self._says, stdout=write)
        os.close(write)
        began = time.perf_counter()
        start = stand.popen([*stand.site.command, "start", made.id])
        assert os.read(read, 1), "the container wrote nothing"
        stand.times.add("scrun start until the first byte", time.perf_counter() - began)
        start.wait()
        made.wait()
        os.close(read)
        made.take("", "delete")
        if self._slurm:
            with stand.job() as job:
                read, write = os.pipe()
                words = stand.in_container("sh", "-c", "echo x")[1:]
                began = time.perf_counter()
                step = stand.popen(["srun", f"--jobid={job}", *words], stdout=write)
                os.close(write)
                assert os.read(read, 1), "the container wrote nothing"
                stand.times.add(BYTE, time.perf_counter() - began)
                step.wait()
                os.close(read)

    def _first_create(self) -> None:
        stand = self._stand
        with stand.fresh() as command:
            made = stand.create(stand.true, "scrun create, the first", command)
            made.take("", "delete", "--force")
            made.wait()

    def goals(self) -> list[Goal]:
        """Return what should have been reached."""
        median = self._stand.times.median
        found = [
            Goal(
                f"`{name}`{CPU}",
                "an interpreter",
                median(f"scrun {name}{CPU}") / median(BARE + CPU),
                0.2,
            )
            for name in OPERATIONS
        ]
        wall = median("scrun state") / median(BARE)
        found.append(Goal("`state`", "an interpreter", wall, 0.4))
        if self._slurm:
            byte = "scrun start until the first byte"
            whole = median("scrun, a container of `true`")
            bare_whole = median(CONTAINER) + 4 * median(BARE)
            first = median("scrun create, the first") / median(TRIO, SALLOC)
            found += [
                Goal(
                    "`kill`",
                    "an interpreter + `scancel`",
                    median("scrun kill") / median(BARE, CANCEL),
                    1.5,
                ),
                Goal(
                    "`create`",
                    "an interpreter + `salloc`",
                    median("scrun create") / median(BARE, SALLOC),
                    1.3,
                ),
                Goal("the first `create`", "`import trio` + `salloc`", first, 1.15),
                Goal(
                    "a container of `true`",
                    "4 interpreters + `salloc` + `srun`",
                    whole / bare_whole,
                    1.2,
                ),
                Goal("`start` to first byte", "`srun`", median(byte) / median(BYTE), 1.1),
                Goal(
                    "`start` to first byte",
                    "an interpreter + `srun`",
                    median(byte) / median(BARE, BYTE),
                    1.1,
                ),
            ]
        return found
