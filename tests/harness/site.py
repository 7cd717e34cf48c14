"""A place to run containers: one user, one engine, one root directory, one supervisor."""

import contextlib
import itertools
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scrun.core.paths import OWN_LOG
from tests.harness import cluster
from tests.harness.bundle import make_config, make_rootfs, map_user, write_bundle
from tests.harness.life import TIMEOUT, Life
from tests.harness.processes import Process, processes, processes_of, signal_quietly
from tests.harness.program import run_program
from tests.harness.service import Service
from tests.harness.users import User
from tests.harness.wait import TooLateError, wait_while

_COMPLETING = 15

CGROUP2 = (
    *("unshare", "--mount", "--propagation", "slave", "sh", "-c"),
    *('mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"', "sh"),
)
"""Words before a command: with pure cgroup v2. crun may mind this machine's cgroups otherwise."""
_CGROUP1 = """
mount -t tmpfs cgroup /sys/fs/cgroup
for kind in $(sed -n 's/^\\([a-z]*\\)\t[1-9].*/\\1/p' /proc/cgroups); do
    mkdir "/sys/fs/cgroup/$kind" && mount -t cgroup -o "$kind" "$kind" "/sys/fs/cgroup/$kind"
done
exec "$@"
"""


def with_controllers(needed: str) -> list[str]:
    """Return words before a command that needs a controller.

    Where cgroup v2 lacks it, because it is in a hierarchy of v1, the command gets those.
    """
    there = Path("/sys/fs/cgroup/cgroup.controllers")
    if not there.exists() or needed in there.read_text().split():
        return []
    return ["unshare", "--mount", "sh", "-c", _CGROUP1, "sh"]


def scrun_binary() -> str:
    found = os.environ.get("SCRUN_BIN") or str(Path(sys.executable).with_name("scrun"))
    assert os.access(found, os.X_OK), f"{found} is missing: run tools/setup, or set SCRUN_BIN"
    return found


def with_launch(settings: str) -> str:
    """Settings of scrun.toml, with the launch that `tools/test --launch` asks for."""
    launch = os.environ.get("SCRUN_TEST_LAUNCH")
    if not launch or re.search("^launch *=", settings, re.MULTILINE):
        return settings
    line = f'launch = "{launch}"\n'
    if "[slurm]\n" in settings:
        return settings.replace("[slurm]\n", f"[slurm]\n{line}", 1)
    return f"{settings}\n[slurm]\n{line}"


