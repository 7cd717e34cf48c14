"""An image archive as `docker save` writes it, which docker, containerd and buildah read."""

import hashlib
import io
import json
import os
import platform
import tarfile
from pathlib import Path

from tests.harness.bundle import Config
from tests.harness.site import Site

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Give a file of an image the owner that files of images have."""
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def add_files(archive: tarfile.TarFile, count: int, size: int) -> None:
    """Add files of so many random bytes."""
    for number in range(count):
        _add(archive, f"./opt/{number // 500}/{number}", os.urandom(size))


def image_archive(site: Site, name: str = "busybox", files: int = 0, size: int = 0) -> Path:
    """Make an image of a site's root file system, and return its archive.

    Args:
        site: The site.
        name: The image's name; it is the latest.
        files: How many more files it has.
        size: Their bytes, which are random.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(site.rootfs, ".", filter=owned_by_root)
        add_files(tar, files, size)
    machine = platform.machine()
    config: Config = {
        "architecture": _MACHINES.get(machine, machine),
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Cmd": ["sh"]},
        "rootfs": {
            "type": "layers",
            "diff_ids": [f"sha256:{hashlib.sha256(layer.getvalue()).hexdigest()}"],
        },
    }
    entry = {"Config": "config.json", "RepoTags": [f"{name}:latest"], "Layers": ["layer.tar"]}
    path = site.base / "image.tar"
    with tarfile.open(path, "w") as archive:
        _add(archive, "layer.tar", layer.getvalue())
        _add(archive, "config.json", json.dumps(config).encode())
        _add(archive, "manifest.json", json.dumps([entry]).encode())
    site.user.give(path)
    return path
