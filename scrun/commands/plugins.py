"""scrun plugins: list the engines and stagers that are installed.

A row for each: its type, the version of the plugin API that it was written for, the package that
it came with, its name, and whether it can be used here, or why not. To find that out each is
loaded, as for a container, and asked with the settings that hold for this call. The work is the
supervisor's (`supervisor.programs.plugins_list`).

Errors: SettingsError, when a settings file or a variable is wrong.
"""

from scrun.cli.parse import Parsed
from scrun.client.become import become


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Become the program that does it.

    Args:
        parsed: The parsed command line.
        argv: The same as it came.
    """
    del parsed
    become(module="scrun.supervisor.programs.plugins_list", argv=argv, undoes_nothing=True)
