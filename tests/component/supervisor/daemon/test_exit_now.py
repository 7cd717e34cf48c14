"""A supervisor that exits at once."""

import os
from pathlib import Path
from types import SimpleNamespace

import trio

from scrun.settings.file.load import Log
from scrun.supervisor.daemon.server import Server
from scrun.supervisor.log.files import open_file

_TIMES = 10


def exit_with_a_word(path: Path) -> None:
    """Be a supervisor that says something while it exits."""
    file = trio.run(open_file, Log(file=str(path)))
    assert file is not None
    server = Server.__new__(Server)
    server._unlink = lambda: None  # type: ignore[method-assign]
    server._containers = SimpleNamespace(  # type: ignore[assignment]
        leaving=SimpleNamespace(is_kept=False),
        deposits=SimpleNamespace(dismiss=lambda patience: None),
        abandon=lambda *, kept: file.put(b"it goes before it has cleaned up\n"),
    )
    server.exit_now(leave=False)


def test_its_last_words_are_in_the_log(tmp_path: Path) -> None:
    """They say what is left to clean up."""
    for number in range(_TIMES):
        path = tmp_path / f"log{number}"
        pid = os.fork()
        if pid == 0:
            try:
                exit_with_a_word(path)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == 0
        assert path.read_bytes() == b"it goes before it has cleaned up\n"
