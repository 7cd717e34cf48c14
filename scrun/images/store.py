"""The store of images: a directory that the nodes see, with a root file system for each key.

::

    STORE/                   0700, one user's
      KEY/                   an image: complete if it is there, and never changed
        scrun-image.json     what it is (`Facts`); its time is that of the last use
        rootfs/              its root file system, or a link to a directory of the user's
        rootfs.sqfs          or this: a file system to be mounted, or a link to a file of the
                             user's. Then `rootfs` has only what is in the root directory, or is
                             missing: of a layer
        empty/               is empty
      leases/KEY/            containers that use it (`scrun.images.leases`)
      locks/KEY              held by whoever makes or removes it (`scrun.images.leases`)
      names/                 a store of root file systems with names, which are written to
      tags/                  what a tag named, and when (`scrun.images.store`)
      tmp/KEY.HOST.PID.…/    is being made, or removed

A key says what the content is: two things with one key are the same. Everything here blocks: in a
supervisor, call it in a worker thread.
"""

import contextlib
import os
import pwd
import re
import socket
import subprocess
import time
from _blake2 import blake2s
from collections.abc import Callable, Mapping, Sequence

import msgspec

from scrun.core.errors import ImageError, ScrunError, SettingsError, described
from scrun.core.paths import real_id, replaceable
from scrun.core.trees import everything_below, remove_tree
from scrun.core.typed import decode_as
from scrun.core.whole_files import write_whole
from scrun.images import leases
from scrun.images.leases import Lock, locked, locked_if_free
from scrun.settings.file.load import Settings
from scrun.settings.oci_conf.patterns import substitute

FACTS = "scrun-image.json"
ROOTFS = "rootfs"
SQUASHFS = "rootfs.sqfs"
EMPTY = "empty"

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+-]{0,127}")
_FOLDERS = ("leases", "locks", "tags", "tmp")
_DAY = 86400.0
_LARGEST = 16 << 20
_REMEDY = "name another directory in [images] store of scrun.toml"


class Defaults(msgspec.Struct, frozen=True):
    """How an image's program is started, as far as the image says.

    `cmd` are the words after the entrypoint, unless the user has others; `env` is `NAME=VALUE`.
    `unknown_user` is why the image's user is not known; "" if they are.
    """

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    cwd: str = "/"
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    unknown_user: str = ""


class Facts(msgspec.Struct, frozen=True):
    """What is known of an image.

    Attributes:
        source: Where it came from, as a user wrote it.
        digest: That of its manifest; "" if it has none.
        size: Bytes on disk.
        writable: Whether containers write to its root file system.
        format: The version of this file.
    """

    source: str
    digest: str = ""
    size: int = 0
    made: float = 0.0
    writable: bool = False
    defaults: Defaults = Defaults()
    format: int = 1


class Entry(msgspec.Struct, frozen=True):
    """An image of the store; its directory is a bundle without config.json."""

    key: str
    directory: str
    facts: Facts

    @property
    def rootfs(self) -> str:
        return os.path.join(self.directory, ROOTFS)

    def used(self) -> float:
        try:
            return os.stat(os.path.join(self.directory, FACTS)).st_mtime
        except FileNotFoundError:
            return self.facts.made


Fill = Callable[[str, Lock], Facts]
"""Makes `rootfs` or `rootfs.sqfs` in a directory, and says how far it is by the lock."""


def read_facts(directory: str) -> "Facts | None":
    """Return what is known of the image in a directory; None if there is none."""
    try:
        with open(os.path.join(directory, FACTS), "rb") as file:
            return decode_as(file.read(_LARGEST), Facts)
    except (OSError, msgspec.MsgspecError):
        return None


def find_elsewhere(stores: Sequence[str], key: str) -> "Entry | None":
    """Return an image of stores that are only read; None if no trustworthy one has it.

    Nothing keeps it from being removed there.
    """
    for store in stores:
        directory = os.path.join(store, _checked(key))
        try:
            if replaceable(directory):
                continue
        except OSError:
            continue
        if facts := read_facts(directory):
            return Entry(key, directory, facts)
    return None


