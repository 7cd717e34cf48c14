"""Reads archives of tar(5): those of old, ustar, star, pax and GNU.

The measure is archive/tar of Go, by which engines read layers: a global header of pax has no
effect, and a link has no content. tarfile of the standard library reads headers of any size into
memory, keeps all entries, and takes five times as long.
"""

import os
from collections.abc import Callable, Iterator

import msgspec

from scrun.core.errors import ImageError

FILE, HARD_LINK, LINK, CHARACTERS, BLOCKS, FOLDER, FIFO = b"0", b"1", b"2", b"3", b"4", b"5", b"6"

_BLOCK = 512
_EMPTY = bytes(_BLOCK)
_OF_FILES = (b"0", b"\0", b"7")  # 7: contiguous, of which nobody makes anything
_KNOWN = frozenset((FILE, HARD_LINK, LINK, CHARACTERS, BLOCKS, FOLDER, FIFO))
_LONG_NAME, _LONG_LINK, _SPARSE, _PAX, _PAX_OF_ALL = b"L", b"K", b"S", b"x", b"g"
_MOST_OF_HEADER = 1 << 20
_MOST_PIECES = 100_000
_XATTR = b"SCHILY.xattr."
_SECOND = 10**9
_IDS, _SIZES, _DEVICES = (1 << 32) - 1, 1 << 63, 1 << 20
_LATEST = (1 << 63) // _SECOND - 1  # in nanoseconds, for the kernel

Pieces = tuple[tuple[int, int], ...]


class Member(msgspec.Struct):
    """An entry of an archive; its kind is one of the letters above.

    Its time is in nanoseconds, its size with holes. `pieces` are offset and length of what has
    content, of a file with holes; else None.
    """

    kind: bytes
    name: bytes
    mode: int
    uid: int
    gid: int
    time: int
    size: int
    link: bytes = b""
    device: tuple[int, int] = (0, 0)
    xattrs: dict[str, bytes] = {}
    pieces: Pieces | None = None


class DamagedArchive(ImageError):
    """It is not an archive, or a damaged one."""

    def __init__(self, why: str) -> None:
        super().__init__(f"is not a tar archive, or a damaged one: {why}")


