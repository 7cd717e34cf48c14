import ctypes
import errno
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrun.oci import lookup
from scrun.oci.config import Bundle, Config, Mount, Process, Root
from scrun.oci.lookup import Found, NotFound, Unknown, find_directory, find_program

PATH = "PATH=/usr/bin:/bin"
pytestmark = pytest.mark.usefixtures("no_descriptor_stays")


@pytest.fixture
def rootfs(tmp_path: Path) -> Path:
    root = tmp_path / "rootfs"
    for directory in ("bin", "usr/bin", "etc", "tmp"):
        (root / directory).mkdir(parents=True)
    program(root / "bin/sh")
    (root / "etc/passwd").touch(0o644)
    return root


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o755)


def find(
    rootfs: Path,
    name: str,
    *mounts: Mount,
    env: tuple[str, ...] = (PATH,),
    cwd: str = "/",
) -> Found | NotFound | Unknown:
    process = Process(args=[name], cwd=cwd, env=list(env))
    config = Config("1.0.2", process, Root("rootfs"), mounts=list(mounts))
    return find_program(Bundle(str(rootfs.parent), "", config, {}, str(rootfs)))


def find_cwd(rootfs: Path, cwd: str, *mounts: Mount) -> str | NotFound | Unknown:
    config = Config("1.0.2", Process(args=["x"], cwd=cwd), Root("rootfs"), mounts=list(mounts))
    return find_directory(Bundle(str(rootfs.parent), "", config, {}, str(rootfs)))


def test_the_working_directory(rootfs: Path, tmp_path: Path) -> None:
    (rootfs / "lib").symlink_to("usr/bin")
    assert find_cwd(rootfs, "/lib/../") == "/usr"
    assert find_cwd(rootfs, "/") == "/"
    assert find_cwd(rootfs, "/bin/sh") == NotFound(
        "working directory `/bin/sh`: not a directory", 126
    )
    for gone in ("/nope", "/bin/sh/x", "/nope/.."):
        text = f"working directory `{gone}`: no such file or directory"
        assert find_cwd(rootfs, gone) == NotFound(text, 127)
    assert isinstance(find_cwd(rootfs, "/tmp/x", Mount("/tmp", type="tmpfs")), Unknown)
    (tmp_path / "data").mkdir()
    assert find_cwd(rootfs, "/data", bind(tmp_path / "data", "/data")) == "/data"


def seen(path: str, called: str | None = None) -> Found:
    return Found(path, path if called is None else called)


def bind(source: Path | str, destination: str) -> Mount:
    return Mount(destination=destination, source=str(source), options=["rbind", "ro"])


def missing(name: str) -> NotFound:
    text = f"executable file `{name}` not found in $PATH: no such file or directory"
    return NotFound(text, 127)


def denied(name: str) -> NotFound:
    return NotFound(f"open executable `{name}`: permission denied", 126)


def test_by_path_and_by_name(rootfs: Path) -> None:
    assert find(rootfs, "sh") == seen("/bin/sh")
    assert find(rootfs, "/bin/sh") == seen("/bin/sh")
    assert find(rootfs, "./sh", cwd="/bin") == seen("/bin/sh", "/bin/./sh")
    assert find(rootfs, "bin/../bin//sh") == seen("/bin/sh", "/bin/../bin//sh")
    assert find(rootfs, "../../bin/sh", cwd="/usr/bin") == seen("/bin/sh", "/usr/bin/../../bin/sh")


@pytest.mark.parametrize("name", ["nope", "/nope", "/bin/nope/x", "/bin/sh/x", "/bin/sh/", "./sh"])
def test_missing(rootfs: Path, name: str) -> None:
    assert find(rootfs, name) == missing(name)


@pytest.mark.parametrize("name", ["/etc/passwd", "/tmp", "/", "."])
def test_not_executable(rootfs: Path, name: str) -> None:
    if name == ".":
        name = "./"
    assert find(rootfs, name) == denied(name)


def test_path_goes_on_after_what_is_not_executable(rootfs: Path) -> None:
    (rootfs / "usr/bin/sh").touch(0o644)
    assert find(rootfs, "sh") == seen("/bin/sh")
    assert find(rootfs, "passwd", env=("PATH=/etc:/bin",)) == denied("passwd")