class Store:
    """A store; see above."""

    def __init__(self, path: str, discard: Callable[[str], None] = remove_tree) -> None:
        """Make the directories, ours alone; `discard` removes subordinate ids' files, too."""
        self.path = path
        self._discard = discard
        try:
            if reason := replaceable(path):
                raise ImageError(f"store of images {reason}; {_REMEDY}")
            for name in (path, *(os.path.join(path, name) for name in _FOLDERS)):
                os.makedirs(name, mode=0o700, exist_ok=True)
            status = os.stat(path)
        except OSError as error:
            raise ImageError(f"store of images: {described(error)}; {_REMEDY}") from error
        if status.st_uid != os.geteuid():
            owner = f"belongs to uid {status.st_uid}"
            raise ImageError(f"store of images {path}: {owner}; {_REMEDY}")

    def names(self) -> "Store":
        """Return the store of root file systems with names; they are its keys."""
        return Store(os.path.join(self.path, "names"), self._discard)

    def find(self, key: str) -> "Entry | None":
        directory = os.path.join(self.path, _checked(key))
        facts = read_facts(directory)
        return Entry(key, directory, facts) if facts else None

    def entries(self) -> list[Entry]:
        names = [name for name in sorted(os.listdir(self.path)) if _KEY.fullmatch(name)]
        return [entry for name in names if (entry := self.find(name))]

    def make(
        self, key: str, fill: Fill, waiting: Callable[[str], None] = lambda said: None
    ) -> Entry:
        """Return an image; make it, one at a time, or leave nothing when `fill` raises."""
        if entry := self.find(key):
            return entry
        with locked(self._lock(key), waiting=waiting) as lock:
            if entry := self.find(key):
                return entry
            self._clear(key)
            directory = self._temporary(key)
            try:
                os.mkdir(directory, 0o700)
                self._publish(key, directory, fill(directory, lock))
            except OSError as error:
                raise ImageError(f"store of images {self.path}: {described(error)}") from error
            finally:
                if os.path.lexists(directory):
                    self._discard(directory)
        if entry := self.find(key):
            return entry
        raise ImageError(f"store of images {self.path}: {key} was removed meanwhile; try again")

    def _publish(self, key: str, directory: str, facts: Facts) -> None:
        os.mkdir(os.path.join(directory, EMPTY), 0o700)
        size = _size(directory)
        facts = msgspec.structs.replace(facts, size=size, made=time.time())
        with open(os.path.join(directory, FACTS), "wb") as file:
            file.write(msgspec.json.encode(facts))
        # all of it, before the name is there: after a crash a complete image has its content
        subprocess.run(["sync", "-f", directory], check=False, stderr=subprocess.DEVNULL)
        try:
            os.rename(directory, os.path.join(self.path, key))
        except OSError:
            if not self.find(key):  # another machine was faster
                raise

    def lease(self, key: str, lease: leases.Lease) -> "Entry | None":
        """Keep an image from being removed, for a container; None if it is not there.

        It holds until the container's record and this process are gone, or `give_back` is called.
        """
        with locked(self._lock(key), shared=True):
            if (entry := self.find(key)) is None:
                return None
            leases.take(self._leases(key), lease)
            with contextlib.suppress(OSError):
                os.utime(os.path.join(entry.directory, FACTS))
            return entry

    def give_back(self, key: str, lease: leases.Lease) -> None:
        leases.give_back(self._leases(key), lease)

    def users(self, key: str) -> list[leases.Lease]:
        return leases.those_that_hold(self._leases(key))

    def remove(self, key: str) -> list[leases.Lease]:
        with locked(self._lock(key)):
            if held := self.users(key):
                return held
            trash = self._temporary(key)
            with contextlib.suppress(FileNotFoundError):
                os.rename(os.path.join(self.path, key), trash)
            # where locks do not reach other machines, one of them may have leased it meanwhile
            if held := self.users(key):
                os.rename(trash, os.path.join(self.path, key))
                return held
            if os.path.lexists(trash):
                self._discard(trash)
            leases.remove_all(self._leases(key))
        return []

    def tidy(self) -> None:
        """Remove what killed processes have left."""
        for key in {name.partition(".")[0] for name in os.listdir(self._temporaries)}:
            if _KEY.fullmatch(key):
                with locked_if_free(self._lock(key)) as free:
                    if free:
                        self._clear(key)

    def tag_file(self, name: str) -> str:
        return os.path.join(self.path, "tags", _checked(name))

    @property
    def _temporaries(self) -> str:
        return os.path.join(self.path, "tmp")

    def _temporary(self, key: str) -> str:
        unique = f"{_checked(key)}.{_host()}.{os.getpid()}.{time.monotonic_ns()}"
        return os.path.join(self._temporaries, unique)

    def _lock(self, key: str) -> str:
        return os.path.join(self.path, "locks", _checked(key))

    def _leases(self, key: str) -> str:
        return os.path.join(self.path, "leases", _checked(key))

    def _clear(self, key: str) -> None:
        """Remove what was being made of a key; its lock is held."""
        for name in os.listdir(self._temporaries):
            of, _, rest = name.partition(".")
            path = os.path.join(self._temporaries, name)
            with contextlib.suppress(FileNotFoundError):
                # where locks do not reach other machines, somebody there may be at it
                if of == key and (rest.startswith(f"{_host()}.") or _is_old(path)):
                    self._discard(path)


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ImageError(
            f"{key[:80]!r}: is not a valid name in a store of images: use letters, digits, _ + -"
        )
    return key


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:64]


