"""Changes of an adopted container that cannot be brought back."""

from types import SimpleNamespace
from typing import Any

import pytest

from scrun.core.errors import StagingError
from scrun.supervisor.staging import builtin


async def test_where_they_are_is_said_even_if_the_bundle_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In its log is why that could not be removed; `delete` tries again."""
    said: list[tuple[str, str]] = []

    class Lost:
        async def bring_back(self, *_: object, privileged: bool) -> None:
            raise StagingError("they are kept in /there")

    def stays(directory: str) -> None:
        raise StagingError(f"cleaning {directory}: busy")

    monkeypatch.setattr(builtin, "_Changes", lambda *_: Lost())
    monkeypatch.setattr(builtin, "stage_out", stays)
    request = SimpleNamespace(journal=SimpleNamespace(write=lambda *words: said.append(words)))
    served = SimpleNamespace(staged=None, request=request, skip_stage_out=None, job=None)
    left: Any = SimpleNamespace(record=SimpleNamespace(staged="/b"), served=served, settings=None)
    with pytest.raises(StagingError, match="they are kept in /there"):
        await builtin.undo(left)
    assert said == [("error", "cleaning /b: busy")]
