"""The names of files as srun has them."""

import pytest

from scrun.pull.file_names import facts_of, file_name, letters

FACTS = facts_of({}, "71", "name", "n1", "me")
ARRAY = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "13"}


@pytest.mark.parametrize(
    ("pattern", "which", "name"),
    [
        ("plain", "", "plain"),
        ("%x_%j.log", "xj", "name_71.log"),
        ("%u.%N.%n.%t.%s.%J", "uNntsJ", "me.n1.0.0.0.71.0"),
        ("%4t.%20j", "tj", "0000.0000000071"),
        ("%A_%a", "Aa", "71_4294967294"),
        ("100%%", "", "100%"),
        ("%q%", "", "%q%"),
        ("\\%j", "", "%j"),
    ],
)
def test_names(pattern: str, which: str, name: str) -> None:
    assert letters(pattern) == set(which)
    assert file_name(pattern, FACTS) == name


def test_in_an_array() -> None:
    assert file_name("%A_%a_%b_%j", facts_of(ARRAY, "71", "", "", "")) == "70_13_3_71"
