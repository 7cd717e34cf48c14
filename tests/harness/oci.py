"""Images in the OCI image layout (image-layout.md), made of what a test says."""

import gzip
import hashlib
import io
import json
import os
import platform
import subprocess
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

Json = dict[str, Any]
Descriptor = dict[str, Any]

ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
CONFIGURATION = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_NAME = "org.opencontainers.image.ref.name"


Members = list[tuple[tarfile.TarInfo, bytes]]
"""Those of an archive, with their content."""


class Layer(NamedTuple):
    """An archive, and how it is compressed: "", "gzip" or "zstd"."""

    archive: bytes
    compression: str = "gzip"


def member(
    name: str,
    content: bytes | str = b"",
    *,
    kind: bytes = tarfile.REGTYPE,
    mode: int = 0o644,
    link: str = "",
    owner: tuple[int, int] = (0, 0),
    time: float = 1_600_000_000,
    device: tuple[int, int] = (0, 0),
    pax: Mapping[str, str] | None = None,
) -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry of an archive and its content."""
    entry = tarfile.TarInfo(name)
    data = content.encode() if isinstance(content, str) else content
    entry.type, entry.mode, entry.linkname, entry.mtime = kind, mode, link, time
    entry.uid, entry.gid = owner
    entry.devmajor, entry.devminor = device
    entry.size = len(data) if kind == tarfile.REGTYPE else 0
    entry.pax_headers = dict(pax or {})
    return entry, data


def folder(name: str, mode: int = 0o755, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.DIRTYPE, mode=mode, **more)


def link(name: str, target: str, **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.SYMTYPE, link=target, mode=0o777, **more)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, kind=tarfile.LNKTYPE, link=target)


def archive(
    members: Iterable[tuple[tarfile.TarInfo, bytes]], form: int = tarfile.PAX_FORMAT
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for entry, content in members:
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


class Layout:
    """A layout."""

    def __init__(self, path: Path) -> None:
        """Make an empty one, or go on with one that is there."""
        self.path = path
        (path / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        if not (path / "index.json").exists():
            (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
            self.index([])

    def index(self, manifests: list[Descriptor]) -> None:
        """Write which images there are."""
        content = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        (self.path / "index.json").write_text(json.dumps(content))

    def manifests(self) -> list[Descriptor]:
        found: list[Descriptor] = json.loads((self.path / "index.json").read_text())["manifests"]
        return found

    def blob(self, content: bytes | Json, kind: str) -> Descriptor:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        digest = hashlib.sha256(data).hexdigest()
        (self.path / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    def read(self, descriptor: Descriptor) -> Json:
        name = descriptor["digest"].removeprefix("sha256:")
        content: Json = json.loads((self.path / "blobs" / "sha256" / name).read_bytes())
        return content

    def layer(self, layer: Layer) -> tuple[Descriptor, str]:
        """Write a layer; return its descriptor, and the digest of its archive."""
        data, suffix = layer.archive, ""
        if layer.compression == "gzip":
            data, suffix = gzip.compress(data, 1, mtime=0), "+gzip"
        elif layer.compression == "zstd":
            words = ["zstd", "-qc1"]
            data = subprocess.run(words, input=data, check=True, capture_output=True).stdout
            suffix = "+zstd"
        diff_id = f"sha256:{hashlib.sha256(layer.archive).hexdigest()}"
        return self.blob(data, _LAYER + suffix), diff_id

    def image(
        self,
        layers: Iterable[Layer],
        config: Json,
        *,
        architecture: str = ARCHITECTURE,
        **more: Any,
    ) -> Descriptor:
        """Write an image without a name; return its manifest's descriptor.

        Args:
            layers: Its layers.
            config: How its program is started (config.md).
            architecture: Its platform.
            more: What else its configuration says.
        """
        written = [self.layer(layer) for layer in layers]
        whole: Json = {
            "architecture": architecture,
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in written]},
            **more,
        }
        return self.manifest(whole, [descriptor for descriptor, _ in written])

    def manifest(self, configuration: Json, layers: list[Descriptor]) -> Descriptor:
        described = self.blob(configuration, CONFIGURATION)
        content = {
            "schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": layers,
        }  # fmt: skip
        platform = {"os": "linux", "architecture": configuration.get("architecture")}
        return self.blob(content, MANIFEST) | {"platform": platform}

    def several(self, manifests: list[Descriptor]) -> Descriptor:
        """Write an index of several platforms."""
        return self.blob({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}, INDEX)

    def tag(self, descriptor: Descriptor, name: str = "") -> None:
        """Add an image to the layout's index; it replaces one of the same name."""
        named = dict(descriptor)
        if name:
            named["annotations"] = {_NAME: name}
        others = [each for each in self.manifests() if not name or name_of(each) != name]
        self.index([*others, named])

    def tagged(self, name: str) -> Descriptor:
        [found] = [each for each in self.manifests() if name_of(each) == name]
        return found

    def changed(self, name: str, new: str, **config: Any) -> None:
        """Give an image another configuration and another name.

        Args:
            name: Its tag.
            new: The other tag.
            config: What its program is started by, as in config.md: `Cmd`, `Env`, ….
        """
        manifest = self.read(self.tagged(name))
        whole = self.read(manifest["config"])
        whole["config"] = {**(whole.get("config") or {}), **config}
        self.tag(self.manifest(whole, manifest["layers"]), new)

    def recompressed(self, name: str, new: str, compression: str) -> None:
        """Give an image, whose layers are in gzip, another compression and another name."""
        manifest = self.read(self.tagged(name))
        layers = []
        for descriptor in manifest["layers"]:
            blob = self.path / "blobs" / "sha256" / descriptor["digest"].removeprefix("sha256:")
            layers.append(self.layer(Layer(gzip.decompress(blob.read_bytes()), compression))[0])
        self.tag(self.manifest(self.read(manifest["config"]), layers), new)


def name_of(descriptor: Descriptor) -> str:
    """Return the tag of a descriptor; "" if it has none."""
    return str((descriptor.get("annotations") or {}).get(_NAME, ""))


def readable(path: Path) -> None:
    """Let other users read a layout."""
    for directory, _, files in os.walk(path):
        os.chmod(directory, 0o755)
        for file in files:
            os.chmod(os.path.join(directory, file), 0o644)
