"""Names of images, as `scrun run` takes them."""

import os

import msgspec

from scrun.core.errors import ImageError, UsageError, why
from scrun.core.paths import open_regular

TRANSPORTS = ("docker", "oci", "oci-archive", "docker-archive", "containers-storage")
"""Those of skopeo that are accepted."""

NAMED = "name"
DIRECTORY = "directory"
SQUASHFS = "squashfs"

_FORMS = (
    "docker://IMAGE, oci:DIR:TAG, oci-archive:FILE, docker-archive:FILE, "
    "containers-storage:IMAGE, name:NAME, a directory or a .sqsh file"
)
_MAGIC = b"hsqs"
_SIF = b"SIF_MAGIC"
_LAUNCH = 32  # bytes for a first line, so that the file is a program


class Reference(msgspec.Struct, frozen=True):
    """The name of an image: one of `TRANSPORTS` and a name; or an absolute path."""

    text: str
    transport: str
    name: str

    @property
    def digest(self) -> str:
        """The digest in the name of an image of a registry, or ""."""
        _, at, digest = self.name.partition("@")
        return digest if self.transport == "docker" and at else ""

    @property
    def short(self) -> str:
        """A word for it, for a container's id: `busybox`."""
        name = self.name.rstrip("/").partition("@")[0].rpartition("/")[2].partition(":")[0]
        name = name.removesuffix(".sqsh").removesuffix(".sqfs")
        allowed = "".join(c if c.isascii() and c.isalnum() else "-" for c in name)
        return allowed.strip("-")[:40] or "image"

    def source(self, digest: str = "") -> str:
        """Return it for skopeo; `digest` is what the tag of a registry's image names."""
        if not digest:
            colon = "://" if self.transport == "docker" else ":"
            return f"{self.transport}{colon}{self.name}"
        return f"docker://{repository(self.name)}@{digest}"


def repository(name: str) -> str:
    """Return the name of an image of a registry without tag and digest."""
    name = name.partition("@")[0]
    head, slash, last = name.rpartition("/")
    return head + slash + last.partition(":")[0]


def parse(text: str) -> Reference:
    """Read the name of an image, or the path of a directory or squashfs file."""
    transport, colon, name = text.partition(":")
    if colon and transport in (*TRANSPORTS, NAMED):
        if transport == "docker":
            if not name.startswith("//"):
                raise UsageError(f"{text} is not an image name; write docker://{name}")
            name = name.removeprefix("//")
        if not name:
            raise UsageError(f"{text} is not an image name; {_FORMS}")
        if transport == "containers-storage":
            return Reference(text, transport, name)
        if transport not in ("docker", NAMED):  # a path, perhaps followed by a tag
            name = os.path.abspath(name)
        return Reference(text, transport, name)
    path = os.path.abspath(text)
    if os.path.isdir(path):
        return Reference(text, DIRECTORY, path)
    try:
        with open(open_regular(path), "rb") as file:
            magic = file.read(_LAUNCH + len(_SIF))
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(f"{text}: there is no such image: name one as {_FORMS}") from None
    except OSError as error:
        raise ImageError(f"{text}: cannot be read: {why(error)}") from error
    if magic.endswith(_SIF):  # behind a line `#!/usr/bin/env run-singularity`
        raise ImageError(
            f"{text}: is an image of Singularity or Apptainer: `apptainer build --sandbox DIR "
            f"{text}` makes a directory of it, which scrun runs"
        )
    magic = magic[: len(_MAGIC)]
    if magic != _MAGIC:
        raise ImageError(f"{text}: is neither a directory nor a file with a squashfs")
    return Reference(text, SQUASHFS, path)
