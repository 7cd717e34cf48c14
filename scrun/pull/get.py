"""Gets an image into the store, from wherever its name says.

What is in the store is not fetched again: by digest no registry is asked, and a tag means what it
meant when it was last looked up, for `[images] fresh` seconds.
"""

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from functools import partial

import msgspec

from scrun.core.errors import ImageError, ScrunError
from scrun.core.progress import Say
from scrun.images.leases import Lease, Lock
from scrun.images.squashfs import identity, key_of
from scrun.images.store import (
    FOREVER,
    ROOTFS,
    Defaults,
    Entry,
    Facts,
    Store,
    digest_of_words,
    find_elsewhere,
    look_up,
    remember,
    shrink,
)
from scrun.images.store import SQUASHFS as LINK
from scrun.oci.document import decode
from scrun.oci.image import LayoutImage, find_image
from scrun.pull import layout
from scrun.pull.programs import REMEDY, run
from scrun.pull.reference import DIRECTORY, NAMED, SQUASHFS, Reference
from scrun.pull.squashfs import look_into_squashfs, unpack_squashfs

_LISTS = (
    b"application/vnd.oci.image.index.v1+json",
    b"application/vnd.docker.distribution.manifest.list.v2+json",
)
_LAYOUT, _TAG = "layout", "image"
_TRIES = 5
_BAR_INTERVAL = 0.1


class Request(msgspec.Struct, frozen=True):
    """A request for an image.

    Attributes:
        fresh: Seconds for which a tag is not looked up again.
        say: Shows what is going on, in place of what it has shown before; `warn` prints a line.
        shown: Whether what is shown is seen.
        also: Further stores, which are only read.
        limit: The most bytes of the store; 0: any number.
        mounts: Whether nodes are likely to mount squashfs files.
        unpacked: The most bytes that the image may unpack to; 0: any number.
    """

    store: Store
    fresh: float
    say: Say
    shown: bool
    warn: Callable[[str], None]
    also: tuple[str, ...] = ()
    limit: int = 0
    mounts: bool = False
    unpacked: int = 0


class Bar:
    """Shows how far an image is, from its first byte to its last: got, then unpacked, in one bar.

    It never goes back. Where the size is not known before, it stands still until all is here.
    """

    def __init__(
        self,
        name: str,
        show: Say,
        tell: Callable[[str], None] = lambda text: None,
        size: int = 0,
    ) -> None:
        # `show` replaces the last line; `tell` tells those who wait for the same image; `size` is
        # in bytes, 0 if it is not known
        self._name, self._show, self._tell, self._size = name, show, tell, size
        self._began = 0.0  # how much of the bar getting it takes
        self._shown = -1.0

    def got(self, count: int) -> None:
        self._began = 0.5
        if self._size:
            self.say(0.5 * min(1.0, count / self._size), f"{count >> 20} MiB are here")
        else:
            self.say(0.0, f"{count >> 20} MiB are here")

    def unpacked(self, count: int, total: int) -> None:
        share = count / total if total else 1.0
        text = f"{count >> 20} of {total >> 20} MiB are unpacked"
        self.say(self._began + (1 - self._began) * min(1.0, share), text)

    def say(self, share: float, text: str) -> None:
        """Show a share of the whole, unless the last one was shown just now."""
        now = time.monotonic()
        if now - self._shown < _BAR_INTERVAL and share < 1:
            return
        self._shown = now
        self._tell(text)
        self._show(f"{self._name}: {text}", share)


def get(reference: Reference, request: Request, lease: "Lease | None" = None) -> Entry:
    """Return an image of the store; get it if it is missing. The lease keeps it."""
    store = request.store.names() if reference.transport == NAMED else request.store
    began = time.time()
    for _ in range(_TRIES):
        entry = _get(reference, request)
        elsewhere = os.path.dirname(entry.directory) != store.path
        if lease is None or elsewhere or store.lease(entry.key, lease):
            if request.limit and entry.facts.made >= began:
                shrink(request.store, request.limit)
            return entry
    raise ImageError(f"{reference.text}: is removed as soon as it is there; try again")


def _get(reference: Reference, request: Request) -> Entry:
    store, name = request.store, reference.name
    if reference.transport == NAMED:
        if entry := store.names().find(name):
            return entry
        remedy = f"`scrun run --writable --name {name} IMAGE` makes one"
        raise ImageError(f"{reference.text}: there is no root file system of this name; {remedy}")
    if reference.transport == DIRECTORY:
        real = os.path.realpath(name)
        return store.make(f"dir-{digest_of_words(real)}", partial(_linked, reference, real))
    if reference.transport == SQUASHFS:
        key = key_of(name, unpacked=not request.mounts)
        return _make(key, request, partial(_of_squashfs, reference, request))
    if reference.transport == "oci":
        image = find_image(name)
        digest = layout.manifest_digest(image)
        kind = str(image.descriptor.get("mediaType"))
        key = _key(digest, os.uname().machine if kind.encode() in _LISTS else "")
        return _make(key, request, partial(_of_layout, reference, image, digest, request))
    digest, key = _resolve(reference, request)
    return _make(key, request, partial(_by_skopeo, reference, digest, request))