class Archive:
    """An archive, read from its beginning to its end."""

    def __init__(self, read: Callable[[int], bytes], skip: Callable[[int], None]) -> None:
        """Prepare it; `read` returns so many bytes, fewer at the end; `skip` skips them."""
        self._read, self._skip = read, skip
        self._left = 0  # of the content of the current entry, as it is stored
        self._padding = 0

    def __iter__(self) -> Iterator[Member]:
        """Yield the entries; what was not read of the content of one is skipped."""
        while (header := self._header()) is not None:
            yield self._entry(header)
            self._skip(self._left + self._padding)
            self._left = self._padding = 0

    def content(self, most: int) -> bytes:
        """Return what follows of the current entry's content, at most so many bytes."""
        wanted = min(most, self._left)
        content = self._exactly(wanted) if wanted else b""
        self._left -= wanted
        return content

    def _exactly(self, count: int) -> bytes:
        content = self._read(count)
        if len(content) != count:
            raise DamagedArchive("it ends too early")
        return content

    def _header(self) -> bytes | None:
        block = self._read(_BLOCK)
        if not block:
            return None
        if block == _EMPTY:
            if (following := self._read(_BLOCK)) in (b"", _EMPTY):
                return None
            block = following
        if len(block) != _BLOCK:
            raise DamagedArchive("it ends too early")
        stored = _number(block[148:156])
        total = sum(block) - sum(block[148:156]) + 8 * 32
        if stored != total and stored != total - 256 * sum(byte > 127 for byte in block):
            raise DamagedArchive("the checksum of a header is wrong")
        return block

    def _entry(self, header: bytes) -> Member:
        records: dict[bytes, bytes] = {}
        holes: list[bytes] = []
        name = link = b""
        while (kind := header[156:157]) in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_OF_ALL):
            size = _number(header[124:136])
            if not 0 <= size <= _MOST_OF_HEADER:
                raise DamagedArchive(f"a header has {size} bytes")
            content = self._exactly(size)
            self._exactly(-size % _BLOCK)
            if kind == _LONG_NAME:
                name = content.partition(b"\0")[0]
            elif kind == _LONG_LINK:
                link = content.partition(b"\0")[0]
            elif kind == _PAX:
                records, holes = _records(content)
            following = self._header()
            if following is None:
                if kind == _PAX_OF_ALL:  # at the end: `git archive` of nothing
                    return Member(FOLDER, b".", 0o755, 0, 0, 0, 0)
                raise DamagedArchive("it ends too early")
            header = following
        entry = _of_header(header)
        stored = entry.size
        if name:
            entry.name = name
        if link:
            entry.link = link
        if records:
            stored = _apply(entry, records)
        if entry.kind not in (FILE, _SPARSE):
            stored = entry.size = 0
        self._left, self._padding = stored, -stored % _BLOCK
        if entry.kind == _SPARSE:
            self._old_sparse(entry, header)
        elif any(key.startswith(b"GNU.sparse.") for key in records) and entry.kind == FILE:
            self._pax_sparse(entry, records, holes)
        if not (0 <= entry.uid < _IDS and 0 <= entry.gid < _IDS and 0 <= entry.size < _SIZES):
            raise DamagedArchive(f"{os.fsdecode(entry.name)!r} has an impossible owner or size")
        if not all(0 <= number < _DEVICES for number in entry.device):
            raise DamagedArchive(f"{os.fsdecode(entry.name)!r} is an impossible device")
        if entry.kind not in _KNOWN:
            letter = entry.kind.decode("latin-1")
            raise DamagedArchive(f"{os.fsdecode(entry.name)!r} is of the unknown type {letter!r}")
        return entry

    def _old_sparse(self, entry: Member, header: bytes) -> None:
        """Read where the holes of a file are, which GNU tar writes behind its header."""
        pieces = _pairs(header[386:482])
        more, entry.size = header[482], _number(header[483:495])
        while more:
            block = self._exactly(_BLOCK)
            pieces += _pairs(block[:504])
            more = block[504]
            if len(pieces) > _MOST_PIECES:
                break
        entry.kind = FILE
        entry.pieces = _checked(pieces, entry, self._left)

    def _pax_sparse(self, entry: Member, records: dict[bytes, bytes], holes: list[bytes]) -> None:
        """Read where the holes of a file are, from records of pax (GNU tar, "Sparse Formats")."""
        if b"GNU.sparse.name" in records:
            entry.name = records[b"GNU.sparse.name"].partition(b"\0")[0]
        if records.get(b"GNU.sparse.major") == b"1" and records.get(b"GNU.sparse.minor") == b"0":
            numbers = self._numbers_before_content()
        elif b"GNU.sparse.map" in records:
            text = records[b"GNU.sparse.map"]
            numbers = [_decimal(word) for word in text.split(b",")] if text else []
        elif b"GNU.sparse.size" in records:
            numbers = [_decimal(word) for word in holes]
        else:
            return
        size = records.get(b"GNU.sparse.realsize", records.get(b"GNU.sparse.size"))
        if size is None or len(numbers) % 2:
            raise DamagedArchive("the holes of a file are unclear")
        entry.size = _decimal(size)
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        entry.pieces = _checked(pairs, entry, self._left)

    def _numbers_before_content(self) -> list[int]:
        blocks: list[bytes] = []
        lines, wanted = 0, 1
        while lines < wanted:
            block = self.content(_BLOCK)
            if len(block) < _BLOCK:
                raise DamagedArchive("the holes of a file are unclear")
            if not blocks:
                count = _decimal(block.partition(b"\n")[0])
                if count > _MOST_PIECES:
                    raise DamagedArchive("a file has too many holes")
                wanted = 1 + 2 * count
            lines += block.count(b"\n")
            blocks.append(block)
        return [_decimal(line) for line in b"".join(blocks).split(b"\n")[1:wanted]]


