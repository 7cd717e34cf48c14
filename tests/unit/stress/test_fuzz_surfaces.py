"""Every surface of `tests/stress/fuzz`, with whatever may come there."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.limits import limited
from tests.harness.strategies import damaged, of_pieces
from tests.stress.fuzz.base import Target
from tests.stress.fuzz.seeds import ODD
from tests.stress.fuzz.targets import TARGETS

each = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@each
def test_what_is_right_and_what_is_odd(target: Target) -> None:
    for data in (*target.seeds, *ODD):
        with limited():
            target.check(data)


@each
def test_what_is_odd_within_what_is_right(target: Target) -> None:
    for seed in target.seeds[:2]:
        for odd in ODD:
            place = len(seed) // 2
            with limited():
                target.check(seed[:place] + odd + seed[place:])


@each
def test_anything(target: Target) -> None:
    nearly = st.sampled_from(target.seeds[:4]).flatmap(damaged)

    @settings(suppress_health_check=[*HealthCheck])
    @given(nearly | of_pieces(*target.words, *"=\n\"'{}[]:,.#- ", "\0") | st.binary(max_size=60))
    def check(data: bytes) -> None:
        with limited():
            target.check(data)

    check()
