"""Finds images on disk in an OCI image layout (image-layout.md).

An index may list the image for several platforms: it is that of this machine, as for engines.
"""

import os
from typing import Any

from scrun.core.errors import BundleError
from scrun.oci.document import decode, read_file

NAME_OF_TAG = "org.opencontainers.image.ref.name"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}  # as Go calls them
_REMEDY = "`skopeo copy SOURCE oci:DIRECTORY:TAG` makes one"


class LayoutImage:
    """One image of a layout; `descriptor` is of its manifest, or of an index of it."""

    def __init__(self, layout: str, tag: str, descriptor: dict[str, Any]) -> None:
        self.layout = layout
        self.tag = tag
        self.descriptor = descriptor

    def __str__(self) -> str:
        return f"{self.layout}:{self.tag}" if self.tag else self.layout


def find_image(text: str) -> LayoutImage:
    """Find the image `DIRECTORY[:TAG]`; without a tag the only one, or `latest`."""
    directory, tag = _split(text)
    layout = os.path.abspath(directory)
    images = _manifests(layout)
    tags = list(dict.fromkeys(name for each in images if (name := _tag(each))))
    listed = ", ".join(tags) if tags else "it has no tags"
    meant = images
    if tag:
        meant = [each for each in images if _tag(each) == tag]
        if not meant:
            raise BundleError(f"{directory}: there is no tag {tag!r}: {listed}")
    elif len(tags) == 1 and len({_tag(each) for each in images}) == 1:
        tag = tags[0]
    elif "latest" in tags:
        tag = "latest"
        meant = [each for each in images if _tag(each) == tag]
    elif tags:
        raise BundleError(f"{directory}: which image? name its tag, {directory}:TAG: {listed}")
    if not meant:
        raise BundleError(f"{directory}: there is no image in it; {_REMEDY}")
    if not tag and len(meant) > 1 and not any(is_of_here(each) for each in meant):
        raise BundleError(f"{directory}: which image? {len(meant)} are there, and none has a tag")
    return LayoutImage(layout, tag, of_here(meant) or meant[-1])


def of_here(descriptors: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return that of this machine's platform, else the first that names none."""
    here = [each for each in descriptors if is_of_here(each)]
    return next(iter(here or [each for each in descriptors if not each.get("platform")]), None)


def is_of_here(descriptor: dict[str, Any]) -> bool:
    """Tell whether a descriptor's platform is this machine's."""
    platform = descriptor.get("platform")
    platform = platform if isinstance(platform, dict) else {}
    return (platform.get("os"), platform.get("architecture")) == ("linux", architecture())


def architecture() -> str:
    """Return this machine's architecture, as images have it."""
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)


def _split(text: str) -> tuple[str, str]:
    """Return directory and tag; both may have colons."""
    parts = text.split(":")
    for count in range(len(parts), 0, -1):
        if os.path.lexists(directory := ":".join(parts[:count])):
            return directory, ":".join(parts[count:])
    directory, colon, tag = text.rpartition(":")
    return (directory, tag) if colon else (text, "")


def _manifests(layout: str) -> list[dict[str, Any]]:
    try:
        if not os.path.isdir(layout):
            raise BundleError(f"{layout}: no such directory; {_REMEDY}")
        if not os.path.exists(os.path.join(layout, "oci-layout")):
            raise BundleError(f"{layout}: is not an OCI image: has no file oci-layout; {_REMEDY}")
    except ValueError as error:  # NUL
        raise BundleError(f"{layout!r}: is not a file name: {error}") from error
    name = os.path.join(layout, "index.json")
    index = decode(read_file(name), name)
    manifests = index.get("manifests", []) if isinstance(index, dict) else None
    if not isinstance(manifests, list):
        raise BundleError(f"{name}: manifests: is not a list")
    return [each for each in manifests if isinstance(each, dict)]


def _tag(manifest: dict[str, Any]) -> str:
    annotations = manifest.get("annotations")
    name = annotations.get(NAME_OF_TAG) if isinstance(annotations, dict) else None
    return name if isinstance(name, str) else ""
