"""Carries out an order for a volume as root of a namespace with the user's subordinate ids."""

import sys

import msgspec

from scrun.core.errors import StagingError
from scrun.core.typed import decode_as
from scrun.supervisor.staging.transfer import Order, Transfer, carried_here, why


def main(text: str) -> int:
    """Carry it out, and print the entries left out; or say why not, and return 1."""
    try:
        merged = carried_here(decode_as(text, Order), Transfer())
    except (OSError, RecursionError, StagingError) as error:
        sys.stderr.write(f"{why(error)}\n")
        return 1
    sys.stdout.buffer.write(msgspec.json.encode(merged))
    return 0
