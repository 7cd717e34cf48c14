"""Counts what is left: jobs, processes, sockets, directories, mounts, descriptors."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from scrun.core.paths import LOOKED, OWN_LOG
from scrun.supervisor.core.own_key import NAME as OWN_KEY
from tests.harness.processes import Process, is_anchor, processes
from tests.harness.shim import FOLDERS
from tests.harness.versions import slurm_version
from tests.stress.chaos.testbed import Testbed
from tests.stress.chaos.victims import children_of, listener, words_of

_SOCKETS = "sockets"
HALF_MADE = "half-made state of crun on a node"
"""What crun leaves when its step is killed in the moment in which it makes it: a directory without
a container. slurmstepd (22.05) deletes only what `crun state` knows."""

FORGOTTEN = "jobs whose end a killed slurmctld has forgotten"
"""slurmctld saves its state some seconds later, so one that is killed believes again in jobs that
were given back just before."""
BY_PODMAN = "stopped containers that podman did not delete after the death of its conmon"
GIVEN_TWICE = "containers whose job has a number that a killed slurmctld had given before"
"""It saves the last number some seconds later, too. A node then refuses such a job's step, or has
the runtime's state of the first one still; and who gives the first one back cancels the second."""
NOT_MADE = "containers whose step a node could not make, as slurmstepd lost its cgroup"
"""24.11 with cgroup v1: the directory of the job is away when the task is to be put into it, now
and then (1 in 5,000 containers), when other jobs of the user come and go. The container ends with
125 and srun's words."""
NOT_OURS = {HALF_MADE, FORGOTTEN, BY_PODMAN, GIVEN_TWICE, NOT_MADE}
"""What is left, or lost, by others, whatever scrun does."""

_ERROR = re.compile(
    r'msg="(\w+(?:Error|Exception|Group): '
    r"(?!\[Errno (?:11|12|24|28)\]|can't start new thread|'popitem\(\): dictionary is empty)"
    r'.*)"$',
    re.MULTILINE,
)
"""The end of a traceback, but for those of a want of processes, memory, descriptors or space: two
of them are trio's when there is no idle thread, and no new one."""

_NUMBER = re.compile(r"the job is (\d+)")

OF_SHIMS = "directories of shims"
"""The next shim of the user on that node removes them."""

Left = dict[str, list[str]]
"""What is left, by its kind."""


def given_twice(conf: str, log: str) -> str:
    """Return the number of a container's job if slurmctld has given it more than once, or "".

    Args:
        conf: The slurm.conf of a cluster of `tools/slurm-cluster`.
        log: The container's log.
    """
    controller = Path(conf).parents[1] / "log" / "slurmctld.log"
    if not (found := _NUMBER.search(log)) or not controller.exists():
        return ""
    given = f"_slurm_rpc_allocate_resources JobId={found[1]} "
    return found[1] if controller.read_text(errors="replace").count(given) > 1 else ""


def not_made(notes: str, log: str) -> bool:
    """Tell whether a node could not make a container's step.

    Args:
        notes: What was seen of the container, with its standard error.
        log: The container's log.
    """
    return "error: proctrack_g_add: " in notes and "launch failed: Slurmd could not" in log


def look(testbeds: list[Testbed], jobs: list[str], forgotten: set[str], agents: str = "") -> Left:
    """Return what should not be there when no container goes on; supervisors may be.

    Args:
        testbeds: Where the containers ran.
        jobs: The cluster's jobs: number, state and name of each.
        forgotten: The names of jobs that slurmctld may believe in again.
        agents: The program that calls commands in jobs, as long as it may run.
    """
    left: Left = {}

    def add(kind: str, what: str) -> None:
        if what not in left.setdefault(kind, []):
            left[kind].append(what)

    bases = [str(testbed.site.base) for testbed in testbeds]
    roots = [str(testbed.site.root) for testbed in testbeds]
    parents = [os.getpid()]
    for process in processes():
        base = next((base for base in bases if process.mentions(base)), None)
        pause = process.argv[0] == "catatonit"  # holds podman's user namespace, until it is told
        stays = process.is_supervisor or process.is_keeper or pause
        if agents and agents in process.argv:
            parents.append(process.pid)
            stays = True
        ours = (base is not None or _connects(process, bases)) and not stays
        if ours or any(_is_of_a_shim(process, testbed) for testbed in testbeds):
            add("processes", str(process))
    for pid in (pid for parent in parents for pid in children_of(parent)):
        if is_anchor(words_of(pid)):
            add("processes", f"{pid}: an anchor")
    for job in jobs:
        if any(os.path.basename(base) in job for base in bases):
            add(FORGOTTEN if job.split()[-1] in forgotten else "jobs", job)
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            path = line.split()[4]
            if path not in roots and any(os.path.basename(base) in line for base in bases):
                add("mounts", line.rstrip())
    for testbed in testbeds:
        for kind, path in _directories(testbed):
            add(kind, path)
        for path in of_shims(testbed):
            add(OF_SHIMS, path)
    return left


