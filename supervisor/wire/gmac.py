"""GMAC (NIST SP 800-38D) with AES-128, by OpenSSL's libcrypto: Python's modules do not offer it.

What this calls has been there since OpenSSL 1.0.1 (EVP_EncryptInit(3)).
"""

import _ctypes

from .processor import libcrypto

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

KEY = TAG = 16
"""The bytes of a key, and of a tag."""

_NONCE = 12
_GET_TAG = 0x10  # EVP_CTRL_GCM_GET_TAG


class _Pointer(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "P"


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Text(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


class _Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class _Tag(_ctypes.Array):  # type: ignore[type-arg]
    _type_, _length_ = _Byte, TAG


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Int


class _Maker(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL
    _restype_ = _Pointer


class Gmac:
    """Makes tags with one key."""

    def __init__(self, key: bytes) -> None:
        """Load OpenSSL, which takes as long as an interpreter to start.

        Raises:
            OSError: It cannot be loaded.
        """
        import _hashlib  # noqa: F401  (it knows where that library is)

        library = _ctypes.dlopen(libcrypto(), 0)

        def function(kind: "type[Any]", name: str, *types: "type[Any]") -> "Callable[..., Any]":
            found: Callable[..., Any] = kind(_ctypes.dlsym(library, name))
            found.argtypes = types  # type: ignore[attr-defined]
            return found

        context = (_Pointer, _Pointer, _Pointer)
        self._begin = function(_Function, "EVP_EncryptInit_ex", *context, _Text, _Text)
        self._add = function(_Function, "EVP_EncryptUpdate", *context, _Pointer, _Int)
        self._add_bytes = function(_Function, "EVP_EncryptUpdate", *context, _Text, _Int)
        self._end = function(_Function, "EVP_EncryptFinal_ex", *context)
        self._control = function(_Function, "EVP_CIPHER_CTX_ctrl", _Pointer, _Int, _Int, _Pointer)
        self._free = function(_Function, "EVP_CIPHER_CTX_free", _Pointer)
        self._count, self._tag = _Int(0), _Tag()
        self._to = _ctypes.addressof(self._tag), _ctypes.addressof(self._count)
        self._context = function(_Maker, "EVP_CIPHER_CTX_new")()
        cipher = function(_Maker, "EVP_aes_128_gcm")()
        _must(self._begin(self._context, cipher, None, key, None))

    def __del__(self) -> None:
        context = getattr(self, "_context", None)  # OpenSSL may be missing
        if context:
            self._free(context)

    def tag(self, number: int, payload: "bytes | memoryview") -> bytes:
        """Return the tag of what is sent with a number, which is never used again."""
        _must(self._begin(self._context, None, None, None, number.to_bytes(_NONCE, "big")))
        _, count = self._to
        if isinstance(payload, memoryview) and not payload.readonly:
            first = _Byte.from_buffer(payload)
            at = _ctypes.addressof(first)
            _must(self._add(self._context, None, count, at, len(payload)))
        else:
            _must(self._add_bytes(self._context, None, count, bytes(payload), len(payload)))
        _must(self._end(self._context, *self._to))
        _must(self._control(self._context, _GET_TAG, TAG, self._to[0]))
        return bytes(self._tag)


def _must(done: int) -> None:
    if done != 1:
        raise OSError("OpenSSL cannot make a tag")
