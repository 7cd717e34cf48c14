"""This machine without what its users and its cluster have set up.

scrun, Slurm and the engines read files at fixed places and have their state at others, and users
are added. In a mount namespace of the tests' own they find a copy of /etc without such settings,
empty homes, and nothing in /run and /dev/shm; what they write there ends with the namespace.

`python3 -m tests.harness.apart COMMAND…` runs a command so.
"""

import ctypes
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_MARK = "SCRUN_TEST_APART"
_NEWNS = 0x00020000  # sched.h
_SETTINGS = (
    *("cdi", "cni", "containerd", "containers", "crio", "docker"),
    *("scrun", "slurm", "slurm-llnl"),
)
_STATE = "/var/lib/containers"
_TERMINALS = "newinstance,ptmxmode=0666,mode=0620,gid=5"  # as systemd mounts it
_SERVICES = ("dbus", "lock", "systemd")
"""What is kept of /run. In `lock` runs of the tests tell each other which users they have."""
_ANY_IMAGE = '{"default": [{"type": "insecureAcceptAnything"}]}\n'
_VARIABLES = re.compile(r"(BUILDAH|CONTAINERS?|DOCKER|REGISTRY|STORAGE|XDG)_|SCRUN_(CONFIG|ROOT)$")


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    return done.stdout.decode()


def new_namespace(*covered: str | Path) -> bool:
    """Enter a mount namespace of one's own, in which mounts at `covered` are nobody else's.

    Returns:
        False if the kernel refuses it.
    """
    if ctypes.CDLL(None).unshare(_NEWNS):
        return False
    for path in covered:
        _run("mount", "--make-private", _mount_of(path))  # no other: test clusters share some
    return True


def _mount_of(path: str | Path) -> str:
    """Where the mount is that a path leads to; findmnt may name one that is covered."""
    descriptor = os.open(path, os.O_PATH)
    [number] = re.findall(r"mnt_id:\s*(\d+)", Path(f"/proc/self/fdinfo/{descriptor}").read_text())
    os.close(descriptor)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    [found] = (line.split()[4] for line in mounts if line.split()[0] == number)
    return re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), found)


def enter() -> None:
    """Have this process see such a machine from now on, unless it does already.

    Without the privilege to mount it sees this one; but then it cannot change it either.
    """
    if os.geteuid() or os.environ.get(_MARK) == os.readlink("/proc/self/ns/mnt"):
        return
    conf = os.environ.get("SLURM_CONF")  # of a cluster that somebody has brought up already
    place = Path(tempfile.mkdtemp(prefix="scrun-apart-"))
    try:
        os.makedirs(_STATE, exist_ok=True)
        covered = ["/etc", "/run", _STATE]
        if not conf:  # else its nodes have shims' directories there
            covered.append("/dev/shm")
        # on some machines users can open no terminals
        terminals = [] if os.stat("/dev/ptmx").st_mode & 0o006 else ["/dev/pts"]
        if not new_namespace(place, *terminals, *covered):
            return
        umask = os.umask(0o022)
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
        for path in covered:
            (place / path[1:]).mkdir(parents=True)
        if terminals:
            _run("mount", "-t", "devpts", "-o", _TERMINALS, "devpts", "/dev/pts")
            _run("mount", "--bind", "/dev/pts/ptmx", "/dev/ptmx")
        _run("cp", "--archive", "/etc", place)
        if not conf:  # where a test may fill it
            _run("mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", place / "dev" / "shm")
        _keep(place / "run", conf)
        _reset(place / "etc", place / "run")
        for path in covered:
            _run("mount", "--rbind", place / path[1:], path)
        _run("umount", "--lazy", place)
        os.umask(umask)
    finally:
        place.rmdir()
    for name in filter(_VARIABLES.match, [*os.environ]):
        del os.environ[name]
    mark = os.readlink("/proc/self/ns/mnt")
    os.environ |= {"HOME": pwd.getpwuid(0).pw_dir, _MARK: mark}


def _keep(run: Path, conf: str | None) -> None:
    kept = [Path("/run", name) for name in _SERVICES]
    if conf:
        kept += [Path("/run/user"), *(path for path in Path(conf).parents if len(path.parts) == 3)]
    for path in kept:
        if path.is_dir() and path.is_relative_to("/run"):
            (run / path.name).mkdir()
            _run("mount", "--rbind", path, run / path.name)


def _reset(etc: Path, run: Path) -> None:
    """Make of a copy of /etc what is described above."""
    for name in _SETTINGS:
        shutil.rmtree(etc / name, ignore_errors=True)
    (etc / "slurm").mkdir()  # examples of oci.conf bind it, as it is on each node
    (etc / "containers").mkdir()
    (etc / "containers" / "policy.json").write_text(_ANY_IMAGE)
    with (etc / "default" / "useradd").open("a") as file:
        file.write("HOME=/run/home\n")
    lines = []
    for line in (etc / "passwd").read_text().splitlines():
        name, _, uid, gid, _, home, _ = line.split(":")
        by_cluster = name.startswith("scrun-test") or name == os.environ.get("SLURM_CLUSTER_USER")
        if by_cluster or uid == "0" or name == "scrun-other":
            line = line.replace(f":{home}:", f":/run/home/{name}:")
            for own in (run / "home" / name, run / "user" / uid)[: 1 + by_cluster]:
                if not own.exists():
                    own.mkdir(mode=0o700, parents=True)
                    os.chown(own, int(uid), int(gid))
        lines.append(line)
    (etc / "passwd").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    enter()
    os.execvp(sys.argv[1], sys.argv[1:])
