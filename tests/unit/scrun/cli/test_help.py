"""The texts that come from the table."""

import re

import pytest

from scrun.cli.grammar import COMMANDS, options_of
from scrun.cli.help import help_text, usage_text, version_text
from scrun.core.errors import UsageError

TOPICS = [None, *COMMANDS]


@pytest.mark.parametrize("topic", TOPICS)
def test_every_option_is_there_and_ignored_ones_say_so(topic: str | None) -> None:
    text = help_text(topic)
    for name, letters, _, used, _, meaning in options_of(topic):
        # an option's own lines: to the next option, or to the empty line
        match = re.search(rf"--{name}\b(?!-).*?(?=\n +-|\n\n)", text, re.DOTALL)
        assert match, name
        assert meaning in match[0]
        assert ("(ignored)" in match[0]) is not used
        assert all(f"-{letter}, " in text for letter in letters)


@pytest.mark.parametrize("topic", TOPICS)
def test_lines_fit_a_terminal(topic: str | None) -> None:
    for line in help_text(topic).splitlines() + usage_text(topic).splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()


def test_all_commands_are_in_the_help_and_in_the_usage() -> None:
    for name, (meaning, operands, _) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(meaning)}$", help_text(), re.MULTILINE)
        assert re.search(
            rf"scrun \[GLOBAL OPTIONS...\] {name}\b.*{re.escape(' '.join(operands))}$",
            usage_text().replace("\n" + " " * 11, " "),
            re.MULTILINE,
        )


def test_the_usage_of_a_command() -> None:
    assert usage_text("kill") == (
        "Usage: scrun [GLOBAL OPTIONS...] kill [KILL OPTIONS] <container-id> [signal]\n"
    )
    assert help_text("kill").startswith(usage_text("kill") + "\n")


@pytest.mark.parametrize("text_of", [help_text, usage_text])
def test_an_unknown_topic(text_of: type[object]) -> None:
    with pytest.raises(UsageError, match="'frobnicate'"):
        text_of("frobnicate")  # type: ignore[call-arg]


def test_the_version_is_two_lines() -> None:
    assert re.fullmatch(r"scrun version \d\S*\nspec: 1\.\d+\.\d+\n", version_text())
