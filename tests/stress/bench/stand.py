"""Where a bench measures: one user, one engine, one supervisor, and the bare tools beside it."""

import ctypes
import functools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests import CHECKOUT
from tests.harness.installation import Installation
from tests.harness.processes import signal_quietly
from tests.harness.site import Site
from tests.harness.users import User
from tests.harness.wait import wait_until, wait_while
from tests.stress.bench.figures import Times

_PR_SET_CHILD_SUBREAPER = 36
_NOTHING = CHECKOUT / "docs" / "examples" / "plugin-none"
_MEMORY = Path("/dev/shm")

CPU = ", processor time"
"""Ends the name of a measurement of that."""

BARE = "`python3 -I -S -c pass`"
INTERPRETER = ("/usr/bin/python3", "-I", "-S", "-c", "pass")
LIFE = """
import os, select
def call(crun, *words):
    assert os.waitpid(os.posix_spawn(crun[0], [*crun, *words], os.environ), 0)[1] == 0, words
def life(crun, bundle, pid_file, name):
    call(crun, "create", "--bundle", bundle, "--pid-file", pid_file, name)
    with open(pid_file) as file:
        first = os.pidfd_open(int(file.read()))
    call(crun, "start", name)
    select.select([first], [], [])
    os.close(first)
    call(crun, "delete", name)
    os.unlink(pid_file)
"""
"""Defines for an interpreter what makes a container by crun's `create`, `start` and `delete`."""

_CALLS = f"""{LIFE}
import sys
crun, bundle = sys.argv[1:]
root = "/dev/shm/scrun-bench-%d" % os.getpid()
os.mkdir(root, 0o700)
life([crun, "--root", root], bundle, root + "/pid", "floor")
os.rmdir(root)
"""
"""What a step does at least that makes a container before it is started."""

SHELL_UNTIL_READ = ("sh", "-c", "env; echo; exec cat")
"""What `salloc` runs to show that a job's environment is readable, and to hold the job."""


