"""Find images on disk in an OCI image layout (image-layout.md).

It only reads their tags; umoci handles their content.
"""

import os

from scrun.core.errors import BundleError
from scrun.oci.document import decode, read_file

NAME_OF_TAG = "org.opencontainers.image.ref.name"


class Image:
    """One image of a layout.

    Attributes:
        layout: The layout's directory, absolute.
        tag: The image's tag.
    """

    __slots__ = ("layout", "tag")

    def __init__(self, layout: str, tag: str) -> None:
        self.layout = layout
        self.tag = tag


def find_image(text: str) -> Image:
    """Find the image that `DIRECTORY` or `DIRECTORY:TAG` names.

    Without a tag it is the only image, or the one with the tag `latest`.

    Raises:
        BundleError: There is no such directory, it is not a layout, or has no such image.
    """
    directory, colon, tag = text, "", ""
    if not os.path.lexists(text):  # a directory may have colons in its name
        directory, colon, tag = text.rpartition(":")
    if not colon:
        directory = text
    known = tags(os.path.abspath(directory))
    listed = ", ".join(known) if known else "it has no tags"
    if not tag:
        usual = known if len(known) == 1 else [name for name in known if name == "latest"]
        if len(usual) != 1:
            raise BundleError(f"{directory}: which image? name its tag, {directory}:TAG: {listed}")
        tag = usual[0]
    if tag not in known:
        raise BundleError(f"{directory}: there is no tag {tag!r}: {listed}")
    return Image(os.path.abspath(directory), tag)


def tags(layout: str) -> list[str]:
    """Return the tags of a layout, in its order.

    Raises:
        BundleError: It is not a layout.
    """
    remedy = "`skopeo copy SOURCE oci:DIRECTORY:TAG` makes one"
    try:
        if not os.path.isdir(layout):
            raise BundleError(f"{layout}: no such directory; {remedy}")
        if not os.path.exists(os.path.join(layout, "oci-layout")):
            raise BundleError(f"{layout}: is not an OCI image: has no file oci-layout; {remedy}")
    except ValueError as error:  # NUL
        raise BundleError(f"{layout!r}: is not a file name: {error}") from error
    name = os.path.join(layout, "index.json")
    index = decode(read_file(name), name)
    manifests = index.get("manifests", []) if isinstance(index, dict) else None
    if not isinstance(manifests, list):
        raise BundleError(f"{name}: manifests: is not a list")
    found = [_tag(manifest) for manifest in manifests]
    return list(dict.fromkeys(tag for tag in found if tag))


def _tag(manifest: object) -> str:
    annotations = manifest.get("annotations") if isinstance(manifest, dict) else None
    name = annotations.get(NAME_OF_TAG) if isinstance(annotations, dict) else None
    return name if isinstance(name, str) else ""
