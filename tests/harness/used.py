"""A machine that somebody uses: `python3 -m tests.harness.used COMMAND…`, as root.

The command runs in a mount namespace in which a cluster, scrun and engines have files where they
belong. Whoever reads one of them runs no container. Afterwards all of them, everything else in
/etc and root's home are as they were, or that is said.
"""

import contextlib
import hashlib
import os
import pwd
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import CHECKOUT
from tests.harness.apart import new_namespace
from tests.harness.processes import run

_OWN = ("/run/containers", "/run/scrun", "/run/slurm", "/var/lib/containers")
_KEPT = ("/etc", "~/.config", "~/.docker", "~/.local", *_OWN)

_SCRUN_TOML = """\
engine = "slurm"
group = "container"
root = "/run/scrun/odd"
[slurm]
conf = "/nonexistent/slurm.conf"
launch = "container"
[lua]
script = "/etc/slurm/scrun.lua"
"""
_SCRUN_LUA = """\
function slurm_scrun_stage_in()
    slurm.log_error("the scrun.lua of this machine")
    return slurm.ERROR
end
slurm_scrun_stage_out = slurm_scrun_stage_in
return slurm.SUCCESS
"""
_SLURM_CONF = """\
ClusterName=odd
SlurmctldHost=nowhere(127.0.0.1)
SlurmctldPort=1
SlurmUser=daemon
NodeName=nowhere State=UNKNOWN
PartitionName=odd Nodes=ALL Default=YES
"""
_OCI_CONF = """\
RunTimeQuery="false"
RunTimeCreate="false"
RunTimeStart="false"
RunTimeKill="false"
RunTimeDelete="false"
FileDebug=debug5
"""
_CONTAINERS_CONF = """\
[containers]
env = ["THIS=machine"]
[engine]
runtime = "scrun"
[engine.runtimes]
scrun = ["/usr/bin/false"]
crun = ["/usr/bin/false"]
runc = ["/usr/bin/false"]
"""
_STORAGE_CONF = '[storage]\ndriver = "vfs"\ngraphroot = "{}/odd"\nrunroot = "{}/odd"\n'
_POLICY = '{"default": [{"type": "reject"}]}\n'
_DAEMON = '{"default-runtime": "odd", "runtimes": {"odd": {"path": "/usr/bin/false"}}}\n'

FILES = {
    "/etc/scrun/scrun.toml": _SCRUN_TOML,
    "/etc/slurm/slurm.conf": _SLURM_CONF,
    "/etc/slurm/oci.conf": _OCI_CONF,
    "/etc/slurm/scrun.lua": _SCRUN_LUA,
    "/etc/slurm/plugstack.conf": "required /nonexistent/plugin.so\n",
    "/etc/containers/containers.conf": _CONTAINERS_CONF,
    "/etc/containers/containers.conf.d/scrun.conf": "# written by somebody\n[engine]\n",
    "/etc/containers/storage.conf": _STORAGE_CONF.format("/var/lib/containers", "/run/containers"),
    "/etc/containers/policy.json": _POLICY,
    "/etc/containers/registries.conf": 'unqualified-search-registries = ["127.0.0.1:1"]\n',
    "/etc/docker/daemon.json": _DAEMON,
    "~/.config/scrun/scrun.toml": _SCRUN_TOML,
    "~/.config/containers/containers.conf": _CONTAINERS_CONF,
    "~/.config/containers/storage.conf": _STORAGE_CONF.format("/root/.local", "/run/odd"),
    "~/.config/containers/policy.json": _POLICY,
    "~/.docker/config.json": '{"auths": {}, "HttpHeaders": {"THIS": "machine"}}\n',
    "~/.local/share/containers/storage/libpod/odd": "a store\n",
    "~/.local/share/scrun/images/odd": "an image\n",
    "/run/containers/storage/odd": "a store\n",
    "/run/scrun/odd/record/state": "a record\n",
    "/run/slurm/conf/slurm.conf": _SLURM_CONF,
    "/var/lib/containers/storage/odd": "a store\n",
}


def home() -> str:
    """Root's home, which is `~` above."""
    return pwd.getpwuid(0).pw_dir


def _use(place: str) -> None:
    """Have such a machine in the mount namespace of this process."""
    root = home()
    assert new_namespace("/etc", root, *_OWN, place)
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", place)
    run("cp", "--archive", "/etc", place)
    run("mount", "--bind", f"{place}/etc", "/etc")
    upper, work = (Path(place, name) for name in ("upper", "work"))
    upper.mkdir(mode=0o700)
    work.mkdir()
    options = f"lowerdir={root},upperdir={upper},workdir={work}"
    run("mount", "-t", "overlay", "-o", options, "overlay", root)
    for path in _OWN:
        run("mount", "-t", "tmpfs", "tmpfs", path)
    for name, text in FILES.items():
        file = Path(name.replace("~", root))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def _seen() -> dict[str, str]:
    """What is at all these places."""
    found = {}
    for top in (path.replace("~", home()) for path in _KEPT):
        for directory, directories, files in os.walk(top):
            for name in (".", *directories, *files):
                path = os.path.join(directory, name)
                status = os.lstat(path)
                says = f"{status.st_mode:o} {status.st_uid} {status.st_gid} {status.st_mtime_ns}"
                if stat.S_ISREG(status.st_mode):
                    says += f" {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
                found[path] = says
    return found


@contextmanager
def _places() -> Iterator[str]:
    """The directories that are mounted on, some only for the time being; yields a free one."""
    with contextlib.ExitStack() as stack:
        for path in _OWN:
            if not os.path.isdir(path):
                os.mkdir(path)
                stack.enter_context(contextlib.suppress(OSError))  # it is in use by now
                stack.callback(os.rmdir, path)
        place = tempfile.mkdtemp(prefix="sc-used-")
        stack.callback(os.rmdir, place)
        yield place


def _inside(place: str, command: list[str]) -> int:
    _use(place)
    before = _seen()
    status = subprocess.run(command, check=False).returncode
    after = _seen()
    changed = sorted(p for p in before.keys() | after.keys() if before.get(p) != after.get(p))
    for path in changed:
        print(f"used: {path}: was {before.get(path)}, is {after.get(path)}", file=sys.stderr)
    return status or bool(changed)


def _main(command: list[str]) -> int:
    with _places() as place:
        words = [sys.executable, "-m", "tests.harness.used", "--inside", place, *command]
        return subprocess.run(words, check=False, cwd=CHECKOUT).returncode


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        sys.exit(_inside(sys.argv[2], sys.argv[3:]))
    sys.exit(_main(sys.argv[1:]))
