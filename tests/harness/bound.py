"""A cluster that binds and limits what it runs, as most do: the tests' own does neither.

Its nodes have the machine's processors, each all of them. Slurm gives a job its processors, memory
and GPUs, and a task its part, by affinity and, where the machine's hierarchies of cgroup v1 can be
mounted, by control groups.
"""

import contextlib
import functools
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.harness import cluster, processes

GPUS = 2
_CONTROLLERS = {"cpuset": "Cores", "memory": "RAMSpace", "devices": "Devices"}
_MAJOR = 60  # for local use: no driver has it, so that only a control group says EPERM


class Bound(NamedTuple):
    """What such a cluster has.

    Attributes:
        hierarchies: Where its control groups are, by their controllers.
        gpus: The devices that Slurm takes for each node's GPUs: nobody drives them.
    """

    hierarchies: Mapping[str, Path]
    gpus: Sequence[Path]


@contextmanager
def bound() -> Iterator[Bound]:
    """Make the tests' cluster one."""
    with contextlib.ExitStack() as stack:
        # not below /run: each node may have its own there, so containers get none of it
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpus-", dir="/tmp")))
        folder.chmod(0o755)
        gpus = [folder / f"gpu{index}" for index in range(GPUS)]
        for index, path in enumerate(gpus):
            os.mknod(path, stat.S_IFCHR, os.makedev(_MAJOR, index))
            path.chmod(0o666)
        controllers = [name for name in _CONTROLLERS if stack.enter_context(_mounted(name))]
        gres = "".join(f"Name=gpu File={path}\n" for path in gpus)
        constraints = "".join(f"Constrain{_CONTROLLERS[name]}=yes\n" for name in controllers)
        for name, more in (("gres.conf", gres), ("cgroup.conf", constraints)):
            with_more = functools.partial(_with_more, more)
            stack.enter_context(cluster.changes_of(name).changed(with_more))
        with_binding = functools.partial(_changed, controllers)
        stack.enter_context(cluster.reconfigured(with_binding))
        yield Bound({name: _place(name) for name in controllers}, gpus)


def _directory() -> Path:
    return Path(cluster.slurm_conf()).parents[1]


def _place(controller: str) -> Path:
    return _directory() / "cgroup" / controller


def _with_more(more: str, text: str | None) -> str:
    return (text or "") + more


def _changed(controllers: Sequence[str], text: str | None) -> str:
    """Return a slurm.conf with binding, limits and GPUs."""
    conf = text or ""
    shape = re.findall(r"\b(?:CPUs|Boards|\w+Per\w+)=\d+", cluster.slurm("slurmd", "-C"))
    plugins = "task/cgroup,task/affinity" if controllers else "task/affinity"
    for pattern, text in (
        (r"(?<=^TaskPlugin=).*", plugins),
        (r"(?<=^SelectTypeParameters=).*", "CR_Core_Memory"),
        (r"(?<=^NodeName=)(.*)\bCPUs=\d+(.*)", rf"\1{' '.join(shape)}\2 Gres=gpu:{GPUS}"),
    ):
        conf, found = re.subn(pattern, text, conf, flags=re.MULTILINE)
        assert found, pattern
    return f"{conf}GresTypes=gpu\nDefMemPerCPU=256\n"


@contextmanager
def _mounted(controller: str) -> Iterator[bool]:
    """Have the cluster's branch of a hierarchy, as `tools/slurm-cluster` does it for one.

    Yields:
        Whether this machine has it: where cgroup v2 uses the controller, v1 does not.
    """
    place = _place(controller)
    place.mkdir(parents=True)
    mount = ("mount", "-t", "cgroup", "-o", controller, controller, str(place))
    if subprocess.run(mount, stderr=subprocess.DEVNULL, check=False).returncode:
        place.rmdir()
        yield False
        return
    branch = place / f"slurm-cluster{str(_directory()).replace('/', '-')}"
    branch.mkdir()
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (place / name).exists():
            (branch / name).write_text((place / name).read_text())
    processes.run("mount", "--bind", str(branch), str(place))
    try:
        yield True
    finally:
        processes.run("umount", str(place))  # the branch: below it is the whole
        for folder, _, _ in os.walk(branch, topdown=False):
            Path(folder).rmdir()
        processes.run("umount", str(place))
        place.rmdir()
