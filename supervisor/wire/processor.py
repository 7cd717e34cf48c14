"""What this processor does faster than others: GMAC, by instructions of its own."""

from _frozen_importlib_external import PathFinder

_CPUINFO = "/proc/cpuinfo"
_FIRST = 1 << 12  # bytes that have all of the first processor, whatever their number
_LISTS = (b"flags", b"Features")  # x86, ARM
_PRODUCTS = (b"pclmulqdq", b"pmull")
_LIBRARY = b"libcrypto.so"
_NAMES = 1 << 16  # bytes at the beginning of an ELF file that name the libraries it needs


def has_gmac() -> bool:
    """Tell whether it has instructions for GMAC, and Python an OpenSSL that uses them. Blocks."""
    try:
        with open(_CPUINFO, "rb", 0) as file:
            lines = file.read(_FIRST).splitlines()
    except OSError:
        return False
    found = [line.split() for line in lines if line.startswith(_LISTS)]
    has_it = any(b"aes" in words and name in words for words in found for name in _PRODUCTS)
    return has_it and bool(libcrypto())


def libcrypto() -> str:
    """Return the name of the library that Python's `hashlib` needs; "" if it is part of Python."""
    spec = PathFinder.find_spec("_hashlib")
    if spec is None or spec.origin is None:
        return ""
    try:
        with open(spec.origin, "rb", 0) as file:
            names = file.read(_NAMES)
    except OSError:
        return ""
    at = names.find(_LIBRARY)
    return "" if at < 0 else names[at : names.find(b"\0", at)].decode()