def _make(key: str, request: Request, fill: "Callable[[str, Lock], Facts]") -> Entry:
    store = request.store
    if entry := store.find(key) or find_elsewhere(request.also, key):
        return entry

    def waiting(said: str) -> None:
        request.say(f"somebody else gets this image{': ' if said else ''}{said}")

    try:
        return store.make(key, fill, waiting)
    finally:
        request.say("")


def _key(digest: str, of_many: str = "") -> str:
    return digest.replace(":", "-") + (f"-{of_many}" if of_many else "")


def _resolve(reference: Reference, request: Request) -> tuple[str, str]:
    store, source = request.store, reference.source()
    age = request.fresh
    # platforms are one name, and several images
    words: tuple[object, ...] = (source, os.uname().machine)
    if reference.digest:
        age = FOREVER
    elif reference.transport.endswith("-archive"):
        age = FOREVER
        words = (source, *identity(_file_of(reference.name)))
    elif reference.transport == "containers-storage":
        age = -1.0
    name = "\n".join(map(str, words))
    if found := look_up(store, name, age):
        return found
    what = f"{reference.text}: skopeo cannot find it"
    try:
        raw = run("skopeo", "inspect", "--raw", source, what=what)
    except ImageError as error:
        known = look_up(store, name, FOREVER)
        if reference.transport != "docker" or not known or not store.find(known[1]):
            raise
        request.warn(f"{error}; the image of the store is used")
        return known
    digest = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if reference.digest and digest != reference.digest:
        raise ImageError(f"{reference.text}: its registry has other content there: {digest}")
    key = _key(digest, os.uname().machine if any(kind in raw for kind in _LISTS) else "")
    remember(store, name, digest, key)
    return digest, key


def _file_of(name: str) -> str:
    """Return the file of an archive, whose name may be followed by that of an image."""
    path = name
    while path and not os.path.lexists(path):
        path = path.rpartition(":")[0]
    return path or name


def _linked(reference: Reference, real: str, directory: str, lock: Lock) -> Facts:
    os.symlink(real, os.path.join(directory, ROOTFS))
    return Facts(reference.text, defaults=Defaults(cmd=("/bin/sh",)))


def _of_squashfs(reference: Reference, request: Request, directory: str, lock: Lock) -> Facts:
    """Make an image of a file: a link to it, and what is in its root directory; or its files."""
    file, rootfs = reference.name, os.path.join(directory, ROOTFS)
    if request.mounts:
        with contextlib.suppress(ImageError):  # unsquashfs is old; or says below what is wrong
            defaults = look_into_squashfs(file, rootfs)
            os.symlink(os.path.realpath(file), os.path.join(directory, LINK))
            return Facts(reference.text, defaults=defaults)
    size, bar = os.stat(file).st_size, Bar(file, request.say, lock.say)
    defaults = unpack_squashfs(
        file, rootfs, request.unpacked, lambda count: bar.unpacked(count, size)
    )
    return Facts(reference.text, defaults=defaults)


def _of_layout(
    reference: Reference,
    image: LayoutImage,
    digest: str,
    request: Request,
    directory: str,
    lock: Lock,
    bar: Bar | None = None,
) -> Facts:
    bar = bar or Bar(reference.text, request.say, lock.say)
    os.mkdir(rootfs := os.path.join(directory, ROOTFS), 0o755)
    configuration = layout.unpack(image, rootfs, request.unpacked, bar.unpacked)
    defaults = layout.defaults_of(image, configuration, rootfs)
    return Facts(reference.text, digest, defaults=defaults)


def _by_skopeo(
    reference: Reference, digest: str, request: Request, directory: str, lock: Lock
) -> Facts:
    folder = os.path.join(directory, _LAYOUT)
    # what was looked up, whatever the tag means by now
    of_registry = digest if reference.transport == "docker" else ""
    if not request.shown:
        request.warn(f"getting {reference.text}")
    size = _size(reference, of_registry) if request.shown else 0
    bar = Bar(reference.text, request.say, lock.say, size)

    def look(_: int) -> None:
        """Show what has arrived; refuse more bytes than the image may even unpack to."""
        count, most = _bytes(folder), request.unpacked
        if most and count > most:
            raise ImageError(f"{reference.text}: has more than {most >> 20} MiB: {REMEDY}")
        bar.got(count)

    run(
        *("skopeo", "copy", "--quiet", reference.source(of_registry), f"oci:{folder}:{_TAG}"),
        what=f"{reference.text}: skopeo cannot get it",
        progress=look,
    )
    image = find_image(f"{folder}:{_TAG}")
    facts = _of_layout(reference, image, digest, request, directory, lock, bar)
    shutil.rmtree(folder)
    return facts


def _size(reference: Reference, digest: str) -> int:
    """Return how many bytes an image has, so far as it is worth to ask; else 0."""
    if reference.transport.endswith("-archive"):
        with contextlib.suppress(OSError):
            return os.stat(_file_of(reference.name)).st_size
    if reference.transport != "docker":
        return 0
    for _ in range(2):  # the first one may be an index
        source = reference.source(digest)
        with contextlib.suppress(ScrunError):
            raw = run("skopeo", "inspect", "--raw", source, what=source)
            content = decode(raw, source)
            if size := layout.size_of_layers(content):
                return size
            digest = layout.digest_of_here(content)
    return 0


def _bytes(folder: str) -> int:
    total = 0
    for directory, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
    return total
