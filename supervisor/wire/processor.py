"""What this processor does faster than others: SHA-256, by instructions of its own."""

from _frozen_importlib_external import PathFinder

_CPUINFO = "/proc/cpuinfo"
_FIRST = 1 << 12  # bytes that have all of the first processor, whatever their number
_LISTS = (b"flags", b"Features")  # x86, ARM
_NAMES = (b"sha_ni", b"sha2")


def has_sha256() -> bool:
    """Tell whether OpenSSL is there, and takes half of BLAKE2b's time for SHA-256. Blocks."""
    try:
        with open(_CPUINFO, "rb", 0) as file:
            lines = file.read(_FIRST).splitlines()
    except OSError:
        return False
    found = (line.split() for line in lines if line.startswith(_LISTS))
    has_it = any(name in words for words in found for name in _NAMES)
    return has_it and PathFinder.find_spec("_hashlib") is not None
