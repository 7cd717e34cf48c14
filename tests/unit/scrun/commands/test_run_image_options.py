"""`scrun run IMAGE` makes a command line of its own for its container."""

from scrun.cli.grammar import COMMANDS
from scrun.commands.run_image import _PASSED_ON


def test_all_options_of_create_are_passed_on() -> None:
    own = {"bundle", "config"}
    assert {option[0] for option in COMMANDS["create"][2]} - {*_PASSED_ON} == own
