"""Which container ids there may be."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.errors import UsageError
from scrun.oci.ids import check_id


@pytest.mark.parametrize(
    "text", ["a", "A-b_c+d.9", "0" * 64, "x" * 255, "...", ".hidden", "-", "-f", "buildah-b1"]
)
def test_valid(text: str) -> None:
    assert check_id(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        "a/b",
        "../x",
        "a b",
        "a\n",
        "\na",
        "a\0b",
        "ä",
        "a,b",
        "x" * 256,
        "٣",
        "\udc80",
    ],
)
def test_invalid(text: str) -> None:
    with pytest.raises(UsageError, match="invalid container id") as caught:
        check_id(text)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=300))
def test_the_rule_is_that_of_runc(text: str) -> None:
    valid = re.fullmatch(r"[A-Za-z0-9_+.-]{1,255}", text) and text not in (".", "..")
    if valid:
        assert check_id(text) == text
    else:
        with pytest.raises(UsageError):
            check_id(text)
