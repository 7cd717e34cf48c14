"""scrun help, --usage, --version: what needs neither configuration nor a supervisor."""

from scrun._fast import write
from scrun.cli import help as texts
from scrun.cli.parse import Parsed


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Print one of the texts on standard output."""
    del argv
    topic = parsed.operands[0] if parsed.operands else None
    if parsed.command == "version":
        text = texts.version_text()
    elif parsed.command == "usage":
        text = texts.usage_text()
    else:
        text = texts.help_text(topic)
    write(text.encode())
    return 0
