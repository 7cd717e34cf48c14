"""Sphinx's settings for the site; `build.py` prepares the sources and runs it."""

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "man"))

from facts import substitutions
from sections import Builder
from tables import register

from scrun.core.version import VERSION

project = "scrun"
version = release = VERSION
extensions = ["myst_parser"]
myst_heading_anchors = 4
rst_epilog = substitutions()
exclude_patterns = ["build", "site"]
highlight_language = "text"
smartquotes = False
html_theme = "furo"
html_title = "scrun"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["sections.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False


def setup(app: Sphinx) -> None:
    """Let the manual pages be read as tools/docs reads them."""
    register()
    app.add_builder(Builder, override=True)
    app.connect("env-before-read-docs", _for_web)


def _for_web(app: Sphinx, *_: object) -> None:
    app.env.settings["scrun_for_web"] = True