class Site:
    """Where containers are run; everything of it lies in, or mentions, one short directory.

    Attributes:
        engine: "slurm" or "local".
        base: That directory.
        root: What `--root` says.
        rootfs: A root file system of busybox, owned by the user.
        command: How scrun is called.
        create_timeout: Seconds that `create` waits for its job; many, where that is not tested.
        environment: Its environment.
    """

    def __init__(
        self,
        engine: str,
        user: User,
        settings: str = "idle_timeout = 20\n",
        binary: str | None = None,
        create_timeout: float = 60,
        *,
        site_commands: bool = False,
        shared: bool = False,
    ) -> None:
        """Make it.

        Args:
            engine: "slurm" or "local".
            user: Who calls scrun.
            settings: More of scrun.toml.
            binary: What is called, if it is not what is installed.
            create_timeout: See the class.
            site_commands: Whether the cluster's oci.conf counts, where the settings ask for a
                shim; else there is none as long as the place is there.
            shared: Whether it is that of several tests, each of which enters `cluster_for_it`.
        """
        binary = binary or scrun_binary()
        self.engine = engine
        self.user = user
        self.create_timeout = create_timeout
        # podman takes it for part of an image's name, in which `-_` and `_/` may not be
        self.base = Path(f"/tmp/sc-{secrets.token_hex(4)}")
        self._older = frozenset(os.listdir("/proc"))
        self.base.mkdir()
        self.base.chmod(0o755)
        self.root = self.base / "r"
        self.rootfs = self.base / "rootfs"
        self._lives: list[Life] = []
        self._numbers = itertools.count(1)
        (self.base / "l").mkdir()
        (self.base / "b").mkdir()
        patience = f"create_timeout = {create_timeout}\n"
        self._settings = with_launch(f'engine = "{engine}"\n{patience}{settings}')
        self._fill()
        self._stack = contextlib.ExitStack()
        self._shims_alone = (
            engine == "slurm" and 'launch = "shim"' in settings and not site_commands
        )
        if not shared:
            self._stack.enter_context(self.cluster_for_it())
        self.command = [binary, "--root", str(self.root)]
        self.environment = {**user.environment, "SCRUN_CONFIG": f"{self.base}/scrun.toml"}
        self.blocked = self.base / "blocked"
        self.environment["SCRUN_WATCHDOG"] = str(self.blocked)
        if engine == "slurm":
            self.environment["SLURM_CONF"] = cluster.slurm_conf()
            self.environment["SCRUN_JOB_NAME"] = self.base.name  # to find what is left
        self._called = ([*self.command], {**self.environment})

    def cluster_for_it(self) -> contextlib.AbstractContextManager[None]:
        """The cluster as its settings want it."""
        return cluster.without_oci_conf() if self._shims_alone else contextlib.nullcontext()

    @property
    def creates_first(self) -> bool:
        """Whether `create` has the runtime create the container."""
        # the cluster's oci.conf has RunTimeRun, which does both
        return self.engine == "local" or (self.by_shim and not cluster.oci_conf().exists())

    @property
    def by_shim(self) -> bool:
        """Whether a shim makes its containers."""
        return self.engine == "slurm" and 'launch = "container"' not in self._settings

    def _fill(self) -> None:
        make_rootfs(self.rootfs)
        (self.base / "scrun.toml").write_text(self._settings)
        self.user.give(self.base)

    # Commands

    def popen(
        self, *arguments: str, stdio: int = subprocess.PIPE, **how: Any
    ) -> "subprocess.Popen[bytes]":
        """Start scrun, in a session of its own.

        Args:
            arguments: Its command line.
            stdio: Its standard input, output and error.
            how: What differs from that, as for `subprocess.Popen`.
        """
        usual: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), stdio)
        usual |= {"env": self.environment, "cwd": self.base, "start_new_session": True}
        return subprocess.Popen([*self.user.prefix, *self.command, *arguments], **{**usual, **how})

    def run(
        self, *arguments: str, environment: dict[str, str] | None = None, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Call scrun; `how` is that of `run_program`."""
        usual = {
            "env": {**self.environment, **(environment or {})},
            "cwd": self.base,
            "timeout": TIMEOUT,
        }
        return run_program([*self.user.prefix, *self.command, *arguments], **{**usual, **how})

    def must(self, *arguments: str, timeout: float = TIMEOUT) -> str:
        """Call scrun, successfully, and return what it printed."""
        done = self.run(*arguments, timeout=timeout)
        assert done.returncode == 0, f"{arguments}: exit {done.returncode}: {done.stderr}"
        assert done.stderr == "", f"{arguments}: {done.stderr}"
        return done.stdout

    def fails(self, *arguments: str, timeout: float = TIMEOUT) -> str:
        """Call scrun, which refuses with exit status 1 and one line on stderr; return that."""
        done = self.run(*arguments, timeout=timeout)
        assert done.returncode == 1, f"{arguments}: exit {done.returncode}: {done.stderr}"
        assert done.stdout == "", f"{arguments}: {done.stdout}"
        assert done.stderr.count("\n") == 1, f"{arguments}: not one line: {done.stderr!r}"
        return done.stderr

    def jobs(self) -> list[str]:
        """The jobs of its containers: number, state and name of each."""
        return cluster.jobs(self.user, self.base.name)

    # Containers

    def config(self, *args: str, terminal: bool = False) -> dict[str, Any]:
        config = make_config(args, str(self.rootfs), terminal=terminal)
        config["process"]["env"].append(f"SITE={self.base}")  # to find what is left
        return config

    def mapped(self, *args: str) -> dict[str, Any]:
        """Return a config.json that this user's runtime takes as it is, with nobody to fit it."""
        config = self.config(*args)
        config["root"]["readonly"] = False
        if not self.user.uid:
            return config
        map_user(config, self.user)
        return config

    def bundle(self, config: object) -> Path:
        path = write_bundle(self.base / "b" / str(next(self._numbers)), config)
        self.user.give(path)
        return path

    def bundle_of(self, *args: str, terminal: bool = False) -> str:
        """Make a bundle of a container that runs `args`; return its path."""
        return str(self.bundle(self.config(*args, terminal=terminal)))

    def life(
        self,
        *args: str,
        config: dict[str, Any] | None = None,
        bundle: Path | None = None,
        container: str | None = None,
        terminal: bool = False,
        **how: Any,
    ) -> Life:
        """Begin to create a container, and return at once; `created` waits for it."""
        if bundle is None:
            bundle = self.bundle(config or self.config(*args, terminal=terminal))
        name = container or f"c{next(self._numbers)}"
        life = Life(self, name, bundle, terminal=terminal, **how)
        self._lives.append(life)
        return life

    def shell(self, script: str, **how: Any) -> Life:
        """Begin to create a container that runs a shell script."""
        return self.life("sh", "-c", script, **how)

    # What is left

    def processes(self) -> list[Process]:
        """All processes that belong to this place; none of those is older than it."""
        return processes_of(str(self.base), self._older)

    def stopped_supervisor(self) -> int:
        """Stop the one supervisor; return its pid."""
        [supervisor] = self.supervisors()
        os.kill(supervisor, signal.SIGSTOP)
        return supervisor

    def supervisors(self) -> list[int]:
        """The pids of its supervisors; none of their children, even one that has just ended."""
        base = str(self.base)
        found = {
            process.pid
            for process in processes("supervisor")
            if process.is_supervisor and process.mentions(base)
        }
        return [pid for pid in found if _parent(pid) not in (None, *found)]

    def kill_supervisors(self) -> None:
        """SIGKILL for its supervisors and their keepers: nobody adopts what they had."""
        while found := self.supervisors() + self.keepers():
            for pid in self.supervisors():  # else there would be another keeper
                signal_quietly(pid, signal.SIGSTOP)
            for pid in (*self.keepers(), *found):
                signal_quietly(pid)
            wait_while("the killed", lambda: {*found} & {*self.supervisors()})

    def keepers(self) -> list[int]:
        """The pids of its keepers."""
        return [process.pid for process in self.processes() if process.is_keeper]

    def leftovers(self) -> list[str]:
        """What should not be there when no container is."""
        jobs = self.jobs() if self.engine == "slurm" else []
        ending = {f"SLURM_JOB_ID={job.split()[0]}" for job in jobs if " COMPLETING " in job}
        found = [
            f"{process} of a COMPLETING job" if ending & {*process.environment} else str(process)
            for process in self.processes()
            if not (process.is_supervisor or process.is_keeper) and process.pid != os.getpid()
        ]
        return [*found, *self._kept(), *(f"job {job}" for job in jobs)]

    def _kept(self) -> list[str]:
        """Records and mounts, which are looked at more cheaply than the rest."""
        found = []
        if self.root.exists():
            found += [entry.name for entry in self.root.iterdir() if entry.name[0] != "@"]
        with open("/proc/self/mountinfo") as mounts:
            found += [line.rstrip() for line in mounts if str(self.base) in line]
        return found

    def settle(self, timeout: float = 5, completing: float = _COMPLETING) -> None:
        """Hold that nothing is left, without helping.

        A job that is over may be `completing` for longer: what has been told to end while it
        was being launched Slurm kills after its KillWait.
        """
        seen: list[str] = []

        def left() -> list[str]:
            seen[:] = self.leftovers()
            return [thing for thing in seen if " COMPLETING " not in thing]

        deadline = time.monotonic() + timeout
        with contextlib.suppress(TooLateError):  # all that is left is told below
            wait_while("records and mounts", self._kept, timeout)
        wait_while("what should be gone", left, deadline - time.monotonic())
        if seen:
            wait_while("what should be gone", self.leftovers, completing)

    def clear(self) -> None:
        """After a test: end what it has left, then hold that nothing is left."""
        with contextlib.suppress(FileNotFoundError):  # pytest shows it if the test has failed
            print((self.root / OWN_LOG).read_text(errors="replace"))
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(self.settle, 10)
                while self._lives:
                    stack.callback(self._lives.pop().end)
        except BaseException:
            self._sweep()
            raise
        self._empty()

    def _sweep(self) -> None:
        """Remove by force what leaked, for the sake of the tests that follow."""
        for process in self.processes():
            if not (process.is_supervisor or process.is_keeper):
                signal_quietly(process.pid)
        if self.engine == "slurm":
            cluster.cancel_all(self.user, self.base.name)
        self._empty()
        if self.root.exists():
            for entry in self.root.iterdir():
                if entry.name[0] != "@":
                    shutil.rmtree(entry, ignore_errors=True)

    def _empty(self) -> None:
        for place in (self.base / "b", self.base / "l"):
            for entry in place.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry, ignore_errors=True)
                else:
                    entry.unlink()

    def renew(self) -> None:
        """Clear it after one of several tests: for the next one it is new, but its supervisor."""
        self.clear()
        blocked = self.blocked_loops()
        for entry in self.base.iterdir():
            if entry.is_symlink() or not entry.is_dir():
                entry.unlink()
            elif entry.name not in ("r", "l", "b"):
                shutil.rmtree(entry)
        command, environment = self._called
        self.command, self.environment = [*command], {**environment}
        self._fill()
        _hold_that_none(blocked)

    def finish(self) -> None:
        """Clear it after its only test, and close it."""
        try:
            self.clear()
        finally:
            self._close()

    def close(self) -> None:
        """End what is left and its supervisors, remove everything; see also `finish`."""
        self._sweep()
        self._close()

    def _close(self) -> None:
        """End its supervisors, remove everything, and hold that no event loop was blocked."""
        blocked = self.blocked_loops()
        told: set[int] = set()

        def told_to_end() -> list[int]:
            """Tell each supervisor once: a keeper may call another one after the first look."""
            found = self.supervisors()
            for pid in {*found} - told:
                signal_quietly(pid, signal.SIGINT)
            told.update(found)
            return found

        try:
            wait_while("supervisors after SIGINT", told_to_end)
        finally:
            self._stack.close()
            for pid in self.supervisors():
                signal_quietly(pid)
            shutil.rmtree(self.base, ignore_errors=True)
        _hold_that_none(blocked)

    def blocked_loops(self) -> list[str]:
        """Return the stack of each turn of a supervisor's event loop that waited for something.

        Records do not count: without their file system a supervisor can do nothing, and here that
        is a disk that all tests write to.
        """
        lines = self.blocked.read_text().splitlines() if self.blocked.exists() else []
        stacks = ["".join(json.loads(line)["stack"]) for line in lines]
        of_records = ("in write_record", "in make_record")
        return [stack for stack in stacks if not any(map(stack.__contains__, of_records))]


