"""Whose a job is, from its comment."""

import pytest

from scrun.model.identity import mark, myself, read_mark
from scrun.supervisor.engines.slurm.job_ending import marked


@pytest.mark.parametrize("more", ["", "\n", " image=a:1@sha256:00 name=b", " scrun:x:y:1:2:3"])
def test_the_first_word_says_it(more: str) -> None:
    """The others are for people, and others may have changed them."""
    assert read_mark(mark("/root") + more, "/root") == myself()
    assert read_mark(mark("/root") + more, "/other") is None
    assert marked(f"  7 {mark('/root')}{more}\n8 other {mark('/root')}\n9\n", "/root") == [
        ("7", myself())
    ]


@pytest.mark.parametrize("text", ["", " ", "image=a", "scrun:", "scrun:x:y:1:2"])
def test_no_mark(text: str) -> None:
    assert read_mark(text, "/root") is None