def _is_old(path: str) -> bool:
    return time.time() - os.lstat(path).st_mtime > _DAY


def _size(directory: str) -> int:
    return sum(status.st_blocks * 512 for status in everything_below(directory))


_LOW = 0.8


def size_of(entries: list[Entry]) -> int:
    """Return how many bytes images take."""
    return sum(entry.facts.size for entry in entries)


def shrink(store: Store, limit: int, *, more: int = 0) -> list[Entry]:
    """Remove images until there is room; never what a container uses.

    `limit` is the most bytes; 0: any number. If there are more, four fifths of it stay, so that
    not every new image evicts another. `more` bytes are needed besides; for them, images go even
    below the limit.

    Returns:
        What was removed.
    """
    with contextlib.suppress(OSError, ScrunError):
        store.tidy()
    entries = [entry for entry in store.entries() if not entry.facts.writable]
    size = size_of(entries)
    excess = size - int(limit * _LOW) if limit and size > limit else 0
    excess = max(excess, more)
    removed: list[Entry] = []
    for entry in sorted(entries, key=Entry.used):
        if excess <= 0:
            break
        # what cannot be removed, or not yet, makes others go
        with contextlib.suppress(OSError, ScrunError):
            if not store.remove(entry.key):
                removed.append(entry)
                excess -= entry.facts.size
    return removed


FOREVER = float("inf")
_LARGEST_TAG = 65536
_TAG = re.compile("[0-9a-f]{32}")


class _Tag(msgspec.Struct, frozen=True):
    """What a name meant when it was looked up: a manifest's digest, or "", and an image's key."""

    name: str
    digest: str
    key: str
    when: float


def digest_of_words(*words: object) -> str:
    """Return a short digest of words, for names."""
    text = "\0".join(map(str, words)).encode(errors="surrogateescape")
    return blake2s(text, digest_size=16).hexdigest()


def look_up(store: Store, name: str, age: float) -> "tuple[str, str] | None":
    """Return the digest and the key that a name meant, if that is not older than `age` seconds."""
    try:
        with open(store.tag_file(digest_of_words(name)), "rb") as file:
            tag = decode_as(file.read(_LARGEST_TAG), _Tag)
    except (OSError, msgspec.MsgspecError):
        return None
    if tag.name != name or not -1 <= time.time() - tag.when <= age:
        return None
    return tag.digest, tag.key


def remember(store: Store, name: str, digest: str, key: str) -> None:
    tag = _Tag(name, digest, key, time.time())
    write_whole(store.tag_file(digest_of_words(name)), msgspec.json.encode(tag))


def forget(store: Store, keys: "set[str]") -> None:
    """Remove the names of images that are gone, and what killed processes have left of names."""
    folder = os.path.join(store.path, "tags")
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        try:
            if not _TAG.fullmatch(name):
                if time.time() - os.stat(path).st_mtime > _DAY:
                    os.unlink(path)
                continue
            with open(path, "rb") as file:
                tag = decode_as(file.read(_LARGEST_TAG), _Tag)
            if tag.key in keys:
                os.unlink(path)
        except (OSError, msgspec.MsgspecError):
            continue


def path_for(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return the directory of this user's store, by HOME and the name service."""
    uid = real_id("uid")
    home = environment.get("HOME")
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return store_path(settings, uid=uid, user=None, home=home)
    return store_path(settings, uid=uid, user=user.pw_name, home=home or user.pw_dir)


def store_path(settings: Settings, *, uid: int, user: "str | None", home: "str | None") -> str:
    """Return the directory of a user's store; what is needed must not be None. Pure."""
    named = settings.images.store
    if named is not None:
        return _fill_in("[images] store", named, uid, user)
    if (scratch := settings.staging.scratch) is not None:
        return os.path.join(_fill_in("[staging] scratch", scratch, uid, user), f"images-{uid}")
    if home is None:
        raise SettingsError(
            f"no directory for the images of uid {uid}, who has no home: set `store` in the "
            "section [images] of scrun.toml"
        )
    return os.path.join(home, ".cache", "scrun", "images")


def _fill_in(setting: str, pattern: str, uid: int, user: "str | None") -> str:
    if user is None and "%u" in pattern.replace("%%", ""):
        raise SettingsError(
            f"{setting} = {pattern!r}: uid {uid} has no user name: use %U, the uid, instead of %u"
        )
    values = {"u": user or str(uid), "U": str(uid)}
    return substitute(pattern, values, shell=False)


def image_of(bundle: str, rootfs: str) -> "Facts | None":
    """Return the image that `root.path` of a bundle's config.json is, or None."""
    if os.path.normpath(os.path.join(bundle, rootfs)) != os.path.join(bundle, ROOTFS):
        return None
    return read_facts(bundle)
