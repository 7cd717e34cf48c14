"""An installation of scrun beside the one under test, of the same files.

Plugins can be installed in it, and what is scrun's own can be changed.
"""

import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

from tests.harness.site import scrun_binary


class Installation:
    """All that is installed where scrun is, by links, and room for more.

    Attributes:
        base: Its directory.
        site: Where its Python packages are.
        binary: Its scrun.
    """

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="sc-inst-", dir="/tmp"))
        self.base.chmod(0o755)
        environment, under_test = Path(sys.prefix), Path(sysconfig.get_path("purelib"))
        self.site = self.base / under_test.relative_to(environment)
        self.site.mkdir(parents=True)
        for entry in under_test.iterdir():
            (self.site / entry.name).symlink_to(entry)
        (self.base / "bin").mkdir()
        for name in ("pyvenv.cfg", "bin/python3"):
            (self.base / name).symlink_to(environment / name)
        self.binary = str(self.base / "bin" / "scrun")
        shutil.copy(scrun_binary(), self.binary)
        (self.base / "share").mkdir()
        (self.base / "share" / "scrun").symlink_to(environment / "share" / "scrun")

    def own_copies(self, checkout: Path) -> None:
        """Have scrun itself from a checkout, as files that may be changed."""
        (self.site / "scrun").unlink()
        leave_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(checkout / "scrun", self.site / "scrun", ignore=leave_out)

    def install(self, project: Path) -> None:
        """Install a package from its sources, as a person would, without any network."""
        copy = self.base / project.name  # a build leaves its traces beside the sources
        shutil.copytree(project, copy)
        options = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet"]
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options]
        subprocess.run(
            [*pip, "--target", self.site, copy],
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
        )
        shutil.rmtree(copy)

    def close(self) -> None:
        shutil.rmtree(self.base)


def importable(project: Path, place: Path) -> str:
    """Have the plugins of a package found without its being installed.

    Returns:
        What PYTHONPATH has to be.
    """
    about = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = about["name"].replace("-", "_"), about["version"]
    info = place / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = about["entry-points"]["scrun.plugins"].items()
    text = "".join(f"{plugin} = {module}\n" for plugin, module in points)
    (info / "entry_points.txt").write_text(f"[scrun.plugins]\n{text}")
    return f"{place}:{project}"