def test_the_last_path_counts(rootfs: Path) -> None:
    assert find(rootfs, "sh", env=("PATH=/bin", "PATH=/etc")) == missing("sh")


def test_where_runtimes_differ(rootfs: Path) -> None:
    assert isinstance(find(rootfs, "sh", env=()), Unknown)
    assert find(rootfs, "nope", env=()) == missing("nope")
    assert isinstance(find(rootfs, "sh", env=("PATH=bin",)), Unknown)
    assert isinstance(find(rootfs, "sh", env=("PATH=",), cwd="/bin"), Unknown)
    assert find(rootfs, "sh", env=("PATH=:/bin",)) == seen("/bin/sh")


def test_links_stay_inside(rootfs: Path, tmp_path: Path) -> None:
    program(tmp_path / "outside")
    (rootfs / "bin/absolute").symlink_to("/bin/sh")
    (rootfs / "bin/relative").symlink_to("../bin/sh")
    (rootfs / "bin/up").symlink_to("../../../../outside")
    (rootfs / "bin/out").symlink_to(tmp_path / "outside")
    (rootfs / "lib").symlink_to("usr/bin/../../bin")
    (rootfs / "bin/loop").symlink_to("loop")
    assert find(rootfs, "absolute") == seen("/bin/sh", "/bin/absolute")
    assert find(rootfs, "relative") == seen("/bin/sh", "/bin/relative")
    assert find(rootfs, "up") == missing("up")
    assert find(rootfs, "out") == missing("out")
    assert find(rootfs, "/lib/sh") == seen("/bin/sh", "/lib/sh")
    assert find(rootfs, "loop") == missing("loop")
    (rootfs / "outside").symlink_to("bin/sh")
    assert find(rootfs, "up") == seen("/bin/sh", "/bin/up")


def test_binds(rootfs: Path, tmp_path: Path) -> None:
    program(tmp_path / "tools/tool")
    (tmp_path / "tools/link").symlink_to("/bin/sh")
    mount = bind(tmp_path / "tools", "/opt/tools")
    assert isinstance(find(rootfs, "/opt/tools/tool", mount), Unknown)
    (rootfs / "opt/tools").mkdir(parents=True)
    assert find(rootfs, "/opt/tools/tool", mount) == seen("/opt/tools/tool")
    assert find(rootfs, "/opt/tools/link", mount) == seen("/bin/sh", "/opt/tools/link")
    assert find(rootfs, "/opt/tools/../../bin/sh", mount) == seen(
        "/bin/sh", "/opt/tools/../../bin/sh"
    )
    assert find(rootfs, "/opt/tools/nope", mount) == missing("/opt/tools/nope")
    assert find(rootfs, "sh", bind("tools/tool", "/bin/sh")) == seen("/bin/sh")
    assert isinstance(find(rootfs, "sh", bind("/nowhere", "/bin")), Unknown)


def test_a_mount_is_where_links_lead(rootfs: Path, tmp_path: Path) -> None:
    program(tmp_path / "tools/tool")
    (rootfs / "run").mkdir()
    (rootfs / "var").mkdir()
    (rootfs / "var/run").symlink_to("/run")
    mount = bind(tmp_path / "tools", "/var/run")
    assert find(rootfs, "/run/tool", mount) == seen("/run/tool")


def test_other_mounts_are_unknown(rootfs: Path, tmp_path: Path) -> None:
    program(tmp_path / "tools/sh")
    dev = (
        Mount("/proc", "proc", "proc"),
        Mount("/dev", "tmpfs", "tmpfs"),
        Mount("/dev/pts", "devpts", "devpts"),
        bind(tmp_path / "tools", "/dev/tools"),
    )
    (rootfs / "dev").mkdir()
    assert find(rootfs, "sh", *dev) == seen("/bin/sh")
    assert isinstance(find(rootfs, "/dev/tools/sh", *dev), Unknown)
    tmpfs, tools = Mount("/bin", "tmpfs", "tmpfs"), bind(tmp_path / "tools", "/bin")
    assert isinstance(find(rootfs, "sh", tmpfs), Unknown)
    assert find(rootfs, "sh", tmpfs, tools) == seen("/bin/sh")
    assert isinstance(find(rootfs, "sh", tools, tmpfs), Unknown)
    assert isinstance(find(rootfs, "sh", Mount("/", "tmpfs")), Unknown)


