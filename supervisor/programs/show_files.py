"""Shows a container's files in the mount namespace of its anchor.

Usage: show_files.py FD, with the view on standard input (see
`supervisor.containers.show_files.encoded`). FD is a descriptor of the anchor's mount namespace.

The program builds the tree in its own mount namespace, which has the host's mounts, clones the
tree, attaches it over the anchor's empty root, and makes it the root there. So nothing of the host
is ever in the anchor's namespace. The author of the root file system may be hostile: paths in it
are resolved within it (openat2(2)).

What this machine does not have is covered by a directory of this process in /proc. When the
process is gone, every access to it is an error, for root too. An empty directory would be copied
as if it were the container's.
"""

import os
import stat
import sys

_PACKAGE = os.path.abspath(__file__).removesuffix("/scrun/supervisor/programs/show_files.py")
_GONE_DIRECTORY, _GONE_FILE = "/proc/self/task", "/proc/self/comm"
_EMPTY_ROOT = ["proc"]


def main(argv: "list[str]") -> int:
    """Show the files and return 0; or print an error, change nothing and return 1."""
    sys.path.insert(0, _PACKAGE)
    try:
        _show(int(argv[0]), sys.stdin.buffer.read())
    except OSError as error:
        where = f": {os.fsdecode(error.filename)}" if error.filename else ""
        sys.stderr.write(f"{error.strerror}{where}\n")
        return 1
    return 0


def _show(namespace: int, view: bytes) -> None:
    from scrun.core import namespaces as ns

    whole, *mounts = (record.split(b"\0") for record in view.split(b"\0\n")[:-1])
    rootfs, bundle, read_only, elsewhere = whole
    ns.unshare(ns.NEW_MOUNT)
    ns.mount("none", "/", None, ns.RECURSIVE | ns.PRIVATE)
    shared = {os.stat(path).st_dev for path in (rootfs, bundle)}
    ns.mount(os.fsdecode(rootfs), os.fsdecode(rootfs), None, ns.BIND | ns.RECURSIVE)
    root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY)
    os.close(_place(root, "proc", of_file=False))
    for path, source, only_read, own in mounts:
        known = _on_the_nodes(source, shared if elsewhere == b"1" else None)
        visible = bool(known) and own == b"0"
        _cover(
            root,
            os.fsdecode(path),
            os.fsdecode(source),
            visible=visible,
            read_only=only_read == b"1",
        )
    if read_only == b"1":
        _forbid_writing(root)
    tree = ns.clone_tree(root)
    ns.enter(namespace, ns.NEW_MOUNT)
    if os.listdir("/") != _EMPTY_ROOT:
        raise OSError(0, "the namespace is not that of an anchor")
    ns.attach_tree(tree, "/")
    os.fchdir(ns.open_within(tree, "proc", os.O_PATH | os.O_DIRECTORY))
    ns.mount("/proc", ".", None, ns.BIND)
    os.fchdir(tree)
    ns.become_root()


def _on_the_nodes(source: bytes, devices: "set[int] | None") -> bytes:
    """Return a source if it exists and is the same as on the nodes; else b""."""
    try:
        device = os.stat(source).st_dev
    except OSError:
        return b""
    return source if devices is None or device in devices else b""


def _cover(root: int, path: str, source: str, *, visible: bool, read_only: bool) -> None:
    """Mount a source at a path of the container, or something that fails if it is not visible."""
    from scrun.core import namespaces as ns

    try:
        mount_point = _place(root, path, of_file=_is_file(source))
    except FileNotFoundError:  # the runtime will make it, and only the node knows what it will be
        return
    if not visible:
        gone = _GONE_DIRECTORY if stat.S_ISDIR(os.fstat(mount_point).st_mode) else _GONE_FILE
        ns.mount(gone, f"/proc/self/fd/{mount_point}", None, ns.BIND)
    else:
        ns.mount(source, f"/proc/self/fd/{mount_point}", None, ns.BIND | ns.RECURSIVE)
        if read_only:
            mounted = ns.open_within(root, path, os.O_PATH)
            _forbid_writing(mounted)
            os.close(mounted)
    os.close(mount_point)


def _is_file(source: str) -> "bool | None":
    """Return whether the runtime makes a file as mount point, or None if unknown here."""
    if not source:  # a file system
        return False
    return not os.path.isdir(source) if os.path.exists(source) else None


def _place(root: int, path: str, *, of_file: "bool | None") -> int:
    """Open a mount point; create what is missing of it, as the runtime will.

    Raises:
        FileNotFoundError: It does not exist, and its type is unknown.
    """
    from scrun.core import namespaces as ns

    names = [name for name in path.split("/") if name]
    here = os.dup(root)
    for count, name in enumerate(names, 1):
        way = "/".join(names[:count])
        try:
            there = ns.open_within(root, way, os.O_PATH)
        except FileNotFoundError:
            if of_file is None:
                raise
            if of_file and count == len(names):
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
                os.close(os.open(name, flags, 0o644, dir_fd=here))
            else:
                os.mkdir(name, 0o755, dir_fd=here)
            there = ns.open_within(root, way, os.O_PATH)
        os.close(here)
        here = there
    return here


def _forbid_writing(fd: int) -> None:
    """Make a mount read-only, and keep its other flags, which may not be cleared."""
    from scrun.core import namespaces as ns

    flags = os.fstatvfs(fd).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
    flags |= ns.REMOUNT | ns.BIND | ns.READ_ONLY
    ns.mount(None, f"/proc/self/fd/{fd}", None, flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
