"""Names of images."""

import os
import socket
from pathlib import Path

import pytest

from scrun.core.errors import ImageError, UsageError
from scrun.pull.reference import parse, repository


@pytest.mark.parametrize(
    ("text", "transport", "name", "short"),
    [
        ("docker://busybox", "docker", "busybox", "busybox"),
        ("docker://h:5000/a/b:1.2", "docker", "h:5000/a/b:1.2", "b"),
        ("docker://a/b@sha256:01", "docker", "a/b@sha256:01", "b"),
        ("oci:/a/lay:one", "oci", "/a/lay:one", "lay"),
        ("oci-archive:/a/x.tar", "oci-archive", "/a/x.tar", "x-tar"),
        ("docker-archive:/x.tar:b:1", "docker-archive", "/x.tar:b:1", "x-tar"),
        ("containers-storage:[vfs@/a+/b]x:1", "containers-storage", "[vfs@/a+/b]x:1", "vfs"),
        ("name:work", "name", "work", "work"),
    ],
)
def test_transports(text: str, transport: str, name: str, short: str) -> None:
    reference = parse(text)
    assert (reference.transport, reference.name, reference.short) == (transport, name, short)
    assert reference.text == text
    assert reference.source() == text


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.b").mkdir()
    (tmp_path / "x.sqsh").write_bytes(b"hsqs....")
    assert parse("./a.b") == parse(str(tmp_path / "a.b") + "/").__class__(
        "./a.b", "directory", f"{tmp_path}/a.b"
    )
    assert (parse("x.sqsh").transport, parse("x.sqsh").short) == ("squashfs", "x")
    assert parse("oci:lay:one").name == f"{tmp_path}/lay:one"
    (tmp_path / "y.sqsh").write_bytes(b"")
    with pytest.raises(ImageError, match="is neither a directory nor a file with a squashfs"):
        parse("y.sqsh")
    for begin in (b"#!/usr/bin/env run-singularity\n\0", bytes(32)):
        assert len(begin) == 32
        (tmp_path / "z.sif").write_bytes(begin + b"SIF_MAGIC\0" + bytes(1000))
        with pytest.raises(ImageError, match=r"z\.sif: is an image of Singularity.*--sandbox DIR"):
            parse("./z.sif")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("docker:x", "write docker://x"),
        ("docker://", "is not an image name"),
        ("oci:", "is not an image name"),
        ("ftp://x", "there is no such image"),
        ("./nowhere", "there is no such image"),
        ("nowhere.sqsh", "there is no such image"),
    ],
)
def test_what_is_none(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse(text)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("busybox", "busybox"),
        ("busybox:1", "busybox"),
        ("h:5000/a/b", "h:5000/a/b"),
        ("h:5000/a/b:1@sha256:0", "h:5000/a/b"),
    ],
)
def test_what_was_looked_up_is_what_is_got(name: str, found: str) -> None:
    assert repository(name) == found
    assert parse(f"docker://{name}").source("sha256:1") == f"docker://{found}@sha256:1"


def test_digests() -> None:
    assert parse("docker://a@sha256:1").digest == "sha256:1"
    assert parse("docker://a:1").digest == ""
    assert parse("oci:/a@b:1").digest == ""


@pytest.mark.parametrize("kind", ["fifo", "device", "socket"])
def test_what_is_no_regular_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.sqsh"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(path))
    with pytest.raises(ImageError, match=r"x\.sqsh: cannot be read: is not a regular file"):
        parse(str(path))