def _hold_that_none(blocked: list[str]) -> None:
    assert not blocked, "event loops were blocked:\n" + "\n".join(blocked)


def unit(site: Site, script: str, starts: int = 1) -> Service:
    """A service of Type=forking whose ExecStart= is `scrun run --detach --pid-file`."""
    pid_file = site.base / "b" / "unit.pid"
    bundle = site.bundle_of("sh", "-c", script)
    scrun = shlex.join(site.command)
    return Service(
        site.user.prefix,
        site.environment,
        site.base / "b",
        pid_file=pid_file,
        start=f"{scrun} run --detach --pid-file {pid_file} --bundle {bundle} unit",
        stop_post=f"{scrun} delete --force unit",
        starts=starts,
    )


def _parent(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[1])


def whole_life(site: Site, args: Sequence[str] = ("true",)) -> int:
    """Create, start, wait and delete; return the anchor's exit status."""
    life = site.life(*args).created(120)
    life.start(120)
    status = life.wait(120)
    life.delete(120)
    return status


def several_lives(site: Site) -> None:
    """Standard input, output and error, exit status, a signal, and an end by force."""
    life = site.shell("cat; echo error >&2; exit 7", stdin="pipe").created().start()
    os.write(life.stdin, b"by oci.conf\n")
    life.close_stdin()
    assert life.wait() == 7
    assert (life.output(), life.errors()) == ("by oci.conf\n", "error\n")
    life.delete()
    trapping = site.shell("trap 'exit 9' USR1; echo up; while :; do sleep 0.1; done")
    trapping.created().start().says("up")
    assert trapping.status == "running"
    trapping.kill("USR1")
    assert trapping.wait() == 9
    assert trapping.status == "stopped"
    trapping.delete()
    running = site.shell("echo up; sleep 600").created().start().says("up")
    running.delete()
    assert running.wait() != 0
    site.settle()
