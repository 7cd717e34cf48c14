"""Images on the node's own disk, for nodes that do not see the store of images.

::

    TMPDIR/scrun-images-UID/    0700
      NAME                      an image, complete; its time is that of the last use
      NAME.part                 is being fetched

A shim that fetches an image locks its file exclusively, and a shim that uses one has a shared
lock. So a killed shim leaves nothing in use, and an image in use is not removed.
"""

import _socket as socket  # without its enums, which take some ms
import fcntl
import os
import signal

from .courier import FAILED, STRANGERS, WHOLE, Courier
from .dial import dial
from .door import listen
from .files import folders, is_private, own_only, remove_file
from .loop import READ
from .processes import kill_quietly
from .runtime import CallRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .children import Children
    from .containers import Reply
    from .loop import Loop
    from .streams import ShimStreams

    Peer = tuple[list[tuple[str, int]], bytes, float]

_WORDS = 4096

_PART = ".part"
"""How the name of one ends that is not complete."""
_LOW = 0.8
_MIB = 1 << 20


class Cache:
    """What this shim has of them."""

    def __init__(
        self,
        loop: "Loop",
        children: "Children",
        streams: "ShimStreams",
        address: str,
        tell_strangers: "Callable[[str], None]",
    ) -> None:
        """`address` is ours, as others may reach it, or "" if unknown.

        `tell_strangers` gets who connected for an image without knowing its secret.
        """
        self.tell_strangers = tell_strangers
        self._address = address
        self.loop, self.children, self.streams = loop, children, streams
        self._had: dict[str, CachedImage] = {}

    def fetch(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Reply with an image's path; or without, if it is ours to fetch, or being fetched.

        Raises:
            CallRefused: There is no place for it.
            OSError: Likewise.
        """
        name = call["name"]
        if "/" in name or name.startswith("."):
            raise CallRefused(f"{name}: not an image name")
        if call["id"] in self._had:
            raise CallRefused(f"there is an image {call['id']} already")
        path = os.path.join(folder_of_images(), name)
        image = self._had[call["id"]] = CachedImage(self, path, call["size"], call["limit"])
        image.begin(reply)

    def wait(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Wait for one that another shim fetches; then reply as `fetch`."""
        self._of(call).begin(reply, waits=True)

    def serve(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Pass an image on to peers that know a secret; reply with where."""
        image = self._of(call)
        port = image.serve(bytes.fromhex(call["secret"]), call["peers"])
        hosts = [host for host in (self._address, os.uname().nodename) if host]
        reply({"addresses": [[host, port] for host in hosts]})

    def receive(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Take an image from a stream or from a peer; reply with its path, once it is complete."""
        self._of(call).receive(call, reply)

    def leave(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Use it no longer, or stop fetching it."""
        image = self._had.pop(call["id"], None)
        if image is not None:
            image.leave()
        reply({})

    def leave_all(self) -> None:
        """Leave all: the shim ends."""
        for image in self._had.values():
            image.leave()

    def _of(self, call: "dict[str, Any]") -> "CachedImage":
        if call["id"] not in self._had:
            raise CallRefused(f"there is no image {call['id']}")
        return self._had[call["id"]]


class CachedImage:
    """One that a container uses, or is to."""

    def __init__(self, cache: Cache, path: str, size: int, limit: int) -> None:
        self._listener: socket.socket | None = None
        self._cache = cache
        self._path, self._part = path, path + _PART
        self._size, self._limit = size, limit
        self._fd = -1
        self._comes = self._whole = self._over = False
        self._secret = b""
        self._peers = 0
        self._asked: Reply | None = None  # whose call has no answer yet
        self._pid = 0  # of who waits for the lock, or carries it

    def begin(self, reply: "Reply", *, waits: bool = False) -> None:
        """Reply with its path if it is there; without, if it may or will be fetched."""
        self._is_asked(reply)
        try:
            self._look(waits)
        except (OSError, CallRefused) as error:
            self._answer({"error": str(error)})
            self.leave()

    def _is_asked(self, reply: "Reply") -> None:
        if self._asked is not None:
            raise CallRefused(f"{self._path}: something else is being done with it")
        self._asked = reply

    def _answer(self, words: "dict[str, Any]") -> None:
        reply, self._asked = self._asked, None
        if reply is not None:
            reply(words)

    def _look(self, waits: bool) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            pass
        else:
            if not _lock(self._fd, fcntl.LOCK_SH):  # it is being published, or removed
                self._is_busy(waits)
                return
            if _is_at(self._fd, self._path) and os.fstat(self._fd).st_size == self._size:
                os.utime(self._path)
                self._whole = True
                self._answer({"path": self._path})
                return
            self._close()
        self._fd = os.open(self._part, os.O_RDWR | os.O_CREAT, 0o600)
        if not _lock(self._fd, fcntl.LOCK_EX):
            self._is_busy(waits)
        elif not _is_at(self._fd, self._part):  # it is complete, or was given up
            self._close()
            self._look(waits)
        else:
            self._comes = True
            _make_room(self._part, self._size, self._limit)
            self._answer({})

    def _is_busy(self, waits: bool) -> None:
        """Say so, or look again when nobody changes it any more."""
        if not waits:
            self._close()
            self._answer({"comes": True})
            return
        fd = self._fd

        def wait() -> int:
            fcntl.flock(fd, fcntl.LOCK_SH)
            return 0

        def ended(_: int) -> None:
            self._pid = 0
            self._close()
            reply, self._asked = self._asked, None
            if reply is not None:  # it was not left
                self.begin(reply, waits=True)

        self._pid = self._cache.children.fork(wait, ended, (fd,))

    def serve(self, secret: bytes, peers: int) -> int:
        """Listen for peers, who get it at once if it is there, else while it arrives.

        Returns:
            The port.
        """
        self._stop_listening()
        self._listener, self._secret, self._peers = listen(), secret, peers
        port: int = self._listener.getsockname()[1]
        if self._whole:
            self._carry(-1)
        return port

    def receive(self, call: "dict[str, Any]", reply: "Reply") -> None:
        """Fetch it.

        Raises:
            CallRefused: It is there, or being fetched.
            OSError: The machine has no process or descriptor left.
        """
        if not self._comes or self._pid:
            raise CallRefused(f"{self._path}: is not to be received")
        self._is_asked(reply)
        try:
            self._receive(call)
        except BaseException:
            self._asked = None
            raise

    def _receive(self, call: "dict[str, Any]") -> None:
        os.lseek(self._fd, 0, os.SEEK_SET)  # another attempt may have failed
        os.ftruncate(self._fd, 0)
        expected = str(call["digest"])
        if "stream" not in call:
            addresses = [(str(host), int(port)) for host, port in call["addresses"]]
            peer = (addresses, bytes.fromhex(call["secret"]), float(call["patience"]))
            self._carry(-1, expected, peer)
            return
        source, there = os.pipe()
        try:
            self._cache.streams.sink(call["stream"], there)
        except ValueError:
            os.close(source)
            os.close(there)
            raise
        try:
            self._carry(source, expected)
        finally:
            os.close(source)

    def _carry(self, source: int, expected: str = "", peer: "Peer | None" = None) -> None:
        """Start a courier: from a descriptor, from a peer, or to peers alone."""
        here, there = os.pipe()
        os.set_blocking(here, False)
        listener = self._listener

        def work() -> int:
            courier = Courier(self._fd, self._size, there)
            if listener is not None:
                courier.serve(listener, self._secret, self._peers)
            begins = source
            if peer is not None:
                try:
                    begins = dial(*peer)[0].detach()
                except (OSError, OverflowError) as error:
                    courier.tell(FAILED, str(error))
                    return 1
            courier.take_from(begins, expected)
            return courier.run()

        lines = _Lines(here)

        def told(_: int) -> None:
            for line in lines.read():
                if line == WHOLE and self._comes and not self._over:
                    self._complete()
                elif line[:1] == STRANGERS:
                    self._cache.tell_strangers(line[1:].decode("utf-8", "replace").strip())
                elif line[:1] == FAILED:
                    words.append(line[1:].decode("utf-8", "replace").strip())
            if lines.is_over:
                self._cache.loop.forget(here)

        def ended(_: int) -> None:
            self._pid = 0
            told(0)
            self._cache.loop.forget(here)
            os.close(here)
            if self._comes and not self._over:
                why = "".join(words) or "its courier was killed"
                self._answer({"error": f"{self._path}: {why}"})

        words: list[str] = []
        kept = [fd for fd in (self._fd, source, there) if fd >= 0]
        kept += [] if listener is None else [listener.fileno()]
        try:
            self._pid = self._cache.children.fork(work, ended, kept)
        except OSError:
            os.close(here)
            raise
        finally:
            os.close(there)
            self._stop_listening()
        self._cache.loop.watch(here, READ, told)

    def _complete(self) -> None:
        """Publish it: its content is on the disk."""
        try:
            os.rename(self._part, self._path)
            fcntl.flock(self._fd, fcntl.LOCK_SH)
        except OSError as error:
            self._answer({"error": str(error)})
            return
        self._comes, self._whole = False, True
        self._answer({"path": self._path})

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def leave(self) -> None:
        """Have nothing to do with it any more; if it is not complete, nothing is left of it."""
        self._over = True
        self._answer({"error": f"{self._path}: no longer wanted"})
        if self._pid:
            kill_quietly(self._pid, signal.SIGKILL)
        self._stop_listening()
        if self._comes:
            self._comes = False
            remove_file(self._part)
        self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Lines:
    """Lines of a pipe, as they arrive."""

    def __init__(self, fd: int) -> None:
        """Read a non-blocking descriptor."""
        self.is_over = False
        self._fd, self._rest = fd, b""

    def read(self) -> "list[bytes]":
        """Return those that have arrived, with their ends."""
        while not self.is_over:
            try:
                data = os.read(self._fd, _WORDS)
            except BlockingIOError:
                break
            self.is_over = not data
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [line + b"\n" for line in lines]


def _lock(fd: int, how: int) -> bool:
    """Lock a file if nobody has; return whether that is so."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(fd: int, path: str) -> bool:
    """Tell whether a path still leads to an open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def folder_of_images() -> str:
    """Return the directory of images on this node; make it if it is missing.

    Raises:
        OSError: It cannot be made.
        CallRefused: Somebody else has made it.
    """
    errors = []
    for folder in folders(os.environ):
        try:
            path = os.path.join(own_only(folder), f"scrun-images-{os.geteuid()}")
            os.mkdir(path, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            errors.append(str(error))
            continue
        if is_private(path):
            return path
        errors.append(f"{path} is not the user's own")
    raise CallRefused(f"no directory for images on the node: {errors[0]}")


def _make_room(part: str, size: int, limit: int) -> None:
    """Remove images that nobody uses, those unused for longest first, until there is room.

    Args:
        limit: The most bytes of all images; 0: any number.

    Raises:
        CallRefused: There is not enough.
    """
    folder = os.path.dirname(part)
    found, total = [], 0
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name.endswith(_PART):
            if path != part:
                _remove_if_free(path)  # its shim was killed
            continue
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        found.append((status.st_mtime, status.st_size, path))
        total += status.st_size
    excess = total + size - int(limit * _LOW) if limit and total + size > limit else 0
    for _, bytes_of, path in sorted(found):
        if excess <= 0 and size <= _free(folder):
            break
        if _remove_if_free(path):
            excess -= bytes_of
            total -= bytes_of
    if limit and total + size > limit:
        had = f"; others, which are used, have {total // _MIB}" if total else ""
        most = f"images may have {limit // _MIB} there ([images] node_size){had}"
        raise CallRefused(f"no room for {size // _MIB} MiB on the node: {most}")
    if size > _free(folder):
        raise CallRefused(f"no room for {size // _MIB} MiB in {folder} on the node")


def _free(folder: str) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def _remove_if_free(path: str) -> bool:
    """Remove a file that nobody has locked; return whether it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        if not _lock(fd, fcntl.LOCK_EX):
            return False
        if _is_at(fd, path):
            os.unlink(path)
        return True
    finally:
        os.close(fd)
