"""scrun doctor: check whether containers can run here, and say what to do.

One line for each thing that is looked at: `ok`, `warn` or `fail`, what was found, and the remedy.
The exit status is 1 when anything failed. The work is the supervisor's
(`supervisor.programs.doctor.main`), in a program of its own that takes this one's place: it needs
the engines, and no container is to be kept.

Wire: nothing; but the test container is made by a `create` as any other.
"""

from scrun.cli.parse import Parsed
from scrun.client.become import become


def run(parsed: Parsed, argv: list[str]) -> int:
    """Become the program that does it.

    Args:
        parsed: The parsed command line.
        argv: The same as it came; the program reads it again, with the same table.
    """
    del parsed
    become(module="scrun.supervisor.programs.doctor.main", argv=argv, undoes_nothing=True)
