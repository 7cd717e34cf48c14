"""Shows a container's files in the mount namespace of its anchor, for commands like `podman cp`.

A thread builds the tree in a mount namespace of its own, which begins with the host's mounts,
clones the tree, attaches it over the anchor's empty root, and makes it the root there. So nothing
of the host is ever in the anchor's namespace. The author of the root file system may be hostile:
paths in it are resolved within it (openat2(2)).

What this machine does not have is covered by a directory of that thread in /proc. When the thread
has ended, every access to it is an error, for root too. An empty directory would be copied as if
it were the container's.
"""

import os
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import trio

from scrun.model.states import Ending
from scrun.oci.config import Bundle
from scrun.supervisor.containers import conmon
from scrun.supervisor.containers.container_network import OF_DOCKER
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.program import rootfs
from scrun.supervisor.contracts.staged import OVERLAY, Staged, View
from scrun.supervisor.core.nurseries import Tasks, unwrapped
from scrun.supervisor.core.threads import in_last_thread, in_thread
from scrun.supervisor.log.journal import Journal

if TYPE_CHECKING:
    from scrun.supervisor.staging.survey import MountPoint

_PATIENCE = 10.0
_GONE_DIRECTORY, _GONE_FILE = "/proc/thread-self/fdinfo", "/proc/thread-self/comm"
_EMPTY_ROOT = ["proc"]
_NO_DIFFERENCE = (
    "the engine's `commit` does not have what it changes while it runs, and podman's `diff` "
    "fails: that is not on this machine; `export` works"
)


class ShownFiles:
    """The files of one container.

    Attributes:
        shown: Set when engines can see them, or never will.
    """

    def __init__(
        self, beside: Tasks, journal: Journal, request: CreateRequest, alive: Callable[[], bool]
    ) -> None:
        """`alive`: tells whether its anchor lives, so that the pid is still its own."""
        of_podman = conmon.calls(request.child_env.environment)  # which enters its namespaces
        setting = request.settings.staging.live_files
        self._is_served = of_podman and setting != "off"
        # podman looks into its storage before each `exec`
        of_docker = OF_DOCKER in request.bundle and setting != "off"
        self._covers = of_docker or (of_podman and setting == "storage")
        self._over: _Over | None = None
        self.shown = trio.Event()
        self.shown.set()
        self._beside = beside
        self._journal = journal
        self._alive = alive

    def begin_to_show(self, anchor: int, view: View | None, job: Job) -> None:
        """Show them to engines; else the anchor's root stays empty, and the log says why.

        No engine enters the namespaces of an anchor that has a user namespace of its own or shares
        ours: the container's user has no right to.

        Args:
            job: Serves them to podman as the container has them, if that is possible.
        """
        self.shown = trio.Event()
        if not self._beside.begin(partial(self._show, anchor, view, job, self.shown)):
            self.shown.set()

    def serve_again(self, anchor: int, job: Job) -> None:
        """Go on to serve them after a supervisor that has died, if that has."""
        if self._is_served and job.serves_files and _why_not(anchor) is None:
            self._beside.begin(partial(self._serve, anchor, job, trio.Event()))

    @asynccontextmanager
    async def over(self, bundle: Bundle, staged: Staged, job: Job) -> AsyncIterator[None]:
        """Serve them where the engine has mounted the root file system, if that is asked for.

        So what it reads there itself (`docker cp`, `export`, `podman mount`) is the container's.
        """
        changes = staged.image and not bundle.config.root.readonly
        if not (self._covers and changes and job.serves_files):
            yield
            return
        async with unwrapped() as nursery:
            self._over = _Over(bundle.rootfs, staged, job, self._journal)
            nursery.start_soon(self._over.serve)
            try:
                yield
            finally:
                await self._over.withdraw()
                nursery.cancel_scope.cancel()

    async def until(self, ended: Awaitable[Ending]) -> Ending:
        """Wait for the container's end, and then let the engine see its own root file system.

        Its changes come back there, and the engine unmounts that.
        """
        try:
            return await ended
        finally:
            if self._over is not None:
                await self._over.withdraw()

    async def _show(self, anchor: int, view: View | None, job: Job, shown: trio.Event) -> None:
        why, lacks = _why_not(anchor), ""
        try:
            if why is None and self._is_served and job.serves_files:
                lacks = await self._serve(anchor, job, shown)
                if not lacks:
                    return
            if why is None:
                why = _why_not_here(view)
            if why is None and view is not None:
                with trio.move_on_after(_PATIENCE) as patience:
                    why = await in_thread(show, anchor, view, self._alive, abandon=True)
                if patience.cancelled_caught:
                    why = f"it took longer than {_PATIENCE:g} s"
        finally:
            shown.set()
        if why:
            text = f"commands like `podman cp` do not see the container's files: {why}"
            if lacks:
                text += f", and {lacks}; `scrun cp` does"
            self._journal.write("info", text)

    async def _serve(self, anchor: int, job: Job, shown: trio.Event) -> str:
        """Serve them as a file system until the container's end; return why that is impossible."""
        from scrun.supervisor.containers import live_files  # few supervisors need it
        from scrun.supervisor.staging import live_mounts

        try:
            files = live_files.LiveFiles(job, self._journal)
        except OSError as error:
            return f"{live_files.DEVICE}: {error.strerror}"
        why = ""

        async def attach() -> None:
            nonlocal why
            with trio.move_on_after(_PATIENCE) as patience:
                call = partial(live_mounts.attach, files.tree, anchor, self._alive)
                try:
                    await in_thread(call, abandon=True)
                except OSError as error:
                    why = f"FUSE: {error.filename or 'mount'}: {error.strerror}"
            if patience.cancelled_caught:
                why = f"a mount by FUSE took longer than {_PATIENCE:g} s"
            if why:
                nursery.cancel_scope.cancel()
            else:
                files.is_attached()
                shown.set()

        try:
            async with unwrapped() as nursery:
                nursery.start_soon(attach)
                await files.serve()
        finally:
            files.close()
        return why


