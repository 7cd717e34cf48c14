"""Images of registries that lie: what stands for skopeo says what they say."""

import hashlib
import os
from pathlib import Path

import pytest

from scrun.core.errors import ImageError
from scrun.images.store import Store
from scrun.pull import programs
from scrun.pull.get import Request, get
from scrun.pull.reference import parse

RAW = b'{"schemaVersion": 2}'


def request(base: Path, unpacked: int = 0) -> Request:
    def say(text: str, share: float | None = None) -> None:
        del text, share

    store = Store(str(base / "store"))
    return Request(store, fresh=0, say=say, shown=False, warn=say, unpacked=unpacked)


def skopeo(base: Path, monkeypatch: pytest.MonkeyPatch, copy: str) -> None:
    """Have a program for skopeo that has this manifest, and runs a script to copy."""
    script = f"#!/bin/sh\ncase $1 in inspect) printf %s '{RAW.decode()}';; *) {copy};; esac\n"
    (program := base / "skopeo").write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{base}:{os.environ['PATH']}")


@pytest.mark.covers("security programs that get or unpack images")
def test_a_registry_that_has_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who names a digest gets that or nothing, and nothing is copied."""
    skopeo(tmp_path, monkeypatch, copy=f"touch {tmp_path}/copied")
    asked = hashlib.sha256(b"what was asked for").hexdigest()
    found = hashlib.sha256(RAW).hexdigest()
    told = f"its registry has other content there: sha256:{found}"
    with pytest.raises(ImageError, match=told):
        get(parse(f"docker://registry/image@sha256:{asked}"), request(tmp_path))
    assert not (tmp_path / "copied").exists()


def test_what_comes_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob is counted while it comes, not only while it is unpacked."""
    monkeypatch.setattr(programs, "_INTERVAL", 0.05)
    copy = "d=${4#oci:}; mkdir -p ${d%:*}; exec dd if=/dev/zero bs=1M count=4000 of=${d%:*}/blob"
    skopeo(tmp_path, monkeypatch, f"{copy} 2>/dev/null")
    with pytest.raises(ImageError, match=r"has more than 8 MiB: raise \[images\] unpacked_size"):
        get(parse("docker://registry/image"), request(tmp_path, 8 << 20))
    assert os.listdir(tmp_path / "store" / "tmp") == []
