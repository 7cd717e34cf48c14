"""A Debian as images have it, with servers that change users; repositories; source of Slurm's."""

import contextlib
import fcntl
import functools
import hashlib
import http.server
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.harness.program import run_program

_CACHE = Path("/var/cache/scrun-tests")
_SERVERS = "adduser,nginx-light,postgresql"
_LEFT_OUT = ("usr/share/doc", "usr/share/man", "usr/share/locale", "var/cache/apt", "var/lib/apt")
_MAKING = 600
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SEFF = "/contribs/seff/seff"
_VENV = """
mount --bind "$0/srv" /srv  # its path is in its programs
/usr/bin/python3 -m venv /srv/venv
/srv/venv/bin/python3 -m pip --quiet --disable-pip-version-check install "$@"
"""
_INSTALLS = """#!/bin/sh
set -e
adduser --system --group --no-create-home keeper
install -d -o keeper -g keeper -m 750 /var/lib/keeper
"""


def debian_image() -> Path:
    """Return the archive of a root file system with nginx and postgres, owners and all."""
    return _once("debian", _SERVERS)


def jupyter_image() -> Path:
    """Return one with JupyterLab and TensorBoard, from PyPI, in /srv/venv."""
    return _once("jupyter", "python3", "jupyterlab", "tensorboard")


def _once(name: str, *made_of: str) -> Path:
    """Make an archive once on a machine: debootstrap takes more than a minute."""
    codename = platform.freedesktop_os_release()["VERSION_CODENAME"]
    archive = _CACHE / f"{name}-{codename}.tar"
    with _locked():
        if not archive.exists():
            _make(codename, archive, *made_of)
    return archive


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    _CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(_CACHE / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def seff() -> Path:
    """Return Slurm's script of that name, which only the source package of Debian has."""
    mirror, here = _suite()
    # what a list of sid's names is gone as soon as there is something newer
    suite = "trixie" if here == "sid" else here
    script = _CACHE / f"seff-{suite}"
    with _locked():
        if not script.exists():
            _get_seff(script, f"{mirror} {suite}")
    return script


def _get_seff(script: Path, suite: str) -> None:
    """Take it from the archive, by lists of its own: apt here need not know of source packages."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="scrun-slurm-") as place:
        sources, lists = Path(place, "sources.list"), Path(place, "lists")
        sources.write_text(f"deb-src [signed-by={_KEYS}] {suite} main\n")
        lists.mkdir()
        own = [f"Dir::Etc::sourcelist={sources}", "Dir::Etc::sourceparts=/dev/null"]
        own += [f"Dir::State::lists={lists}", f"Dir::Cache={place}"]
        apt = ("apt-get", *(word for each in own for word in ("-o", each)))
        _run(*apt, "update")
        _run(*apt, "source", "--download-only", "--tar-only", "slurm-wlm", cwd=place)
        [archive] = Path(place).glob("slurm-wlm_*.orig.tar.*")
        with tarfile.open(archive) as tar:
            [name] = [name for name in tar.getnames() if name.endswith(_SEFF)]
            content = tar.extractfile(name)
            assert content is not None
            new = script.with_suffix(".new")
            new.write_bytes(content.read())
        new.rename(script)


def _make(codename: str, archive: Path, servers: str, *wheels: str) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="scrun-debian-") as base:
        root = Path(base, "rootfs")
        options = ["--variant=minbase", f"--include={servers}"]
        _run("debootstrap", *options, codename, str(root), *_suite()[:1])
        for name in _LEFT_OUT:
            shutil.rmtree(root / name)
            (root / name).mkdir()
        if wheels:
            _run("unshare", "--mount", "sh", "-ec", _VENV, str(root), *wheels)
        new = archive.with_suffix(".new")
        with tarfile.open(new, "w") as tar:
            tar.add(root, ".")
        new.rename(archive)


def _suite() -> list[str]:
    """Return the mirror that apt uses here and the suite, if it says which."""
    words = ["--format", "$(REPO_URI) $(RELEASE)", "Created-By: Packages", "Label: Debian"]
    return _run("apt-get", "indextargets", *words).split()[:2]


def _run(*command: str, cwd: str | None = None) -> str:
    done = run_program(command, stderr=subprocess.STDOUT, timeout=_MAKING, cwd=cwd)
    assert done.returncode == 0, f"{command}: {done.returncode}: {done.stdout[-2000:]}"
    return done.stdout


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def repository(base: Path) -> Iterator[str]:
    """Serve a Debian repository of one package on the loopback, and yield its address.

    The package, `keeper`, makes a user when it is installed, and a directory of that user's.
    """
    package = base / "package"
    (package / "DEBIAN").mkdir(parents=True)
    (package / "usr/share/keeper").mkdir(parents=True)
    (package / "usr/share/keeper/word").write_text("kept\n")
    (package / "DEBIAN/control").write_text(
        "Package: keeper\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\n"
        "Depends: adduser\nDescription: makes a user\n"
    )
    script = package / "DEBIAN/postinst"
    script.write_text(_INSTALLS)
    script.chmod(0o755)
    served = base / "repository"
    served.mkdir()
    _run("dpkg-deb", "--build", "--root-owner-group", str(package), str(served / "keeper.deb"))
    fields = (package / "DEBIAN/control").read_text()
    content = (served / "keeper.deb").read_bytes()
    (served / "Packages").write_text(
        f"{fields}Filename: ./keeper.deb\nSize: {len(content)}\nSHA256: {_sha256(content)}\n"
    )
    handler = functools.partial(_Quiet, directory=os.fspath(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
