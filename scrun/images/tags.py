"""What names of images meant when they were last looked up: `tags/` of a store."""

import os
import re
import time
from _blake2 import blake2s

import msgspec

from scrun.core.typed import decode_as
from scrun.core.whole_files import write_whole
from scrun.images.store import Store

FOREVER = float("inf")
_LARGEST = 65536
_DAY = 86400.0
_TAG = re.compile("[0-9a-f]{32}")


class _Tag(msgspec.Struct, frozen=True):
    """What a name meant.

    Attributes:
        digest: The manifest's digest, or "".
        key: The key of the image.
        when: When it was looked up.
    """

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
            tag = decode_as(file.read(_LARGEST), _Tag)
    except (OSError, msgspec.MsgspecError):
        return None
    if tag.name != name or not -1 <= time.time() - tag.when <= age:
        return None
    return tag.digest, tag.key


def remember(store: Store, name: str, digest: str, key: str) -> None:
    """Write down what a name means.

    Raises:
        OSError: It cannot be written.
    """
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
                tag = decode_as(file.read(_LARGEST), _Tag)
            if tag.key in keys:
                os.unlink(path)
        except (OSError, msgspec.MsgspecError):
            continue
