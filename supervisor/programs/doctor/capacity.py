"""How many more containers, each with a job of its own, this machine can hold for the user.

What each takes here is measured by a test. What containers in one job share, that of a pool
or a pod, counts once.
"""

import contextlib
import os
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from scrun.core.errors import SettingsError
from scrun.core.paths import real_id
from scrun.settings.slurm.versions import OLDEST, SlurmVersion, features
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.programs.doctor.call import (
    Check,
    DoctorCall,
    one,
    slurm_version,
    without_slurm,
)
from scrun.supervisor.programs.doctor.cluster import conf_of
from scrun.supervisor.programs.doctor.findings import Finding, ok, warn
from scrun.supervisor.programs.doctor.machine import podman_settings

PORTS = 4  # on which salloc and srun listen
FILES = 30  # of the supervisor
THREADS = 4  # the anchor, salloc's shell, srun's second process, conmon; and `tool_threads`
MEMORY = 6 << 20  # bytes (PSS), and what the supervisor has for it
REQUESTS = 5  # of slurmctld

_OF_SUPERVISOR = 64  # descriptors that it has without containers, and to spare
_FEW = 10
_NUM_LOCKS = 2048  # containers.conf(5)
_RATE = {"rl_refill_rate": 2, "rl_refill_period": 1}  # slurm.conf(5)


class Wall(msgspec.Struct, frozen=True, order=True):
    """What ends: its name and size, and the number of containers for which it is enough."""

    containers: int
    name: str
    remedy: str


class Host(msgspec.Struct, frozen=True):
    """The room on a machine; None: no limit, or not known.

    Attributes:
        ports: The first and last port that srun may listen on; slurm.conf may name them.
        threads: How many a container takes.
        listening: How many ports are in use.
        files: Descriptors that a supervisor may have.
        processes: Threads that the user may have beside those that there are (ulimit -u).
        tasks: Those of the cgroups that this process is in, and the cgroup with the fewest.
        locks: Those of podman.
        begin: Containers that slurmctld lets begin in an hour.
    """

    ports: tuple[int, int]
    threads: int
    listening: int = 0
    srun_ports: bool = False
    files: int | None = None
    processes: int | None = None
    tasks: tuple[int, str] | None = None
    memory: int | None = None
    locks: int | None = None
    begin: int | None = None


