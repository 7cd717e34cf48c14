"""Look for the program of a container and its directory, in an image or elsewhere."""

from scrun.images.squashfs import file_of
from scrun.oci import lookup
from scrun.oci.config import Bundle
from scrun.oci.lookup import Found, NotFound, Unknown


def find_program(bundle: Bundle) -> Found | NotFound | Unknown:
    """Look for the file that `process.args[0]` names: see `scrun.oci.lookup`."""
    if file := file_of(bundle.rootfs):
        return Unknown(f"{bundle.config.process.args[0]!r}: its files are in {file}")
    return lookup.find_program(bundle)


def find_directory(bundle: Bundle) -> str | NotFound | Unknown:
    """Look for `process.cwd`: see `scrun.oci.lookup`."""
    if file := file_of(bundle.rootfs):
        return Unknown(f"{bundle.config.process.cwd!r}: its files are in {file}")
    return lookup.find_directory(bundle)