class _Over:
    """A file system over the root file system of an engine."""

    def __init__(self, path: str, staged: Staged, job: Job, journal: Journal) -> None:
        self._path = path
        self._staged = staged
        self._job = job
        self._journal = journal
        self._scope = trio.CancelScope()
        self._gone = trio.Event()

    async def serve(self) -> None:
        """Serve it until `withdraw`; a line in the log says why if that is impossible."""
        why = ""
        try:
            with self._scope:
                why = await self._serve()
        finally:
            self._gone.set()
        if why and not self._scope.cancel_called:
            self._journal.write(
                "info",
                "commands of the engine that read its storage see the root file system as it was"
                f" before the container's start: {why}; `scrun cp` sees it as it is",
            )

    async def _serve(self) -> str:
        from scrun.supervisor.containers import live_files  # few supervisors need it
        from scrun.supervisor.staging import live_mounts

        of_root = rootfs(self._staged.overlaid_directories)
        try:
            files = live_files.LiveFiles(self._job, self._journal, of_root)
        except OSError as error:
            return f"{live_files.DEVICE}: {error.strerror}"
        try:
            below, directory, is_whole = await in_thread(self._attach, files.tree)
            if not is_whole:
                self._journal.write("info", _NO_DIFFERENCE)
            files.is_attached(directory)
            try:
                await files.serve()
            finally:
                with trio.move_on_after(_PATIENCE, shield=True), suppress(OSError):
                    await in_thread(live_mounts.detach_here, self._path, below, abandon=True)
        except OSError as error:
            return f"FUSE: {error.filename or 'mount'}: {error.strerror}"
        finally:
            files.close()
        return ""

    def _attach(self, tree: int) -> "tuple[MountPoint | None, os.stat_result, bool]":
        """Mount it; return what is below, and whether all differences are seen."""
        from scrun.supervisor.staging.layout import difference_in
        from scrun.supervisor.staging.live_mounts import attach_here

        difference = difference_in(os.path.join(self._staged.bundle, OVERLAY))
        below, directory = attach_here(tree, self._path, difference)
        whole = bool(difference or below is None or below.kind != "overlay")
        return below, directory, whole

    async def withdraw(self) -> None:
        self._scope.cancel()
        with trio.CancelScope(shield=True):
            await self._gone.wait()


def _why_not(anchor: int) -> str | None:
    """Return why nothing can be shown; None if it can, "" if that needs no message."""
    try:
        mine, theirs = (
            [os.stat(f"/proc/{pid}/ns/{kind}").st_ino for kind in ("user", "mnt")]
            for pid in ("self", anchor)
        )
    except OSError:  # it is gone
        return ""
    if mine[1] == theirs[1]:
        return (
            "user namespaces are not permitted here, so its anchor is in the namespaces of this "
            "host"
        )
    return "" if mine[0] != theirs[0] else None


def _why_not_here(view: View | None) -> str | None:
    """Return why this machine cannot show files; None if it can."""
    if view is None:
        return "this host does not know where its root file system is"
    if view.rootfs == "/":
        return "its root file system is that of the node"
    return None


