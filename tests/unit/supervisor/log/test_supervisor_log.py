"""The supervisor's own log."""

import errno
import linecache
import os
from typing import NoReturn

import pytest

from scrun.supervisor.log import supervisor_log


def test_a_fault_is_logged_where_no_source_can_be_read(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Python 3.13 imports a module to read lines; 3.11 has it already. See also test_shortage.
    def exhausted(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(linecache, "updatecache", exhausted)
    monkeypatch.setattr(linecache, "checkcache", lambda *_: None)
    linecache.clearcache()
    handler = supervisor_log._Handler(None, "name")
    monkeypatch.setattr(supervisor_log.log, "handlers", [handler])
    monkeypatch.setattr(supervisor_log.log, "propagate", False)
    try:
        raise ValueError("odd")
    except ValueError as error:
        supervisor_log.fault("request kill", error)
    said = capfd.readouterr().err
    assert "request kill: " in said
    assert f"{__file__}:" in said
    assert "ValueError" in said
