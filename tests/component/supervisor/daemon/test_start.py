"""What a supervisor imports until it serves: a user's first container waits for that."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness.wait import wait_until

MOST = 400
"""Modules; each takes 0.15 ms or more of a user's first container."""

_LINE = re.compile(r"import time:\s+\d+ \|\s+\d+ \|\s+(\S+)")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The modules that one imports until it listens."""
    root = tmp_path_factory.mktemp("root", numbered=True)
    root.chmod(0o700)
    main = CHECKOUT / "supervisor" / "__main__.py"
    program = str(CHECKOUT / "scrun" / main.relative_to(CHECKOUT))
    argv = [sys.executable, "-I", "-X", "importtime", program, "--root", str(root), "--name", "@s"]
    with (root / "said").open("w") as said, subprocess.Popen(argv, stderr=said) as process:
        try:
            wait_until("its socket", (root / "@s").is_socket, 30)
        finally:
            process.kill()
    found = _LINE.findall((root / "said").read_text())
    return found[found.index("site") + 1 : found.index("scrun.supervisor.daemon.server") + 1]


@pytest.mark.parametrize(
    "module",
    [
        *("argparse", "asyncio", "bz2", "dataclasses", "email", "hmac"),
        *("http", "idna", "importlib.metadata", "ipaddress", "locale", "lupa", "lzma"),
        *("ssl", "textwrap", "tokenize", "unittest", "yaml"),
        *("scrun.supervisor.programs.doctor", "scrun.supervisor.worker", "scrun.pull"),
        *("scrun.commands", "scrun.supervisor.engines.slurm.engine"),
        "scrun.supervisor.engines.local.engine",
    ],
)
def test_it_does_without(imported: list[str], module: str) -> None:
    assert "trio._core" in imported
    assert not [name for name in imported if name == module or name.startswith(module + ".")]


def test_how_many(imported: list[str]) -> None:
    assert len(imported) <= MOST, sorted(imported)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_as_it_begins_to_listen_stops_it(tmp_path: Path, number: signal.Signals) -> None:
    """As later: ^C in a terminal comes at any moment."""
    tmp_path.chmod(0o700)
    code = f"""
import os, sys
sys.path.insert(0, {str(CHECKOUT)!r})
from scrun.supervisor.daemon import server
from scrun.supervisor.daemon.daemonize import Starter
listen = server.listen
def listen_and_be_told_to_stop(root, name):
    listener = listen(root, name)
    os.kill(os.getpid(), {int(number)})
    return listener
server.listen = listen_and_be_told_to_stop
server.serve({str(tmp_path)!r}, "@s", Starter(), 60)
"""
    argv = [sys.executable, "-I", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "@s").exists()