def _of_header(header: bytes) -> Member:
    kind, name = header[156:157], header[:100].partition(b"\0")[0]
    magic = header[257:263]
    if magic == b"ustar\0":
        end = 131 if header[508:512] == b"tar\0" else 155  # star has times behind a shorter one
        if prefix := header[345 : 345 + end].partition(b"\0")[0]:
            name = prefix + b"/" + name
    if kind in _OF_FILES:
        kind = FOLDER if kind == b"\0" and name.endswith(b"/") else FILE
    size = _number(header[124:136])
    if size < 0:
        raise DamagedArchive("a size is negative")
    entry = Member(
        kind,
        name,
        _number(header[100:108]) & 0o7777,
        _number(header[108:116]),
        _number(header[116:124]),
        _nanoseconds(_number(header[136:148])),
        size,
    )
    if kind in (LINK, HARD_LINK):
        entry.link = header[157:257].partition(b"\0")[0]
    elif kind in (CHARACTERS, BLOCKS) and magic.startswith(b"ustar"):
        entry.device = _number(header[329:337]), _number(header[337:345])
    return entry


def _apply(entry: Member, records: dict[bytes, bytes]) -> int:
    """Let records of pax replace what a header says; return the size of what is stored."""
    xattrs = {}
    for key, value in records.items():
        if key.startswith(_XATTR):
            xattrs[os.fsdecode(key[len(_XATTR) :])] = value
        elif not value:
            continue
        elif key in (b"path", b"linkpath"):
            if b"\0" in value:
                raise DamagedArchive("a name contains NUL")
            if key == b"path":
                entry.name = value
            else:
                entry.link = value
        elif key == b"size":
            entry.size = _decimal(value)
        elif key == b"uid":
            entry.uid = _decimal(value)
        elif key == b"gid":
            entry.gid = _decimal(value)
        elif key == b"mtime":
            entry.time = _time(value)
    entry.xattrs = xattrs
    return entry.size


def _records(content: bytes) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Return the records of pax, and the numbers of those that are there several times."""
    found: dict[bytes, bytes] = {}
    holes: list[bytes] = []
    position = 0
    while position < len(content):
        space = content.find(b" ", position, position + 12)
        length = _decimal(content[position:space]) if space > 0 else 0
        end = position + length
        key, equals, value = content[space + 1 : end - 1].partition(b"=")
        whole = position < space < end <= len(content) and content[end - 1 : end] == b"\n"
        if not whole or not equals or b"\0" in key:
            raise DamagedArchive("a record of pax is unclear")
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            holes.append(value)
        found[key] = value
        position = end
    return found, holes


def _checked(pieces: list[tuple[int, int]], entry: Member, stored: int) -> Pieces:
    end = total = 0
    for offset, length in pieces:
        if offset < end or length < 0:
            raise DamagedArchive("the holes of a file are unclear")
        end = offset + length
        total += length
    if end > entry.size or total > stored or len(pieces) > _MOST_PIECES:
        raise DamagedArchive("the holes of a file are unclear")
    return tuple(pieces)


def _pairs(text: bytes) -> list[tuple[int, int]]:
    """Read pairs of an offset and a length of twelve bytes each; the last pair is empty."""
    found = []
    for at in range(0, len(text), 24):
        if not text[at]:
            break
        found.append((_number(text[at : at + 12]), _number(text[at + 12 : at + 24])))
    return found


def _number(field: bytes) -> int:
    """Read a number in octal digits or, beyond those, of GNU tar in bytes."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ~(1 << (8 * len(field) - 1))
        return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
    text = field.partition(b"\0")[0].strip(b" ") if field[0] else field.strip(b" \0")
    if not text:
        return 0
    if not text.isdigit() or b"8" in text or b"9" in text:
        raise DamagedArchive("a header has something other than a number")
    return int(text, 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19:
        raise DamagedArchive("a record of pax has something other than a number")
    return int(text)


def _time(text: bytes) -> int:
    whole, _, part = text.removeprefix(b"-").partition(b".")
    if part and not part.isdigit():
        raise DamagedArchive("a record of pax has something other than a time")
    time = _nanoseconds(_decimal(whole)) + int((part + bytes(9).replace(b"\0", b"0"))[:9])
    return -time if text.startswith(b"-") else time


def _nanoseconds(seconds: int) -> int:
    return max(-_LATEST, min(_LATEST, seconds)) * _SECOND
