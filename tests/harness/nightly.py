"""What tests do more of in `tools/test --nightly`."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

NIGHTLY = bool(os.environ.get("SCRUN_NIGHTLY"))


def nightly(*values: Any, marks: Sequence[pytest.MarkDecorator] = ()) -> Any:
    """Values of a parametrised test that takes them only then; `marks` are more of these."""
    return pytest.param(*values, marks=[pytest.mark.nightly, *marks])


def often(usually: int, then: int) -> int:
    """How often something is done: usually, and then."""
    return then if NIGHTLY else usually
