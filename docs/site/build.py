"""Build the site: the pages, the manual, and what the tests cover, as one tree with a search."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import results
from covered import CHECKOUT, page

_SITE = Path(__file__).resolve().parent

_CONTENTS = """
```{toctree}
:hidden:

tutorial
```

```{toctree}
:hidden:
:caption: How to
:glob:

howto/*
```

```{toctree}
:hidden:
:caption: Reference
:glob:

man/*
reference/*
```

```{toctree}
:hidden:
:caption: Inside
:glob:

design
glossary
internals/index
decisions/index
coverage
```
"""

_INTERNALS = """# Internals

What happens in each case, where that takes more than a paragraph of the design.

```{toctree}
:glob:
:maxdepth: 1

*
```
"""

_DECISIONS = """# Decisions

One page each: the context, what was tried and measured, and what was decided.

```{toctree}
:glob:
:maxdepth: 1

*
```
"""


def build(directory: Path) -> None:
    """Build it in a directory.

    Raises:
        SystemExit: Sphinx has an error or a warning, which is on standard error.
    """
    with tempfile.TemporaryDirectory() as place:
        sources = _prepare(Path(place))
        command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
        command += ["-c", str(_SITE), "-d", f"{place}/doctrees", str(sources), str(directory)]
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
        status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise SystemExit(status)


def _prepare(place: Path) -> Path:
    """Make a copy of docs/ that has the generated pages too; return its path.

    The rest of the checkout is beside it, so that links to it lead somewhere.
    """
    for path in CHECKOUT.iterdir():
        if path.name != "docs":
            (place / path.name).symlink_to(path)
    docs = place / "docs"
    ignored = shutil.ignore_patterns("build", "__pycache__")
    shutil.copytree(CHECKOUT / "docs", docs, ignore=ignored)
    (docs / "coverage.md").write_text(page())
    if found := results.page(docs / "results", docs / "reference"):
        (docs / "reference" / "results.md").write_text(found)
    for source in (docs / "man").glob("*.rst"):
        source.write_text(_under_one_title(source.read_text()))
    (docs / "decisions" / "index.md").write_text(_DECISIONS)
    (docs / "internals" / "index.md").write_text(_INTERNALS)
    for name in ("oci.conf", "plugin", "plugin-none"):
        folder = docs / "examples" / name
        (folder / "index.md").write_text(_shown(folder))
    for source in docs.rglob("*.md"):
        source.write_text(_to_indexes(source))
    with (docs / "index.md").open("a") as index:
        index.write(_CONTENTS)
    return docs


def _shown(folder: Path) -> str:
    """Return a page that has all files of a folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)) for path in paths]
    files = "\n".join(f"## {name}\n\n```{{literalinclude}} {name}\n```\n" for name in names)
    return f"---\norphan: true\n---\n\n# Examples: {folder.name}\n\n{files}"


def _to_indexes(page: Path) -> str:
    """Return the text of a page; its links to folders lead to the indexes of these."""

    def replaced(link: re.Match[str]) -> str:
        return (
            f"]({link[1].rstrip('/')}/index.md)" if (page.parent / link[1]).is_dir() else link[0]
        )

    return re.sub(r"\]\(([^):#]+)\)", replaced, page.read_text())


def _under_one_title(page: str) -> str:
    """Give a manual page one title, where man has a name, a purpose and a table of contents."""
    head, body, rest = page.partition("\n.. default-role:: literal\n")
    name, purpose = re.findall(r"^[a-z].+", head, re.MULTILINE)
    section = re.findall(r"^:Manual section: (\d)", head, re.MULTILINE)
    title = f"{name}({section[0]})"
    bar = "#" * len(title)
    rest = re.sub(r"\n\.\. web-contents::\n(   .*\n)+", "", rest)
    return f"{bar}\n{title}\n{bar}\n\n{purpose}\n{body}{rest}"
