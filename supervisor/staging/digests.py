"""Tells by digests what the layers of an engine's store contain, from the store's own records.

podman and buildah have `overlay/ID/diff`, and all their layers in `overlay-layers/layers.json`.
With the driver vfs they have `vfs/dir/ID`: a layer with all below it. docker has
`overlay2/ID/diff`, and for each layer of an image a directory in `image/overlay2/layerdb/sha256`;
its driver vfs has directories as podman's, and `image/vfs/layerdb` with `mounts` of containers.
containerd has `snapshots/ID/fs`, and in `metadata.db` what each is: the digest of the layer with
all below it. A layer that no record names, such as a container's own, has no digest. Everything
here blocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.paths import read_regular, read_trusted, replaceable
from scrun.core.typed import decode_as

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FILES = ("layers.json", "volatile-layers.json")
_DIR_OF_VFS = re.compile(r"(.+)/vfs/dir/([0-9a-f]{64})", re.DOTALL)
_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LONGEST = 256 << 20
_SHORT = 4096
_ATTEMPTS = 10
_COMMITTED = b"\x03"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


class LayerContent(msgspec.Struct, frozen=True):
    """What a layer contains.

    Attributes:
        digest: That of its archive, without compression, and anything else that decides on its
            files.
        size: About how many bytes its files have; 0: unknown.
    """

    digest: str
    size: int = 0


class _Layer(msgspec.Struct, frozen=True):
    """One of layers.json, in part."""

    id: str
    parent: str = ""
    digest: str = msgspec.field(name="diff-digest", default="")
    size: int = msgspec.field(name="diff-size", default=0)
    uidmap: Any = None
    gidmap: Any = None


def contents(layers: Sequence[str]) -> list[LayerContent | None]:
    """Return what layers contain, by records that nobody but root or this user can write."""
    stores: dict[str, dict[str, LayerContent]] = {}
    found: list[LayerContent | None] = []
    for layer in layers:
        if (dir_of_vfs := _DIR_OF_VFS.fullmatch(layer)) is not None:
            found.append(_chain(dir_of_vfs[1], dir_of_vfs[2]))
            continue
        above, last = os.path.split(layer)
        store, name = os.path.split(above)
        if last not in ("diff", "fs"):
            found.append(None)
            continue
        if store not in stores:
            stores[store] = dict(_read(store))
        found.append(stores[store].get(name))
    return found


def parent_of(layer: str) -> str | None:
    """Return the directory that a driver vfs has made another one from; None if unknown."""
    if (found := _DIR_OF_VFS.fullmatch(layer)) is None:
        return None
    record = _records(found[1]).get(found[2])
    parent = _parent_in_docker(found[1], found[2]) if record is None else record.parent
    return os.path.join(os.path.dirname(layer), parent) if _ID.fullmatch(parent) else None


def _parent_in_docker(root: str, name: str) -> str:
    """Return the name of the image's directory that docker's container has; "" if unknown."""
    records = os.path.join(root, "image", "vfs", "layerdb")
    mounts = os.path.join(records, "mounts")
    try:
        if replaceable(mounts):
            return ""
        containers = os.listdir(mounts)
    except OSError:
        return ""
    for container in containers:
        one = os.path.join(mounts, container)
        with contextlib.suppress(OSError, UnicodeDecodeError):  # it is being made, or removed
            if _word(one, "mount-id") == name and _DIGEST.fullmatch(chain := _word(one, "parent")):
                return _word(os.path.join(records, *chain.split(":")), "cache-id")
    return ""


def _word(folder: str, file: str) -> str:
    return read_regular(os.path.join(folder, file), _SHORT).decode().strip()


def _chain(root: str, name: str) -> LayerContent | None:
    """Return what a directory of a driver vfs contains: the layer with all below it."""
    records = _records(root)
    if name not in records:
        return dict(_of_docker(root, "vfs")).get(name)
    digests, size = [], 0
    while name:
        layer = records.pop(name, None)  # no layer twice
        if layer is None or (content := _content(layer)) is None:
            return None
        digests.append(content.digest)
        size += content.size
        name = layer.parent
    return LayerContent(f"vfs {' '.join(digests)}", size)


def _records(root: str) -> dict[str, _Layer]:
    found: dict[str, _Layer] = {}
    for name in _FILES:
        found |= {layer.id: layer for layer in _layers(os.path.join(root, "vfs-layers", name))}
    return found


def _read(store: str) -> Iterator[tuple[str, LayerContent]]:
    root, driver = os.path.split(store)
    if driver == "snapshots":
        yield from _of_containerd(os.path.join(root, "metadata.db"))
        return
    for name in _FILES:
        yield from _of_podman(os.path.join(root, f"{driver}-layers", name))
    yield from _of_docker(root, driver)


def _of_podman(path: str) -> Iterator[tuple[str, LayerContent]]:
    for layer in _layers(path):
        if (content := _content(layer)) is not None:
            yield layer.id, content


def _layers(path: str) -> list[_Layer]:
    try:
        return decode_as(read_trusted(path, limit=_LONGEST), list[_Layer])
    except (OSError, msgspec.DecodeError):
        return []


def _content(layer: _Layer) -> LayerContent | None:
    if not _DIGEST.fullmatch(layer.digest):
        return None
    # for containers with ids of their own podman has copies with other owners
    maps = [layer.uidmap, layer.gidmap] if layer.uidmap or layer.gidmap else []
    own = msgspec.json.encode(maps).decode() if maps else ""
    return LayerContent(layer.digest + own, layer.size)


def _of_docker(root: str, driver: str) -> Iterator[tuple[str, LayerContent]]:
    path = os.path.join(root, "image", driver, "layerdb", "sha256")
    try:
        if replaceable(path):
            return
        chains = os.listdir(path)
    except OSError:
        return
    for chain in chains:
        try:
            folder = os.path.join(path, chain)
            name, digest, size = (_word(folder, file) for file in ("cache-id", "diff", "size"))
        except (OSError, UnicodeDecodeError):
            continue
        if driver == "vfs" and _ID.fullmatch(chain):
            yield name, LayerContent(f"vfs chain {chain}")
        elif _DIGEST.fullmatch(digest):
            yield name, LayerContent(digest, int(size) if size.isdigit() else 0)


def _of_containerd(path: str) -> Iterator[tuple[str, LayerContent]]:
    try:
        content = b""
        for _ in range(_ATTEMPTS):
            before, content = content, read_trusted(path, limit=_LONGEST)
            if content == before:
                break
        else:
            return
        snapshots = Bolt(content).top.bucket(b"v1").bucket(b"snapshots")
        found = [(name, bucket.values()) for name, bucket in snapshots.buckets()]
    except (OSError, DamagedDatabase):
        return
    for name, values in found:
        # NAMESPACE/NUMBER/NAME; those of images have their digest as their name
        chain = name.rpartition(b"/")[2].decode(errors="replace")
        if values.get(b"kind") == _COMMITTED and _DIGEST.fullmatch(chain):
            size = _number(values.get(b"size", b""))
            yield str(_number(values.get(b"id", b""))), LayerContent(f"chain {chain}", size)


def _number(value: bytes) -> int:
    """Decode a number of seven bits in each byte, the lowest first."""
    return sum((byte & 0x7F) << (7 * index) for index, byte in enumerate(value[:10]))


_HEADER = struct.Struct("<QHHI")  # id, flags, count, overflow
_META = struct.Struct("<IIIIQQQQQQ")
_MAGIC, _VERSION = 0xED0CDAED, 2
_BRANCH, _LEAF = 1, 2
_BRANCH_ENTRY = struct.Struct("<IIQ")  # position, length of the key, page
_LEAF_ENTRY = struct.Struct("<IIII")  # flags, position, lengths of key and value
_BUCKET = struct.Struct("<QQ")  # page of its root, or 0 if that follows; sequence
_IS_BUCKET = 1
_DEEPEST = 64
_MOST = 1 << 20  # pages that are looked at: damaged ones may lead in circles
_FNV, _PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


class DamagedDatabase(ValueError):
    """The file is not bbolt's, or of another version."""