def _connects(process: Process, bases: list[str]) -> bool:
    """Tell whether it connects the network of a container of ours on its node."""
    if os.path.basename(process.argv[0]) not in ("slirp4netns", "pasta", "pasta.avx2"):
        return False
    names = tuple(f"SLURM_JOB_NAME={os.path.basename(base)}." for base in bases)
    return any(item.startswith(names) for item in process.environment)


def of_shims(testbed: Testbed) -> list[str]:
    """Return the directories of shims on the nodes, if no other run of root's can have some."""
    uid = testbed.site.user.uid
    own = uid and testbed.launch == "shim"
    found = (path for folder in FOLDERS for path in Path(folder).glob(f"scrun-{uid}-*"))
    return [str(path) for path in found] if own else []


def _is_of_a_shim(process: Process, testbed: Testbed) -> bool:
    if testbed.launch != "shim":
        return False
    of_the_user = f"SLURM_JOB_USER={testbed.site.user.name}" in process.environment
    begins = tuple(f"{folder}/scrun-{testbed.site.user.uid}-" for folder in FOLDERS)
    return (of_the_user and process.has_shim) or any(
        word.startswith(begins) for word in process.argv
    )


def dead_supervisors(testbed: Testbed) -> list[str]:
    """Return the names that killed supervisors have left, until the next one goes."""
    return [path for kind, path in _directories(testbed) if kind == _SOCKETS]


def _directories(testbed: Testbed) -> list[tuple[str, str]]:
    """Return what is left on disk."""
    found = []
    for name in os.listdir(testbed.root) if os.path.exists(testbed.root) else []:
        path = f"{testbed.root}/{name}"
        if name[0] != "@":
            found.append((BY_PODMAN if _not_deleted(testbed, name) else "records", path))
        elif name.startswith("@tmp"):
            found.append(("half-made records", path))
        elif os.path.exists(f"{path}.lock") and not listener(path):
            found.append((_SOCKETS, path))
    found += [("staged bundles", str(path)) for path in testbed.scratch.glob("*")]
    if testbed.engine == "slurm" and slurm_version().deletes_killed:
        user = testbed.cluster / "oci" / testbed.site.user.name
        name = testbed.site.base.name
        found += [
            ("runtime's state", str(path)) for path in user.glob("*/status") if _has(path, name)
        ]
    return found


def _not_deleted(testbed: Testbed, name: str) -> bool:
    """Tell whether podman has forgotten a container of its that had ended by itself."""
    own = testbed.root != str(testbed.site.root)
    return own and testbed.read_record(f"{testbed.root}/{name}").get("status") == "stopped"


def _has(path: Path, text: str) -> bool:
    try:
        return text in path.read_text(errors="replace")
    except FileNotFoundError:
        return False


def half_made(testbeds: Iterable[Testbed]) -> list[str]:
    """Return the directories of crun's on the nodes that have no container."""
    return [
        str(entry)
        for testbed in testbeds
        if testbed.engine == "slurm"
        for entry in (testbed.cluster / "oci" / testbed.site.user.name).glob("*")
        if not (entry / "status").exists()
    ]


def descriptors(testbed: Testbed) -> dict[int, list[str]]:
    """Return what each supervisor has open, but for what comes and goes with its threads."""
    found = {}
    for pid in testbed.site.supervisors():
        links = []
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                links.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
            except OSError:
                continue
        found[pid] = sorted(links)
    return found


def remains(testbed: Testbed) -> list[str]:
    """Return what is in the root directory when the last supervisor is gone: nothing."""
    return [name for name in left_in(testbed.root) if not _not_deleted(testbed, name)]


def left_in(root: str) -> list[str]:
    """Return what a supervisor has left in its root directory, or in any other one.

    The mark of who has looked for the dead stays, the key of the root directory, and in the
    default one what engines' commands know of the settings. The supervisors' log stays when there
    is something in it: what was refused them may be told there, but no fault of scrun's own.
    """
    names = sorted(os.listdir(root)) if os.path.exists(root) else []
    try:
        text = Path(root, OWN_LOG).read_text(errors="replace")
    except FileNotFoundError:  # or a supervisor that goes removes it just now
        text = ""
    stays = (LOOKED, OWN_KEY, OWN_LOG)
    left = [name for name in names if name not in stays and not name.startswith("@settings-")]
    return left + [f"{OWN_LOG}: {error}" for error in _ERROR.findall(text)]