def show(anchor: int, view: View, alive: Callable[[], bool]) -> str:
    """Show files in the namespace of an anchor; return what went wrong, or "". Blocks."""
    # it cannot come back from there, and what is missing is shown as its own
    try:
        in_last_thread(partial(_show, anchor, view, alive))
    except OSError as error:
        where = f": {os.fsdecode(error.filename)}" if error.filename else ""
        return f"{error.strerror}{where}"
    except Exception as error:
        return repr(error)
    return ""


def _show(anchor: int, view: View, alive: Callable[[], bool]) -> None:
    with ExitStack() as stack:
        namespace = os.open(f"/proc/{anchor}/ns/mnt", os.O_RDONLY)
        stack.callback(os.close, namespace)
        if alive():  # else the pid may be another process'
            _attach(namespace, view, stack)


def _attach(namespace: int, view: View, stack: ExitStack) -> None:
    from scrun.core import namespaces as ns  # few supervisors need it

    ns.unshare(ns.NEW_MOUNT)
    ns.mount("none", "/", None, ns.RECURSIVE | ns.PRIVATE)
    shared = {os.stat(path).st_dev for path in (view.rootfs, view.bundle)}
    ns.mount(view.rootfs, view.rootfs, None, ns.BIND | ns.RECURSIVE)
    root = os.open(view.rootfs, os.O_PATH | os.O_DIRECTORY)
    stack.callback(os.close, root)
    os.close(_place(root, "proc", of_file=False))
    for mount in view.places:
        known = _on_the_nodes(mount.source, shared if view.elsewhere else None)
        visible = known and not mount.own
        _cover(root, mount.path, mount.source, visible=visible, read_only=mount.read_only)
    if view.read_only:
        _forbid_writing(root)
    tree = ns.clone_tree(root)
    stack.callback(os.close, tree)
    ns.enter(namespace, ns.NEW_MOUNT)
    if os.listdir("/") != _EMPTY_ROOT:
        raise OSError(0, "the namespace is not that of an anchor")
    ns.attach_tree(tree, "/")
    proc = ns.open_within(tree, "proc", os.O_PATH | os.O_DIRECTORY)
    stack.callback(os.close, proc)
    os.fchdir(proc)
    ns.mount("/proc", ".", None, ns.BIND)
    os.fchdir(tree)
    ns.become_root()


def _on_the_nodes(source: str, devices: set[int] | None) -> bool:
    """Tell whether a source exists and is the same as on the nodes."""
    try:
        device = os.stat(source).st_dev
    except OSError:
        return False
    return devices is None or device in devices


def _cover(root: int, path: str, source: str, *, visible: bool, read_only: bool) -> None:
    """Mount a source at a path of the container, or something that fails if it is not visible."""
    from scrun.core import namespaces as ns

    try:
        mount_point = _place(root, path, of_file=_is_file(source))
    except FileNotFoundError:  # the runtime will make it, and only the node knows what it will be
        return
    try:
        if not visible:
            gone = _GONE_DIRECTORY if stat.S_ISDIR(os.fstat(mount_point).st_mode) else _GONE_FILE
            ns.mount(gone, f"/proc/thread-self/fd/{mount_point}", None, ns.BIND)
            return
        ns.mount(source, f"/proc/thread-self/fd/{mount_point}", None, ns.BIND | ns.RECURSIVE)
        if read_only:
            mounted = ns.open_within(root, path, os.O_PATH)
            try:
                _forbid_writing(mounted)
            finally:
                os.close(mounted)
    finally:
        os.close(mount_point)


def _is_file(source: str) -> bool | None:
    """Return whether the runtime makes a file as mount point, or None if unknown here."""
    if not source:  # a file system
        return False
    return not os.path.isdir(source) if os.path.exists(source) else None


def _place(root: int, path: str, *, of_file: bool | None) -> int:
    """Open a mount point; create what is missing of it, as the runtime will.

    Raises:
        FileNotFoundError: It does not exist, and its type is unknown.
    """
    from scrun.core import namespaces as ns

    names = [name for name in path.split("/") if name]
    here = os.dup(root)
    try:
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
    except BaseException:
        os.close(here)
        raise
    return here


def _forbid_writing(fd: int) -> None:
    """Make a mount read-only, and keep its other flags, which may not be cleared."""
    from scrun.core import namespaces as ns

    flags = os.fstatvfs(fd).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
    flags |= ns.REMOUNT | ns.BIND | ns.READ_ONLY
    ns.mount(None, f"/proc/thread-self/fd/{fd}", None, flags)
