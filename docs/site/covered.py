"""The page of what the tests show, made from their markers `covers`."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

SUBJECTS: Mapping[str, str] = {
    "promise": "What scrun promises",
    "scrun(1)": "Slurm's manual page scrun(1)",
    "scrun": "Commands that the manual page does not have",
    "slurm-scrun": "What Slurm's own scrun does wrong",
    "podman": "podman",
    "docker": "docker",
    "buildah": "buildah",
    "ctr": "containerd",
    "service": "Services of systemd",
    "limitation": "Slurm's list of limitations",
    "guide": "Slurm's containers guide",
    "oci.conf": "Parameters and patterns of oci.conf",
    "plugin-api": "Slurm's plugin API",
    "spank-lua": "The manual page spank-lua(8)",
    "security": "Security",
}
"""The headings of the page, by the first word of what a marker says."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

Covered = Mapping[str, Mapping[str, list[str]]]


def covered() -> Covered:
    """Return the tests that cover each thing, by subject.

    Raises:
        KeyError: A marker begins with a word that is not in `SUBJECTS`.
    """
    found: dict[str, dict[str, list[str]]] = {subject: defaultdict(list) for subject in SUBJECTS}
    for path in sorted((CHECKOUT / "tests").rglob("test_*.py")):
        name = str(path.relative_to(CHECKOUT))
        for node in ast.parse(path.read_text()).body:
            for said in _said(node):
                subject, _, thing = said.partition(" ")
                test = f"{name}::{node.name}" if isinstance(node, _FUNCTIONS) else name
                found[subject][thing].append(test)
    return found


def _said(node: ast.stmt) -> Iterator[str]:
    """Yield what the markers at a function, or those of the whole file, say."""
    if isinstance(node, _FUNCTIONS):
        marked: list[ast.expr] = node.decorator_list
    elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
        marked = [node.value]
    else:
        return
    for call in (inner for one in marked for inner in ast.walk(one)):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.covers":
            yield from (ast.literal_eval(argument) for argument in call.args)


def page() -> str:
    """Return the page, in Markdown."""
    lines = [
        "# What the tests show",
        "",
        "`tools/docs` makes this page from the markers of the tests, "
        '`@pytest.mark.covers("scrun(1) SIGNALS")`. `tools/test FILE::NAME` runs one of them.',
    ]
    for subject, things in covered().items():
        lines += ["", f"## {SUBJECTS[subject]}", "", "| what | tests |", "|---|---|"]
        for thing, tests in sorted(things.items()):
            names = "<br>".join(f"`{test}`" for test in tests)
            lines.append(f"| {_literal(thing)} | {names} |")
    return "\n".join([*lines, ""])


def _literal(text: str) -> str:
    return text.replace("|", r"\|").replace("<", r"\<").replace("[", r"\[").replace("_", r"\_")
