"""Calls scrun once more, as it was called."""

import os
import sys

from scrun.cli.grammar import GLOBAL
from scrun.cli.parse import Parsed, as_words


def words_of(parsed: Parsed) -> list[str]:
    """Return the words that call scrun with the same global options."""
    return [os.path.abspath(sys.argv[0]), *as_words(GLOBAL, parsed)]
