"""The program that copies a layer: what is in one, and what it refuses."""

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

from scrun.supervisor.core.places import program


def odd(layer: Path) -> None:
    """Fill a layer with all that layers can have."""
    folder = os.fsencode(layer)
    os.mkdir(folder + b"/\xff\xfe")
    with open(folder + b"/\xff\xfe/\x80", "wb") as file:
        file.write(b"not UTF-8")
    (layer / "new\nline").write_text("x")
    (layer / "setuid").write_text("x")
    os.chown(layer / "setuid", 33, 44)
    (layer / "setuid").chmod(0o6711)
    (layer / "closed").mkdir(mode=0o700)
    (layer / "closed/f").write_text("secret")
    (layer / "closed/f").chmod(0)
    (layer / "closed").chmod(0)
    os.link(layer / "setuid", layer / "twice")
    os.link(layer / "setuid", layer / "closed/three")
    os.mkfifo(layer / "fifo", 0o622)
    os.mknod(layer / "device", stat.S_IFCHR | 0o640, os.makedev(1, 3))
    os.mknod(layer / "gone", stat.S_IFCHR)
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(layer / "socket"))
    (layer / "link").symlink_to("/etc/passwd")
    os.chown(layer / "link", 33, 44, follow_symlinks=False)
    os.setxattr(layer / "setuid", "user.note", b"kept")
    os.setxattr(layer / "setuid", "security.capability", CAPABILITY)
    (layer / "opaque").mkdir()
    os.setxattr(layer / "opaque", "trusted.overlay.opaque", b"y")
    (layer / "sparse").touch()
    os.truncate(layer / "sparse", 5 << 40)
    for path in (layer / "link", layer / "new\nline", layer / "opaque", layer):
        os.utime(path, ns=(10**9, 2 * 10**9 + 7), follow_symlinks=False)


# cap_net_raw+ep, version 2
CAPABILITY = bytes.fromhex("0100000200200000000000000000000000000000")


def copy(layer: Path, target: Path, *how: str) -> "subprocess.CompletedProcess[str]":
    target.mkdir()
    argv = [sys.executable, "-I", "-S", program("programs", "copy_layer")]
    argv += [str(layer), str(target), *how]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def everything(tree: Path) -> dict[bytes, object]:
    found: dict[bytes, object] = {}
    root = os.fsencode(tree)
    for folder, folders, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in (*folders, *files, b"")):
            status = os.lstat(path)
            name = os.path.relpath(path, root)
            own = [status.st_mode, status.st_uid, status.st_gid, status.st_rdev, status.st_nlink]
            found[name] = [
                *own,
                {one: os.getxattr(path, one, follow_symlinks=False)
                 for one in os.listxattr(path, follow_symlinks=False)},
                status.st_mtime_ns if name != b"gone" else 0,
                status.st_size if not stat.S_ISDIR(status.st_mode) else 0,
                Path(os.fsdecode(path)).read_bytes()
                if stat.S_ISREG(status.st_mode) and status.st_blocks else b"",
                os.readlink(path) if stat.S_ISLNK(status.st_mode) else b"",
            ]  # fmt: skip
    return found


def test_a_copy_has_all_that_the_layer_has(tmp_path: Path) -> None:
    layer, target = tmp_path / "layer", tmp_path / "target"
    layer.mkdir()
    odd(layer)
    done = copy(layer, target, "trusted", "owners", "kernel")
    assert (done.returncode, done.stderr) == (0, "")
    assert everything(target) == everything(layer)
    assert (target / "gone").stat().st_rdev == 0
    assert (target / "sparse").stat().st_blocks == 0
    assert stat.S_ISSOCK((target / "socket").stat().st_mode)
    assert os.stat(target / "twice").st_nlink == 3
    assert os.stat(layer).st_mtime_ns == os.stat(target).st_mtime_ns


def test_a_copy_for_one_user(tmp_path: Path) -> None:
    layer, target = tmp_path / "layer", tmp_path / "target"
    layer.mkdir()
    odd(layer)
    done = copy(layer, target, "user", "one", "kernel")
    assert (done.returncode, done.stderr) == (0, "")
    for path in target.rglob("*"):
        assert path.lstat().st_uid == os.geteuid(), path
    assert stat.S_IMODE((target / "setuid").stat().st_mode) == 0o711
    assert os.getxattr(target / "opaque", "user.overlay.opaque") == b"y"


def test_a_deep_layer_is_refused(tmp_path: Path) -> None:
    layer, target = tmp_path / "layer", tmp_path / "target"
    layer.mkdir()
    subprocess.run(
        ["/bin/sh", "-ec", "i=0; while [ $i -lt 400 ]; do mkdir d; cd d; i=$((i+1)); done"],
        cwd=layer,
        check=True,
    )
    done = copy(layer, target, "user", "one", "kernel")
    assert done.returncode == 1
    assert done.stderr == "have more than 300 directories within each other\n"