class Bucket:
    """A bucket, by its value in the one above."""

    def __init__(self, file: Bolt, root: int, inline: bytes) -> None:
        self._file = file
        self._root = root
        self._inline = inline

    def buckets(self) -> Iterator[tuple[bytes, Bucket]]:
        for key, value, flags in self._entries():
            if flags & _IS_BUCKET:
                yield key, self._file.bucket(value)

    def bucket(self, key: bytes) -> Bucket:
        """Return one of them; raise DamagedDatabase if it is missing."""
        for name, bucket in self.buckets():
            if name == key:
                return bucket
        raise DamagedDatabase(f"has no bucket {key!a}")

    def values(self) -> dict[bytes, bytes]:
        return {key: value for key, value, flags in self._entries() if not flags & _IS_BUCKET}

    def _entries(self) -> Iterator[tuple[bytes, bytes, int]]:
        page = self._file.page(self._root) if self._root else self._inline
        return self._file.entries(page, _DEEPEST)


class Bolt:
    """A file of bbolt, in which containerd keeps its records: buckets within buckets.

    containerd may write it at the same time, so a caller reads the file until it stays the same:
    what is on disk is complete at each moment.
    """

    def __init__(self, content: bytes) -> None:
        """Raise DamagedDatabase for a file that cannot be understood."""
        self._content = memoryview(content)
        self._size = 0
        self._left = _MOST
        metas = []
        for offset in (0, *(1 << power for power in range(10, 17))):
            try:
                meta = _META.unpack_from(content, offset + _HEADER.size)
            except struct.error:
                continue
            before = content[offset + _HEADER.size :][: _META.size - 8]
            if meta[:2] == (_MAGIC, _VERSION) and meta[9] == _checksum(before):
                metas.append(meta)
        if not metas:
            raise DamagedDatabase("is not bbolt's")
        latest = max(metas, key=lambda meta: int(meta[8]))
        self._size = int(latest[2])
        self.top = Bucket(self, int(latest[4]), b"")

    def page(self, number: int) -> bytes:
        """Return a page, with those that belong to it."""
        self._left -= 1
        if self._left < 0:
            raise DamagedDatabase("leads in circles")
        begin = number * self._size
        try:
            overflow = _HEADER.unpack_from(self._content, begin)[3]
        except (struct.error, OverflowError) as error:
            raise DamagedDatabase("ends too early") from error
        return bytes(self._content[begin : begin + (overflow + 1) * self._size])

    def bucket(self, value: bytes) -> Bucket:
        try:
            root, _ = _BUCKET.unpack_from(value)
        except struct.error as error:
            raise DamagedDatabase("has half a bucket") from error
        return Bucket(self, root, value[_BUCKET.size :])

    def entries(self, page: bytes, depth: int) -> Iterator[tuple[bytes, bytes, int]]:
        if not depth:
            raise DamagedDatabase("is too deep")
        try:
            _, kind, count, _ = _HEADER.unpack_from(page)
            for index in range(count):
                at = _HEADER.size + index * _LEAF_ENTRY.size
                if kind & _BRANCH:
                    below = _BRANCH_ENTRY.unpack_from(page, at)[2]
                    yield from self.entries(self.page(below), depth - 1)
                elif kind & _LEAF:
                    flags, position, key, value = _LEAF_ENTRY.unpack_from(page, at)
                    begin = at + position
                    yield page[begin : begin + key], page[begin + key :][:value], flags
                else:
                    raise DamagedDatabase("has a page of another kind")
        except struct.error as error:
            raise DamagedDatabase("ends too early") from error


def _checksum(content: bytes) -> int:
    found = _FNV
    for byte in content:
        found = ((found ^ byte) * _PRIME) & _MASK
    return found
