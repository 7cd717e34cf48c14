"""Modules that are imported when somebody uses them."""

import subprocess
import sys
from pathlib import Path

import pytest

from scrun.supervisor.core.later import postpone
from tests import CHECKOUT


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that has not been imported."""
    (tmp_path / "postponed_one.py").write_text(
        "import sys; sys.counted = getattr(sys, 'counted', 0) + 1\nvalue = 7\n"
        "class Error(Exception): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "counted", 0, raising=False)
    monkeypatch.delitem(sys.modules, "postponed_one", raising=False)
    return "postponed_one"


def counted() -> int:
    found: int = vars(sys)["counted"]
    return found


def test_it_is_imported_when_it_is_used(module: str) -> None:
    postpone(module)
    import postponed_one as first  # type: ignore[import-not-found]
    import postponed_one as second

    assert first is second
    assert not hasattr(first, "__file__")
    assert counted() == 0
    assert first.value == second.value == 7
    assert counted() == 1
    import postponed_one as third

    assert third is not first
    assert third.Error is first.Error
    assert counted() == 1


def test_from_import(module: str) -> None:
    postpone(module)
    from postponed_one import Error, value

    assert (value, issubclass(Error, Exception), counted()) == (7, True, 1)


def test_what_it_lacks(module: str) -> None:
    postpone(module)
    import postponed_one

    with pytest.raises(AttributeError, match="nothing"):
        _ = postponed_one.nothing


def test_one_that_is_imported_stays() -> None:
    before = sys.modules["subprocess"]
    postpone("subprocess")
    assert sys.modules["subprocess"] is before


def test_trio_works_without_openssl() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})\n"
        "from scrun.supervisor.core.later import postpone; postpone('ssl', 'hmac')\n"
        "import trio\n"
        "async def main(): await trio.sleep(0); return 7\n"
        "assert trio.run(main) == 7\n"
        "assert not {'_ssl', '_hashlib'} & {*sys.modules}\n"
        "import ssl, hmac\n"
        "assert ssl.create_default_context().verify_mode == ssl.CERT_REQUIRED\n"
        "assert hmac.compare_digest(b'x', b'x')\n"
        "assert issubclass(ssl.SSLError, OSError)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
