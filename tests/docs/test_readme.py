"""README.md begins with what a newcomer types."""

import re

from tests import CHECKOUT


def test_the_first_commands_are_the_demonstration_and_the_tests() -> None:
    block = re.search(r"```\w*\n(.*?)```", (CHECKOUT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    commands = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert commands == ["tools/try", "tools/test"]
    assert commands[1] in (CHECKOUT / ".ci" / "run").read_text()
    assert f"    {commands[1]}\n" in (CHECKOUT / "CONTRIBUTING.md").read_text()
