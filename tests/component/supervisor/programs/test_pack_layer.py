"""Layers as squashfs images: how long it takes to make one."""

import io
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from scrun.supervisor.programs import pack_layer
from scrun.supervisor.programs.pack_layer import _options, pack, unpack


def test_many_files_of_the_same_size(tmp_path: Path) -> None:
    """Each is not compared with all others, which takes 20 s for these; such are data sets."""
    archive = tmp_path / "layer.tar"
    with tarfile.open(archive, "w") as tar:
        for number in range(40_000):
            member = tarfile.TarInfo(f"./{number // 500}/{number}")
            member.size = 512
            tar.addfile(member, io.BytesIO(b"%512d" % number))
    command = ["mksquashfs", *_options("mksquashfs", str(tmp_path / "layer.sqfs"))]
    with archive.open("rb") as source:
        subprocess.run(command, stdin=source, check=True, timeout=10)


def test_the_top_directory(tmp_path: Path) -> None:
    """A read-only overlay shows that of its topmost layer."""
    layer, image = tmp_path / "layer", tmp_path / "layer.sqfs"
    layer.mkdir()
    layer.chmod(0o711)
    tool = shutil.which("mksquashfs")
    assert tool is not None
    assert pack([str(layer), str(image), "trusted", "owners", "overlay", tool]) == 0
    listed = subprocess.run(
        ["unsquashfs", "-lln", image], check=True, capture_output=True, text=True
    ).stdout
    assert listed.splitlines()[-1].split()[0] == "drwx--x--x"


def test_how_far_unpacking_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pack_layer, "_PERIOD", 0.005)
    (layer := tmp_path / "layer").mkdir()
    (layer / "much").write_bytes(random.Random(1).randbytes(64 << 20))
    image = tmp_path / "layer.sqfs"
    subprocess.run(["mksquashfs", layer, image, "-quiet", "-no-progress"], check=True)
    capfd.readouterr()
    assert unpack([str(image), str(tmp_path / "unpacked")]) == 0
    counts = [*map(int, capfd.readouterr().out.split())]
    assert len(counts) > 3
    assert counts == sorted(counts)
    assert image.stat().st_size / 4 < counts[-1] < image.stat().st_size + (4 << 20)  # libraries
    assert unpack([str(tmp_path / "none"), str(tmp_path / "no")]) == 1
    assert capfd.readouterr().err.startswith("cannot be unpacked: ")
