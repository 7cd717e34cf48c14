"""scrun help, --usage, --version: texts that need neither configuration nor a supervisor."""

from scrun.cli import help as texts
from scrun.cli.parse import Parsed
from scrun.core.errors import ScrunError
from scrun.core.output import write


def _of_plugins(topic: "str | None", parsed: Parsed) -> str:
    """Return the part of a command's help about the options of a site's scripts."""
    from scrun.client import plugin_options

    if topic not in plugin_options.COMMANDS:
        return ""
    try:
        return texts.plugins_text(plugin_options.list_options(parsed.options))
    except ScrunError as error:  # the rest of the help is still useful
        return f"\nOptions provided by plugins: {error}\n"


def run(parsed: Parsed) -> int:
    topic = parsed.operands[0] if parsed.operands else None
    if parsed.command == "version":
        text = texts.version_text()
    elif parsed.command == "usage":
        text = texts.usage_text()
    else:
        text = texts.help_text(topic) + _of_plugins(topic, parsed)
    write(text.encode())
    return 0
