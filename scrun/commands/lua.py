"""scrun lua: try a site's scrun.lua, without a cluster and without a container.

`check FILE` loads it as `create` does and tells what it defines. `run FILE` has it stage a bundle,
and tells what has become of that. The work is the supervisor's (`supervisor.programs.lua_trial`),
in a program of its own that takes this one's place: there is no container to keep.
"""

from scrun.cli.parse import Parsed
from scrun.client.become import become
from scrun.core.errors import UsageError


def run(parsed: Parsed, argv: "list[str]") -> int:
    """Become the program that does it.

    Args:
        parsed: The parsed command line.
        argv: The same as it came; the program reads it again, with the same table.

    Raises:
        UsageError: It cannot be meant like this.
    """
    action = parsed.operands[0]
    if action not in ("check", "run"):
        raise UsageError(f"lua cannot {action!r}, only check or run: see 'scrun lua --help'")
    if action == "check" and not parsed.options.keys().isdisjoint(
        ("bundle", "config", "stage-out")
    ):
        raise UsageError("lua check takes no bundle: it only loads the script")
    become(module="scrun.supervisor.programs.lua_trial", argv=argv)
