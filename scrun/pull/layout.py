"""Reads an image in an OCI image layout (image-layout.md), and has umoci unpack it.

The layout may be hostile: a blob's name is a digest and nothing else, and umoci keeps all paths of
layers within the root file system.
"""

import os
import re
from typing import Any

from scrun.core.errors import BundleError, ImageError
from scrun.images.store import Defaults
from scrun.oci.document import decode, read_file
from scrun.oci.image import NAME_OF_TAG, Image
from scrun.pull.programs import run

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Go calls them
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def manifest_digest(image: Image) -> str:
    """Return the digest of an image's manifest.

    Raises:
        ImageError: The layout is damaged.
    """
    return _digest(_descriptor(image), image)


def defaults_of(image: Image, bundle: str) -> Defaults:
    """Return how an image's program is started.

    Args:
        image: The image.
        bundle: What umoci has made of it: its config.json has the user's number and home.

    Raises:
        ImageError: The layout is damaged.
    """
    config = _configuration(image)
    made = decode(read_file(name := os.path.join(bundle, "config.json")), name)
    process = made.get("process", {}) if isinstance(made, dict) else {}
    user = process.get("user", {})
    return Defaults(
        entrypoint=_words(config.get("Entrypoint")),
        cmd=_words(config.get("Cmd")),
        env=_words(process.get("env")),
        cwd=str(process.get("cwd") or "/"),
        uid=int(user.get("uid", 0)),
        gid=int(user.get("gid", 0)),
        groups=tuple(map(int, user.get("additionalGids") or ())),
    )


def volumes_of(image: Image) -> tuple[str, ...]:
    """Return the paths of an image's volumes.

    Raises:
        ImageError: The layout is damaged.
    """
    volumes = _configuration(image).get("Volumes")
    return tuple(volumes) if isinstance(volumes, dict) else ()


def unpack(image: Image, workshop: str) -> str:
    """Have umoci unpack an image to `bundle` in a directory; return that.

    It takes everything after the first colon for the tag, so it gets the layout by a symbolic
    link. For an ordinary user all files belong to that user.

    Raises:
        BundleError: It fails.
    """
    os.symlink(image.layout, link := os.path.join(workshop, "image"))
    rootless = [] if os.geteuid() == 0 else ["--rootless"]
    options = (*rootless, f"--image=image:{image.tag}", "bundle")
    what = f"{image.layout}:{image.tag}: umoci cannot unpack it"
    try:
        run("umoci", "unpack", *options, what=what, directory=workshop)
    except ImageError as error:
        raise BundleError(str(error)) from None
    finally:
        os.unlink(link)
    return os.path.join(workshop, "bundle")


def _descriptor(image: Image) -> dict[str, Any]:
    name = os.path.join(image.layout, "index.json")
    index = decode(read_file(name), name)
    manifests = index.get("manifests", []) if isinstance(index, dict) else []
    for manifest in manifests if isinstance(manifests, list) else []:
        notes = manifest.get("annotations") if isinstance(manifest, dict) else None
        if isinstance(notes, dict) and notes.get(NAME_OF_TAG) == image.tag:
            return dict(manifest)
    raise ImageError(f"{image.layout}: there is no tag {image.tag!r}")


def _configuration(image: Image) -> dict[str, Any]:
    """Return how an image's program runs (config.md, `config`).

    The tag may name an index (image-index.md): then the image of this platform, else the first.
    """
    manifest = _blob(image, manifest_digest(image))
    if isinstance(listed := manifest.get("manifests"), list) and listed:
        here = [one for one in listed if isinstance(one, dict) and _is_of_here(one)]
        manifest = _blob(image, _digest((here or listed)[0], image))
    config = _blob(image, _digest(manifest.get("config"), image)).get("config")
    return config if isinstance(config, dict) else {}


def _is_of_here(descriptor: dict[str, Any]) -> bool:
    platform = descriptor.get("platform")
    platform = platform if isinstance(platform, dict) else {}
    machine = os.uname().machine
    architecture = _ARCHITECTURES.get(machine, machine)
    return (platform.get("os"), platform.get("architecture")) == ("linux", architecture)


def _blob(image: Image, digest: str) -> dict[str, Any]:
    name = os.path.join(image.layout, "blobs", "sha256", digest.removeprefix("sha256:"))
    content = decode(read_file(name), name)
    if not isinstance(content, dict):
        raise ImageError(f"{name}: is not an object")
    return content


def _digest(descriptor: object, image: Image) -> str:
    digest = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise ImageError(f"{image.layout}:{image.tag}: has no digest of SHA-256")
    return digest


def _words(value: object) -> tuple[str, ...]:
    return (
        tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
    )
