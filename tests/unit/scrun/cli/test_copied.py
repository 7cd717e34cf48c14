"""The operands of `scrun cp`."""

import pytest

from scrun.cli.copied import Copied, read_copied
from scrun.core.errors import UsageError


@pytest.mark.parametrize(
    ("operands", "copied"),
    [
        (["c:/a", "b"], Copied("c", "/a", "b", True)),
        (["c:a:b", "-"], Copied("c", "/a:b", "-", True)),
        (["./x:y", "c:/"], Copied("c", "/", "./x:y", False)),
        (["/x:y", "c:///z/"], Copied("c", "/z/", "/x:y", False)),
    ],
)
def test_a_container_and_a_path(operands: list[str], copied: Copied) -> None:
    assert read_copied(operands) == copied
    again = read_copied(copied.operands("whole"))
    assert again == copied._replace(container="whole", local="-")


@pytest.mark.parametrize(
    ("operands", "reason"),
    [
        (["a", "b"], "neither is in a container"),
        (["a:b", "c:d"], "both are in a container"),
        (["./a:b", "/c:d"], "neither"),
        (["a:", "b"], "empty"),
        (["a:/b", ""], "empty"),
        ([":/b", "c"], "id"),
        (["a b:/c", "d"], "id"),
    ],
)
def test_refused(operands: list[str], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_copied(operands)