def walls(host: Host) -> list[Wall]:
    """Return what ends, the first first. Pure."""
    first, last = host.ports
    ranges = f"{first}-{last}"
    found = []

    def add(left: int | None, each: int, name: str, remedy: str) -> None:
        if left is not None:
            found.append(Wall(max(0, left) // each, name, remedy))

    named = (f"ports (SrunPortRange={ranges})", "a larger SrunPortRange in slurm.conf")
    if not host.srun_ports:
        range_of_kernel = "sysctl net.ipv4.ip_local_port_range='1024 65535'"
        named = (f"ports ({ranges})", range_of_kernel)
    add(last - first + 1 - host.listening, PORTS, *named)
    files = None if host.files is None else host.files - _OF_SUPERVISOR
    add(files, FILES, f"open files ({host.files})", "a higher hard limit of nofile in limits.conf")
    add(host.processes, host.threads, "processes (ulimit -u)", "a higher nproc in limits.conf")
    if host.tasks is not None:
        left, cgroup = host.tasks
        add(left, host.threads, f"tasks of {cgroup}", "`systemctl set-property UNIT TasksMax=N`")
    add(host.memory, MEMORY, "memory", "another submit host for a part of them")
    locks = "num_locks in [engine] of containers.conf, then `podman system renumber`"
    add(host.locks, 1, f"podman's locks ({host.locks})", locks)
    return sorted(found)


def judge_capacity(host: Host) -> Finding:
    """Judge how many containers there can be, and how fast they may begin. Pure."""
    wall = walls(host)[0]
    text = f"room for about {wall.containers} more containers, each with a job of its own; the "
    text += f"first limit is {wall.name}"
    if host.begin is not None:
        text += f"; slurmctld lets {host.begin} begin in an hour (rl_enable)"
    remedy = f"{wall.remedy}; or several containers in one job: `scrun pool start`, or a pod"
    return warn(text, remedy) if wall.containers < _FEW else ok(f"{text}. For more: {remedy}")


def begin_in_an_hour(conf: Mapping[str, str]) -> int | None:
    """Return how many containers a slurm.conf(5) lets a user begin; None: any number."""
    words = [word.strip().lower() for word in conf.get("slurmctldparameters", "").split(",")]
    if "rl_enable" not in words:
        return None
    numbers = dict(_RATE)
    for word in words:
        name, _, value = word.partition("=")
        if name in numbers and value.isdecimal():
            numbers[name] = int(value)
    return numbers["rl_refill_rate"] * 3600 // max(1, numbers["rl_refill_period"]) // REQUESTS


def port_range(text: str) -> tuple[int, int] | None:
    """Parse `60001-63000`, or the kernel's `32768 60999`; None for other text."""
    found = re.fullmatch(r"\s*(\d{1,5})[\s-]+(\d{1,5})\s*", text, re.ASCII)
    return (int(found[1]), int(found[2])) if found and int(found[1]) <= int(found[2]) else None


def count_listening(tables: str, ports: tuple[int, int]) -> int:
    """Count the ports of a range in /proc/net/tcp and tcp6 on which somebody listens."""
    rows = (row.split()[:4] for row in tables.splitlines() if row.count(":") > 2)
    inside = (int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A")
    return len({port for port in inside if ports[0] <= port <= ports[1]})


def _look(call: DoctorCall, threads: int, conf: Mapping[str, str]) -> Host:
    named = port_range(conf.get("srunportrange", ""))
    ports = named or port_range(_text("/proc/sys/net/ipv4/ip_local_port_range")) or (32768, 60999)
    return Host(
        ports=ports,
        threads=threads,
        listening=count_listening(_text("/proc/net/tcp") + _text("/proc/net/tcp6"), ports),
        srun_ports=named is not None,
        files=_limit(resource.RLIMIT_NOFILE, hard=True),
        processes=_processes_left(),
        tasks=min(_cgroups("pids"), default=None),
        memory=_memory_left(),
        locks=_locks(call),
        begin=None if real_id("uid") == 0 else begin_in_an_hour(conf),
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _limit(kind: int, *, hard: bool) -> int | None:
    found = resource.getrlimit(kind)[hard]
    return None if found == resource.RLIM_INFINITY else found


def _processes_left() -> int | None:
    """Return how many threads the user may have beside those that there are; root any number."""
    limit, uid = _limit(resource.RLIMIT_NPROC, hard=False), os.geteuid()
    if limit is None or real_id("uid") == 0:
        return None
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it has ended
                if entry.stat().st_uid == uid:
                    limit -= len(os.listdir(f"{entry.path}/task"))
    return limit


def _cgroups(controller: str) -> Iterator[tuple[int, str]]:
    """Yield the room in each cgroup that this process is in, and the cgroup's name."""
    for line in _text("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = f"/sys/fs/cgroup/{controller}" if controllers else "/sys/fs/cgroup"
        while path.strip("/"):
            file = f"{top}{path}/{controller}"
            most, now = _text(f"{file}.max").strip(), _text(f"{file}.current").strip()
            if most.isdecimal() and now.isdecimal():
                yield int(most) - int(now), os.path.basename(path)
            path = os.path.dirname(path)


def _memory_left() -> int | None:
    available = re.search(r"^MemAvailable: +(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    machine = [int(available[1]) << 10] if available else []
    return min([*machine, *(left for left, _ in _cgroups("memory"))], default=None)


def _locks(call: DoctorCall) -> int | None:
    if call.which("podman") is None:
        return None
    with contextlib.suppress(SettingsError):  # the check of podman reports this
        number = podman_settings(call).get("num_locks", _NUM_LOCKS)
        return number if isinstance(number, int) else None
    return None


async def _capacity(call: DoctorCall) -> Finding:
    version = await slurm_version(call) or SlurmVersion(*OLDEST, 0)
    threads = THREADS + features(version).tool_threads
    conf = await conf_of(call)
    return judge_capacity(await in_thread(_look, call, threads, conf, abandon=True))


CHECKS = (Check(("capacity",), one(_capacity), spared=without_slurm, status="warn"),)
