"""The tests of scrun."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
