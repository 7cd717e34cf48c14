"""Unpacks an image in an OCI image layout (image-layout.md), and reads how its program is started.

The layout may be hostile: a blob's name is a digest and nothing else, a blob is a regular file,
and its size and digest are looked at before anything of it is.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from scrun.core.errors import ImageError, why
from scrun.core.inside import read_inside
from scrun.core.paths import LIMIT, open_regular
from scrun.core.trees import OPEN_FOLDER
from scrun.images.store import Defaults
from scrun.oci.document import decode
from scrun.oci.image import LayoutImage, architecture, of_here
from scrun.pull.layers import Bounds, layer
from scrun.pull.tree import Tree

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_PIECE = 1 << 20
_NESTED = 4  # indexes that lead to indexes
_CONFIGURATIONS = ("vnd.oci.image.config.v1+json", "vnd.docker.container.image.v1+json")


class Configuration(NamedTuple):
    """What an image says of itself (config.md): the whole, and its `config`, to be run."""

    whole: dict[str, Any]
    run: dict[str, Any]


def manifest_digest(image: LayoutImage) -> str:
    """Return the digest of an image's manifest, or of an index of it."""
    return _digest(image.descriptor, image)


def unpack(
    image: LayoutImage,
    rootfs: str,
    size: int,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Configuration:
    """Unpack an image into an empty directory; return what the image says of itself.

    For an ordinary user all files belong to that user. It may unpack to `size` bytes; 0: any
    number. `progress` is called with the bytes of layers that were read, and of all.
    """
    manifest = _manifest(image)
    whole = _blob(image, manifest.get("config"))
    run = whole.get("config")
    layers = manifest.get("layers")
    layers = layers if isinstance(layers, list) else []
    listed = whole.get("rootfs")
    digests = listed.get("diff_ids") if isinstance(listed, dict) else None
    if not isinstance(digests, list) or len(digests) != len(layers):
        raise ImageError(f"{image}: its configuration has other layers than its manifest")
    total = size_of_layers(manifest)
    bounds = Bounds(size)
    with Tree(rootfs, bounds) as tree:
        done = 0
        for number, (descriptor, diff_id) in enumerate(zip(layers, digests, strict=True), 1):
            blob = _open(image, descriptor)
            try:
                what = f"{image}: layer {number}:"

                def said(at: int, before: int = done) -> None:
                    progress(before + at, total)

                with layer(blob, str(diff_id), bounds, said) as archive:
                    tree.add(archive)
            except ImageError as error:
                raise ImageError(f"{what} {error}") from error
            finally:
                os.close(blob)
            done += max(0, _size(descriptor))
        volumes = run.get("Volumes") if isinstance(run, dict) else None
        for volume in volumes if isinstance(volumes, dict) else ():
            tree.make(os.fsencode(volume))
        tree.finish()
    return Configuration(whole, run if isinstance(run, dict) else {})


def size_of_layers(manifest: object) -> int:
    """Return the bytes of the layers of a manifest."""
    layers = manifest.get("layers") if isinstance(manifest, dict) else None
    return sum(max(0, _size(each)) for each in layers) if isinstance(layers, list) else 0


def digest_of_here(index: object) -> str:
    """Return the digest that an index has for this machine's platform, or ""."""
    listed = index.get("manifests") if isinstance(index, dict) else None
    listed = listed if isinstance(listed, list) else []
    chosen = of_here([one for one in listed if isinstance(one, dict)]) or {}
    return str(chosen.get("digest", ""))


def defaults_of(image: LayoutImage, configuration: Configuration, rootfs: str) -> Defaults:
    """Return how an image's program is started; `rootfs` has the numbers of its user."""
    config = configuration.run
    user, unknown = Account(), ""
    root = os.open(rootfs, OPEN_FOLDER | os.O_CLOEXEC)
    try:
        user = find_user(root, _word(config.get("User")))
    except ImageError as error:
        unknown = f"{image}: {error}"
    finally:
        os.close(root)
    env = environment(config.get("Env"), user)
    return Defaults(
        entrypoint=_words(config.get("Entrypoint")),
        cmd=_words(config.get("Cmd")),
        env=env,
        cwd=os.path.join("/", _word(config.get("WorkingDir"))),
        uid=user.uid,
        gid=user.gid,
        groups=user.groups,
        unknown_user=unknown,
    )


def environment(value: object, user: Account) -> tuple[str, ...]:
    """Return the variables of an image, and HOME; entries without `=` are ignored."""
    env = tuple(word for word in _words(value) if word.find("=") > 0)
    if not any(word.startswith("HOME=") for word in env):
        env = (*env, f"HOME={user.home or '/'}")
    return env


def _manifest(image: LayoutImage) -> dict[str, Any]:
    content = _blob(image, image.descriptor)
    for _ in range(_NESTED):
        listed = content.get("manifests")
        if not isinstance(listed, list):
            break
        chosen = of_here([one for one in listed if isinstance(one, dict)])
        if chosen is None:
            raise ImageError(f"{image}: there is no image for linux/{architecture()} in it")
        content = _blob(image, chosen)
    config = content.get("config")
    kind = config.get("mediaType") if isinstance(config, dict) else None
    if kind and not str(kind).endswith(_CONFIGURATIONS):
        raise ImageError(f"{image}: is not an image of a container, but has {kind}")
    return content


def _blob(image: LayoutImage, descriptor: object) -> dict[str, Any]:
    if _size(descriptor) > LIMIT:
        raise ImageError(f"{image}: {_digest(descriptor, image)} is larger than {LIMIT >> 20} MiB")
    file = _open(image, descriptor)
    with open(file, "rb") as opened:
        text = opened.read()
    name = f"{image}: {_digest(descriptor, image)}"
    content = decode(text, name)
    if not isinstance(content, dict):
        raise ImageError(f"{name}: is not an object")
    return content


def _open(image: LayoutImage, descriptor: object) -> int:
    digest = _digest(descriptor, image)
    path = os.path.join(image.layout, "blobs", "sha256", digest.removeprefix("sha256:"))
    try:
        file = open_regular(path)
    except OSError as error:
        raise ImageError(f"{path}: {why(error, 'get the image again')}") from error
    try:
        size, wanted = os.fstat(file).st_size, _size(descriptor)
        if size != wanted:
            raise ImageError(f"{path}: has {size} bytes instead of {wanted}; get the image again")
        sha = hashlib.sha256()
        while piece := os.read(file, _PIECE):
            sha.update(piece)
        if sha.hexdigest() != digest.removeprefix("sha256:"):
            raise ImageError(f"{path}: has the digest {sha.hexdigest()}; get the image again")
        os.lseek(file, 0, os.SEEK_SET)
    except BaseException:
        os.close(file)
        raise
    return file


def _size(descriptor: object) -> int:
    size = descriptor.get("size") if isinstance(descriptor, dict) else None
    return size if isinstance(size, int) else -1


def _digest(descriptor: object, image: LayoutImage) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ImageError(f"{image}: has no digest of SHA-256")
    return digest


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _words(value: object) -> tuple[str, ...]:
    return (
        tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
    )


_LAST = (1 << 31) - 1


class Account(NamedTuple):
    """Who runs a program; `home` is "" if nobody says."""

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = ""


def find_user(root: int, text: str) -> Account:
    """Find who `USER[:GROUP]`, or numbers, are in a root, which may be hostile; "" is root."""
    name, _, group = text.partition(":")
    group = group.partition(":")[0]
    number = _number(name or "0")
    uid, gid, home, known = number, 0, "", ""
    for fields in _lines(root, b"/etc/passwd", 4):
        found = _number(fields[2])
        if found is not None and (found == number if number is not None else fields[0] == name):
            uid, gid, known = found, _number(fields[3]) or 0, fields[0]
            home = fields[5] if len(fields) > 5 else ""
            break
    if uid is None:
        raise ImageError(f"its /etc/passwd has no user {name!r}: name another by --user UID")
    groups: tuple[int, ...] = ()
    if group:
        gid = _group(root, group)
    elif known and ":" not in text:  # also `USER:`, as for podman
        groups = tuple(_groups_of(root, known))
    return Account(_checked(uid, text), _checked(gid, text), groups, home)


def _group(root: int, group: str) -> int:
    number = _number(group)
    if number is not None:
        return number
    for fields in _lines(root, b"/etc/group", 3):
        found = _number(fields[2])
        if fields[0] == group and found is not None:
            return found
    raise ImageError(f"its /etc/group has no group {group!r}: name another by --user UID:GID")


def _groups_of(root: int, user: str) -> Iterator[int]:
    for fields in _lines(root, b"/etc/group", 4):
        found = _number(fields[2])
        if found is not None and found <= _LAST and user in fields[3].split(","):
            yield found


def _lines(root: int, path: bytes, least: int) -> Iterator[list[str]]:
    """Yield the lines with so many fields; none if it is not a regular file."""
    try:
        content = read_inside(root, path)
    except OSError:
        return
    for line in content.decode(errors="surrogateescape").split("\n"):
        fields = line.strip().split(":")
        if len(fields) >= least:
            yield fields


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None


def _checked(number: int, text: str) -> int:
    if number > _LAST:
        raise ImageError(f"its user {text!r} is not a number of 0 to {_LAST}: use --user UID:GID")
    return number
