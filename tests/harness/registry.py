"""A registry of images on the loopback, and images in it."""

import base64
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.harness.daemons import program
from tests.harness.image import image_archive
from tests.harness.oci import Json, Layout
from tests.harness.program import output_of, run_program
from tests.harness.site import Site
from tests.harness.wait import wait_until

SAYS: Json = {"Cmd": ["sh", "-c", "echo up; pwd; echo $A"]}
SET: Json = {**SAYS, "Env": ["A=of the image"], "WorkingDir": "/tmp"}
SAID = "up\n/tmp\nof the image\n"
"""What an image says whose settings are SET."""
ANY = {"default": [{"type": "insecureAcceptAnything"}]}


class Registry:
    """A registry, which the site's user may use without TLS.

    Attributes:
        name: Its name in names of images: `127.0.0.1:5000`.
        layout: An OCI image layout with the images that were pushed, by the names box-1, ….
        store: Where scrun keeps images.
    """

    def __init__(self, site: Site, password: str = "") -> None:
        """Prepare it.

        Args:
            site: Its user's.
            password: That of its only user, `me`; without one it serves everybody.
        """
        self.site = site
        self._base = Path(tempfile.mkdtemp(prefix="registry-"))  # it is not the site's process
        self._base.chmod(0o755)
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        self.store = site.base / "s"
        self.name = f"127.0.0.1:{port}"
        self.layout = self._base / "layout"
        storage = {"filesystem": {"rootdirectory": str(self._base / "d")}}
        own = {"version": 0.1, "storage": storage, "http": {"addr": self.name}}
        if password:
            known = self._base / "htpasswd"
            salted = ["perl", "-e", "print crypt($ARGV[0], '$2b$05$' . 'a' x 22)", password]
            known.write_text(f"me:{output_of(salted)}\n")
            own["auth"] = {"htpasswd": {"realm": "test", "path": str(known)}}
        (self._base / "config.yml").write_text(json.dumps(own))
        home = site.base / "h"
        configuration = home / ".config" / "containers"
        configuration.mkdir(parents=True, exist_ok=True)
        (configuration / "policy.json").write_text(json.dumps(ANY))
        (configuration / "registries.conf").write_text(
            f'[[registry]]\nlocation = "{self.name}"\ninsecure = true\n'
        )
        site.user.give(home)
        site.user.give(self._base)
        with (site.base / "scrun.toml").open("a") as settings:
            settings.write(f'[images]\nstore = "{self.store}"\n')
        site.environment["HOME"] = str(home)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = [program("docker-registry"), "serve", str(self._base / "config.yml")]
        before = self._log().count("listening on")
        with open(self._base / "log", "ab") as log:
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until("the registry", lambda: self._log().count("listening on") > before)

    def login(self, password: str) -> None:
        """Do what `podman login` does."""
        auths = {self.name: {"auth": base64.b64encode(f"me:{password}".encode()).decode()}}
        path = Path(self.site.environment["HOME"], ".config", "containers", "auth.json")
        path.write_text(json.dumps({"auths": auths}))
        self.site.user.give(path)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it, and remove it."""
        self.stop()
        shutil.rmtree(self._base)

    def _log(self) -> str:
        log = self._base / "log"
        return log.read_text() if log.exists() else ""

    def blobs(self) -> int:
        """How many blobs somebody has got."""
        return len(re.findall(r'"GET /v2/[^ ]*/blobs/', self._log()))

    def push(self, name: str, archive: Path | None = None, **config: Any) -> str:
        """Push an image of the site's root file system; return its name for scrun.

        Args:
            name: Its name and tag.
            archive: Of another root file system.
            config: As for `Layout.changed`.
        """
        if not self.layout.exists():
            own = image_archive(self.site)
            skopeo(self.site, "copy", f"docker-archive:{own}", f"oci:{self.layout}:latest")
        base, tag = "latest", name.replace(":", "-")
        if archive is not None:
            base = archive.stem
            skopeo(self.site, "copy", f"tarball:{archive}", f"oci:{self.layout}:{base}")
        Layout(self.layout).changed(base, tag, **config)
        skopeo(self.site, "copy", f"oci:{self.layout}:{tag}", f"docker://{self.name}/{name}")
        return f"docker://{self.name}/{name}"

    def digest(self, name: str) -> str:
        said = skopeo(self.site, "inspect", f"docker://{self.name}/{name}")
        return str(json.loads(said)["Digest"])


def skopeo(site: Site, *words: str) -> str:
    """Call skopeo as the site's user, who accepts any image."""
    policy = site.base / "policy.json"
    policy.write_text(json.dumps(ANY))
    return as_user(site, "skopeo", "--policy", str(policy), *words)


def as_user(site: Site, *words: str | Path) -> str:
    """Call a program as the site's user; return what it prints."""
    argv: Sequence[str | Path] = [*site.user.prefix, *words]
    done = run_program(argv, env=site.environment, cwd=site.base / "b", timeout=300)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def run(registry: Registry, *words: str, says: str = "getting ") -> str:
    """Run a container of an image; return what it printed."""
    done = registry.site.run("run", *words)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert all(line.startswith(f"scrun: {says}") for line in lines), done.stderr
    return done.stdout


def images(registry: Registry) -> list[str]:
    folders = ("leases", "locks", "names", "tags", "tmp")
    return [name for name in os.listdir(registry.store) if name not in folders]


def box(registry: Registry, tag: str = "box:1") -> str:
    return f"docker://{registry.name}/{tag}"