def test_directories_that_are_made_for_a_mount(rootfs: Path, tmp_path: Path) -> None:
    """podman run --init: the image has no /run, and the runtime makes /run/podman-init."""
    program(tmp_path / "init")
    mount = bind(tmp_path / "init", "/new/deep/init")
    assert isinstance(find(rootfs, "/new/deep/init", mount), Unknown)
    assert find(rootfs, "/other/init", mount) == missing("/other/init")


def test_a_later_mount_hides_what_is_below(rootfs: Path, tmp_path: Path) -> None:
    program(tmp_path / "a/sub/tool")
    (tmp_path / "b/sub").mkdir(parents=True)
    (rootfs / "opt/sub").mkdir(parents=True)
    inner, outer = bind(tmp_path / "a/sub", "/opt/sub"), bind(tmp_path / "b", "/opt")
    assert find(rootfs, "/opt/sub/tool", outer, inner) == seen("/opt/sub/tool")
    assert find(rootfs, "/opt/sub/tool", inner, outer) == missing("/opt/sub/tool")


@pytest.mark.parametrize("special", ["fifo", "socket"])
def test_special_files_are_not_opened(rootfs: Path, special: str) -> None:
    kind = {"fifo": 0o010000, "socket": 0o140000}[special]
    os.mknod(rootfs / "bin/x", kind | 0o777)
    assert find(rootfs, "x") == denied("x")


def test_unreadable(rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, flags: int, *, dir_fd: int | None = None) -> int:
        if path == "bin":
            raise PermissionError(13, "Permission denied")
        return real(path, flags, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    assert find(rootfs, "/bin/sh") == Unknown("/bin: Permission denied")


def test_bounds(rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "/".join(["d"] * 120)
    (rootfs / deep).mkdir(parents=True)
    assert isinstance(find(rootfs, f"/{deep}/x"), Unknown)
    long = "PATH=" + ":".join(["/etc"] * lookup._STEPS)
    assert isinstance(find(rootfs, "x", env=(long,)), Unknown)
    assert isinstance(find(rootfs, "sh", *[bind("/", "/tmp")] * 2000), Unknown)
    assert isinstance(find(rootfs, "a\0b"), Unknown)
    assert isinstance(find(rootfs, "\ud800"), Unknown)


def test_no_rootfs(tmp_path: Path) -> None:
    assert isinstance(find(tmp_path / "rootfs", "sh"), Unknown)


def kernel_finds(rootfs: Path, path: str) -> os.stat_result | None:
    """Ask openat2(2) with RESOLVE_IN_ROOT, which a container's own lookup agrees with."""
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, 0x10)  # flags, mode, resolve
    root = os.open(rootfs, os.O_PATH)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        while True:
            fd = libc.syscall(437, root, path.encode(), ctypes.byref(how), ctypes.sizeof(how))
            # a mount or a renaming anywhere on the machine meanwhile, at a `..`
            if fd >= 0 or ctypes.get_errno() != errno.EAGAIN:
                break
    finally:
        os.close(root)
    if fd < 0:
        if ctypes.get_errno() not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            pytest.skip(f"openat2: {os.strerror(ctypes.get_errno())}")
        return None
    try:
        return os.fstat(fd)
    finally:
        os.close(fd)


PARTS = st.sampled_from(["a", "b", "c", "..", ".", "", "/", "outside", "x"])
PATHS = st.lists(PARTS, min_size=1, max_size=6).map("/".join)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["b", "x", "a/x", "a/b/c"]), PATHS), PATHS)
def test_finds_what_the_kernel_finds_in_the_rootfs(
    tmp_path_factory: pytest.TempPathFactory, links: dict[str, str], path: str
) -> None:
    base = tmp_path_factory.mktemp("hostile")
    program(base / "outside")
    program(base / "x")
    rootfs = base / "rootfs"
    (rootfs / "a/b").mkdir(parents=True)
    program(rootfs / "a/c")
    for place, target in links.items():
        (rootfs / place).symlink_to(target or ".")
    name = f"/{path}"
    found, status = find(rootfs, name), kernel_finds(rootfs, name)
    if status is None:
        assert found == missing(name)
    elif stat.S_ISREG(status.st_mode):
        assert isinstance(found, Found)
        assert os.lstat(f"{rootfs}{found.path}").st_ino == status.st_ino
    else:
        assert found == denied(name)
