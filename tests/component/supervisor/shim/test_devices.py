"""The machine's devices stay as they are, whoever a container's user is."""

import os
import stat
from pathlib import Path

import pytest

from scrun.supervisor.shim.children import own_device
from tests.component.supervisor.shim.conftest import MakeShim, without_crun
from tests.harness.bundle import make_config
from tests.harness.shim import PURE_V2

_NULL = os.makedev(1, 3)
_USER = 12345


@pytest.fixture
def null(tmp_path: Path) -> Path:
    """A device to stand in for /dev/null: nothing is to happen to the machine's own."""
    path = tmp_path / "null"
    os.mknod(path, stat.S_IFCHR, _NULL)
    path.chmod(0o666)
    return path


@pytest.mark.parametrize("runtime", ["crun", "runc"])
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "plain"])
def test_root_calls_the_runtime_for_another_user(
    make_shim: MakeShim, rootfs: Path, null: Path, runtime: str, mapped: bool
) -> None:
    """crun before 1.24 makes a user of a user namespace the owner of /dev/null."""
    rootfs.chmod(0o755)
    place = ["unshare", "--mount", "sh", "-c", f'mount --bind {null} /dev/null && exec "$@"', "sh"]
    env = {"PATH": without_crun(rootfs)} if runtime == "runc" else {}
    shim = make_shim(env, place=[*place, *PURE_V2])
    assert os.path.basename(shim.hello["runtime"]) == runtime
    config = make_config(["sleep", "1000"], str(rootfs))
    if mapped:
        config["linux"]["namespaces"].append({"type": "user"})
        for key in ("uidMappings", "gidMappings"):
            config["linux"][key] = [{"containerID": 0, "hostID": _USER, "size": 1000}]
    config["process"]["user"] = {"uid": 7, "gid": 7}
    shim.run("a", "sleep", "1000", process=config["process"], linux=config["linux"])
    process = make_config(["sh", "-c", "echo lost; exec ls -l /dev/null"])["process"]
    process["user"] = {"uid": 8, "gid": 8}
    streams = {"stdout": 41}
    call = {"container": "a", "process": process}
    assert "pid" in shim.call("exec", id="b", streams={}, **call)
    assert shim.ended("b") == 0
    assert "pid" in shim.call("exec", id="c", streams=streams, **call)
    assert shim.ended("c") == 0
    shim.finish(41)
    assert (null.stat().st_uid, null.stat().st_gid) == (0, 0)


def test_a_device_of_our_own(tmp_path: Path) -> None:
    """It is another node, and nobody finds it."""
    before = set(os.listdir("/dev"))
    fd = own_device("/dev/null", str(tmp_path))
    seen = os.fstat(fd)
    os.close(fd)
    assert (seen.st_rdev, seen.st_nlink) == (_NULL, 0)
    assert stat.S_IMODE(seen.st_mode) == 0o666
    assert not os.listdir(tmp_path)
    assert set(os.listdir("/dev")) == before


def test_a_place_without_devices(tmp_path: Path) -> None:
    """Folders for temporary files are often mounted with `nodev`."""
    fd = own_device("/dev/null", "/proc/self")
    seen = os.fstat(fd)
    os.close(fd)
    assert (seen.st_rdev, seen.st_nlink) == (_NULL, 0)
