"""Layers as squashfs images: how long it takes to make one."""

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

from scrun.supervisor.programs.pack_layer import _options, pack


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