class Stand:
    """A site, measured by its own user.

    Attributes:
        site: Where scrun's containers are.
        times: What was measured so far.
        true: A bundle that runs `true`.
        sleep: A bundle that sleeps.
        member: One that sleeps in the job of a pod.
    """

    def __init__(self, engine: str, user: User, with_oci_conf: str | None = None) -> None:
        """Make the site, and become its user for good.

        Args:
            engine: The site's engine.
            user: The site's user.
            with_oci_conf: The slurm.conf of a cluster that has an oci.conf, if that is another one
                than the site's.
        """
        if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise SystemExit("bench: cannot become a subreaper")
        self._installation = Installation()
        self._installation.install(_NOTHING)
        user.give(self._installation.base)
        self.site = Site(engine, user, "idle_timeout = 600\n", self._installation.binary)
        # where records are when nothing else is set: $XDG_RUNTIME_DIR is a tmpfs
        self.site.root = _MEMORY / self.site.base.name
        self.site.command[-1] = str(self.site.root)
        self.times = Times()
        self._numbers = 0
        del self.site.environment["SCRUN_WATCHDOG"]
        self._environment = dict(self.site.environment)
        self._with_oci_conf = with_oci_conf or self._environment.get("SLURM_CONF", "")
        become(user)
        self._pids = Path(tempfile.mkdtemp(prefix="scrun-bench-", dir=_MEMORY))  # as an engine's
        self._errors = ErrorOutput()
        self.true = self.site.bundle(self.site.config("true"))
        self.sleep = self.site.bundle(self.site.config("sleep", "3600"))
        in_pod = {**self.site.config("sleep", "3600"), "annotations": {"org.scrun.pod": "bench"}}
        self.member = self.site.bundle(in_pod)

    def close(self) -> None:
        self.site.close()
        self._installation.close()
        self._errors.close()
        shutil.rmtree(self.site.root, ignore_errors=True)
        shutil.rmtree(self._pids)

    @functools.cached_property
    def plain(self) -> Path:
        """The bundle that scrun hands to Slurm, to be run without scrun."""
        settings = self.site.base / "plain.toml"
        settings.write_text('stager = "builtin"\n[slurm]\nlaunch = "container"\n')
        plain = self.site.base / "b" / "plain"
        with self.with_oci_conf(), self.fresh() as scrun:
            made = self.create(self.true, scrun=(*scrun, "--config-file", str(settings)))
            shutil.copytree(Path(scrun[-1]) / made.id / "bundle", plain, symlinks=True)
            made.remove()
        return plain

    # Commands

    @contextmanager
    def with_oci_conf(self) -> Iterator[None]:
        """Start commands for the cluster that has an oci.conf."""
        before = self._environment
        self._environment = {**before, "SLURM_CONF": self._with_oci_conf}
        yield
        self._environment = before

    def popen(
        self,
        command: Sequence[str],
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command of the site's user."""
        return subprocess.Popen(
            command,
            env=self._environment,
            cwd=self.site.base,
            stdin=stdin,
            stdout=subprocess.DEVNULL if stdout is None else stdout,
            stderr=self._errors.pipe,
        )

    def take(self, what: str, *command: str, stdin: int = subprocess.DEVNULL) -> float:
        """Run a command, and note how long it took.

        Raises:
            SystemExit: It failed.
        """
        began = time.perf_counter()
        process = self.popen(command, stdin)
        cpu = self.succeeds(process)
        taken = time.perf_counter() - began
        if what:
            self.times.add(what, taken)
            self.times.add(what + CPU, cpu)
        return taken

    def succeeds(self, process: subprocess.Popen[bytes]) -> float:
        """Wait for a command; return the seconds of processor time that it took.

        Raises:
            SystemExit: It failed.
        """
        _, ended, usage = os.wait4(process.pid, 0)
        if status := os.waitstatus_to_exitcode(ended):
            raise SystemExit(f"bench: {process.args!r}: exit {status}: {self._errors.last()}")
        process.returncode = status
        return usage.ru_utime + usage.ru_stime

    # Containers

    def create(
        self,
        bundle: Path,
        what: str = "",
        scrun: Sequence[str] = (),
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> "Made":
        """Create a container.

        Args:
            bundle: Of what.
            what: The name of the measurement, or "".
            scrun: The command, if not the site's.
            stdin: The container's standard input.
            stdout: Its standard output.
        """
        self._numbers += 1
        command = scrun or self.site.command
        container = f"b{self._numbers}"
        pid_file = self._pids / container
        arguments = ["create", "--bundle", str(bundle), "--pid-file", str(pid_file), container]
        began = time.perf_counter()
        self.succeeds(self.popen([*command, *arguments], stdin, stdout))
        taken = time.perf_counter() - began
        if what:
            self.times.add(what, taken)
        return Made(self, container, int(pid_file.read_text()), tuple(command))

    def echo(self, script: str) -> Path:
        """Return a bundle that runs a shell script."""
        return self.site.bundle(self.site.config("sh", "-c", script))

    def in_container(self, *command: str) -> list[str]:
        """Return srun's words that run a program of its /bin in a container without scrun.

        Since 24.11 srun looks for a program without a path on this machine.
        """
        program, *arguments = command
        return ["srun", "--container", str(self.plain), f"/bin/{program}", *arguments]

    @contextmanager
    def job(self, what: str = "") -> Iterator[str]:
        """Hold a job by bare `salloc`.

        Args:
            what: The name under which is noted how long it took until its environment is
                readable, or "".
        """
        read, write = os.pipe()
        began = time.perf_counter()
        salloc = self.popen(
            ["salloc", "-Q", *SHELL_UNTIL_READ], stdin=subprocess.PIPE, stdout=write
        )
        os.close(write)
        with open(read, "rb") as lines:
            environment = dict(
                line.rstrip(b"\n").split(b"=", 1) for line in iter(lines.readline, b"\n")
            )
            if what:
                self.times.add(what, time.perf_counter() - began)
            try:
                yield environment[b"SLURM_JOB_ID"].decode()
            finally:
                assert salloc.stdin is not None
                salloc.stdin.close()
                salloc.wait()

    @contextmanager
    def fresh(self) -> Iterator[tuple[str, ...]]:
        """Give a scrun command with a root directory, and so a supervisor, of its own."""
        self._numbers += 1
        root = memory_root(f"{self.site.base.name}.{self._numbers}")
        yield (self.site.command[0], "--root", str(root))

        self.end_supervisor(str(root))

    def end_supervisor(self, root: str) -> None:
        """End the supervisors of a root directory, and remove that."""

        def supervisors() -> list[int]:
            return [
                process.pid
                for process in self.site.processes()
                if process.is_supervisor and root in process.argv
            ]

        for pid in supervisors():
            signal_quietly(pid, signal.SIGTERM)
        wait_while("the supervisor", supervisors)
        shutil.rmtree(root)


class ErrorOutput:
    """What all commands and containers say on standard error: a pipe, as engines give.

    It is one for all, and read all the time: a container holds it open.

    Attributes:
        pipe: The descriptor to write to.
    """

    def __init__(self) -> None:
        read, self.pipe = os.pipe()
        self._last = b""
        self._reader = threading.Thread(target=self._read, args=(read,), daemon=True)
        self._reader.start()

    def _read(self, read: int) -> None:
        with open(read, "rb", buffering=0) as lines:
            while more := lines.read(65536):
                self._last = (self._last + more)[-2000:]

    def last(self) -> str:
        """Return the end of it."""
        time.sleep(0.1)  # until the thread has read it
        return self._last.decode(errors="replace")

    def close(self) -> None:
        """Wait until nobody has it any more."""
        os.close(self.pipe)
        self._reader.join(5)


class Made:
    """A container that was created."""

    def __init__(self, stand: Stand, container: str, anchor: int, scrun: tuple[str, ...]) -> None:
        self.anchor = anchor
        self.id = container
        self._stand = stand
        self._scrun = scrun

    def take(self, what: str, command: str, *arguments: str) -> float:
        """Run one of scrun's commands with it; see `Stand.take`."""
        return self._stand.take(what, *self._scrun, command, self.id, *arguments)

    def runs(self) -> None:
        def running() -> bool:
            read, write = os.pipe()
            with open(read, "rb") as answer:
                self._stand.popen([*self._scrun, "state", self.id], stdout=write).wait()
                os.close(write)
                return bool(json.loads(answer.read())["status"] == "running")

        wait_until("it runs", running)
        time.sleep(0.15)  # `running` is said when the task is on its way

    def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        return os.waitstatus_to_exitcode(os.waitpid(self.anchor, 0)[1])

    def remove(self) -> None:
        """End and remove it, unmeasured."""
        self._stand.take("", *self._scrun, "delete", "--force", self.id)
        self.wait()


def memory_root(name: str) -> Path:
    """Return a root directory on a tmpfs, as $XDG_RUNTIME_DIR is one."""
    return _MEMORY / name


def become(user: User) -> None:
    """Give up being root, for good: what is measured is measured as its user."""
    if user.uid != os.geteuid():
        os.initgroups(user.name, user.gid)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
        # a changed uid makes a process undumpable, and its /proc unreadable to itself
        ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)


def calls(crun: str, bundle: str) -> list[str]:
    """Return the command of a step that makes a container before it is started."""
    return [INTERPRETER[0], "-I", "-S", "-c", _CALLS, crun, bundle]
