"""bbolt's files, as containerd writes them."""

import random
import struct
from pathlib import Path

import pytest

from scrun.supervisor.staging.digests import Bolt, DamagedDatabase, contents

SIZE = 4096
CHAIN = f"sha256:{'a' * 64}"


def page(number: int, kind: int, entries: list[tuple[bytes, bytes]], count: int = 1) -> bytes:
    """A page of keys and values; a value that is a page's number is a branch's."""
    heads, data = b"", b""
    for index, (key, value) in enumerate(entries):
        position = 16 * (len(entries) - index) + len(data)
        if kind == 1:
            heads += struct.pack("<IIQ", position, len(key), int.from_bytes(value, "little"))
            data += key
        else:
            bucket = value.startswith(b"\0BUCKET")
            body = value.removeprefix(b"\0BUCKET")
            heads += struct.pack("<IIII", int(bucket), position, len(key), len(body))
            data += key + body
    whole = struct.pack("<QHHI", number, kind, len(entries), max(count - 1, 0)) + heads + data
    return whole.ljust(count * SIZE, b"\0") if count else whole


def bucket(root: int, inline: bytes = b"") -> bytes:
    return b"\0BUCKET" + struct.pack("<QQ", root, 0) + inline


def meta(number: int, root: int, transaction: int) -> bytes:
    body = struct.pack(
        "<IIIIQQQQQ", 0xED0CDAED, 2, SIZE, 0, root, 0, 2, 100, transaction
    )  # fmt: skip
    found = 0xCBF29CE484222325
    for byte in body:
        found = ((found ^ byte) * 0x100000001B3) & ((1 << 64) - 1)
    head = struct.pack("<QHHI", number, 4, 0, 0)
    return (head + body + struct.pack("<Q", found)).ljust(SIZE, b"\0")


def snapshot(number: int, kind: int) -> bytes:
    values = [(b"id", bytes([number])), (b"kind", bytes([kind])), (b"size", b"\x80\x02")]
    return bucket(0, page(0, 2, values, count=0))


def metadata() -> bytes:
    """One of containerd's: one snapshot of an image, a container's, and one with another name."""
    one = page(6, 2, [(f"default/1/{CHAIN}".encode(), snapshot(7, 3))])
    others = page(
        7, 2, [(b"default/2/c1", snapshot(8, 2)), (b"default/3/mine", snapshot(9, 3))], 2
    )
    return b"".join(
        [
            meta(0, 99, 1),
            meta(1, 3, 2),
            bytes(SIZE),
            page(3, 2, [(b"v1", bucket(4))]),
            page(4, 2, [(b"snapshots", bucket(5)), (b"x", b"value")]),
            page(5, 1, [(b"a", b"\x06"), (b"b", b"\x07")]),
            one,
            others,
        ]
    )


def layer(tmp_path: Path, number: int) -> str:
    return str(tmp_path / "snapshots" / str(number) / "fs")


def test_layers_of_containerd(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(metadata())
    found = contents([layer(tmp_path, number) for number in (7, 8, 9, 1)])
    assert found[1:] == [None] * 3
    assert found[0] is not None
    assert (found[0].digest, found[0].size) == (f"chain {CHAIN}", 256)


def test_the_latest_transaction_counts() -> None:
    assert [key for key, _ in Bolt(metadata()).top.buckets()] == [b"v1"]
    assert Bolt(metadata()).top.bucket(b"v1").values() == {b"x": b"value"}


@pytest.mark.parametrize("content", [b"", b"x" * 9000, metadata()[:SIZE], metadata()[: 4 * SIZE]])
def test_other_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metadata.db").write_bytes(content)
    assert contents([layer(tmp_path, 7)]) == [None]


def test_circles() -> None:
    whole = bytearray(metadata())
    whole[5 * SIZE :][:SIZE]
    circle = page(5, 1, [(b"a", b"\x05"), (b"b", b"\x05")])
    whole[5 * SIZE : 6 * SIZE] = circle
    snapshots = Bolt(bytes(whole)).top.bucket(b"v1").bucket(b"snapshots")
    with pytest.raises(DamagedDatabase):
        list(snapshots.buckets())


@pytest.mark.parametrize("seed", range(20))
def test_damage(tmp_path: Path, seed: int) -> None:
    """It is found, or does not matter."""
    chance = random.Random(seed)
    for _ in range(20):
        whole = bytearray(metadata())
        for _ in range(chance.randrange(1, 8)):
            whole[chance.randrange(len(whole)) // 64 * 64 % len(whole)] = chance.randrange(256)
            whole[SIZE + chance.randrange(7 * SIZE) % (7 * SIZE)] = chance.randrange(256)
        (tmp_path / "metadata.db").write_bytes(whole)
        contents([layer(tmp_path, 7)])
