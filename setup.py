"""What the wheel has that is made while it is built: manual pages, and completion for shells."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build import build

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


build.sub_commands = [*build.sub_commands, ("build_share", None)]
setup(cmdclass={"build_share": BuildShare})
