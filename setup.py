"""What the wheel has that is made while it is built: the client, manual pages, completion.

Without a C compiler the wheel has a script in the client's place, and is for every machine.
"""

import subprocess
import sys
from importlib import import_module
from pathlib import Path
from sysconfig import get_platform

from setuptools import Command, setup  # before distutils, which it brings
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build  # isort: split

from distutils.command.build_scripts import build_scripts

CHECKOUT = Path(__file__).resolve().parent
COMPLETION = {
    "bash": "bash-completion/completions/scrun",
    "fish": "fish/vendor_completions.d/scrun.fish",
    "zsh": "zsh/site-functions/_scrun",
}


class BuildShare(Command):
    """Make the files, and have them installed under `share`."""

    user_options = ()

    def initialize_options(self) -> None:
        """Have no options."""

    def finalize_options(self) -> None:
        """Have no options."""

    def run(self) -> None:
        """Write them beside what else is built."""
        share = Path(self.get_finalized_command("build").build_base).resolve() / "share"
        pages = share / "pages"
        subprocess.run([sys.executable, CHECKOUT / "tools" / "docs", pages], check=True)
        for page in pages.glob("*.[1-9]"):
            self._add(share, f"man/man{page.name[-1]}/{page.name}", page.read_text())
        sys.path.insert(0, str(CHECKOUT))
        scripts = import_module("scrun.cli.completion.scripts").SCRIPTS
        for shell, place in COMPLETION.items():
            self._add(share, place, scripts[shell])

    def _add(self, share: Path, place: str, text: str) -> None:
        path = share / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.distribution.data_files.append((f"share/{Path(place).parent}", [str(path)]))


class BuildClient(build_scripts):
    """Put the client in the place of the script, if it can be built."""

    def run(self) -> None:
        """Build it, or keep the script."""
        super().run()
        sys.path.insert(0, str(CHECKOUT))
        program = Path(self.build_dir).resolve() / "scrun"
        built = program.with_name("client")
        reason = import_module("scrun.native.build").build(built)
        if reason:
            sys.stderr.write(f"scrun: without its client in C, which makes it faster: {reason}\n")
        else:
            built.replace(program)
            program.chmod(0o755)


class Wheel(bdist_wheel):
    """A wheel for this kind of machine, and for every Python 3, if it has the client."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag."""
        scripts = Path(self.get_finalized_command("build_scripts").build_dir)
        if (scripts / "scrun").read_bytes()[:4] != b"\x7fELF":
            return "py3", "none", "any"
        platform = (self.plat_name or get_platform()).replace("-", "_").replace(".", "_")
        return "py3", "none", platform


build.sub_commands = [*build.sub_commands, ("build_share", None)]
setup(cmdclass={"bdist_wheel": Wheel, "build_scripts": BuildClient, "build_share": BuildShare})
