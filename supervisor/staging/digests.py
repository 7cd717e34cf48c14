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
from typing import TYPE_CHECKING, Any

import msgspec

from scrun.core.paths import read_regular, read_trusted, replaceable
from scrun.supervisor.staging.bolt import Bolt, DamagedDatabase

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
        files. size: About how many bytes its files have; 0: unknown.
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
    """Return what each layer contains, as far as it is known.

    Only records that nobody but root or this user can write count: others could pass their files
    off as those of an image.
    """
    stores: dict[str, dict[str, LayerContent]] = {}
    found: list[LayerContent | None] = []
    for layer in layers:
        if (dir_of_vfs := _DIR_OF_VFS.fullmatch(layer)) is not None:
            found.append(_chain(dir_of_vfs[1], dir_of_vfs[2]))
            continue
        store, name, last = _parts(layer)
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


def _parts(layer: str) -> tuple[str, str, str]:
    above, last = os.path.split(layer)
    store, name = os.path.split(above)
    return store, name, last


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
        return msgspec.json.decode(read_trusted(path, limit=_LONGEST), type=list[_Layer])
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
