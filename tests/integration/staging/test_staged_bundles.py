"""Staged bundles run: those of podman, docker, runc and umoci, on Slurm and on this machine.

The fixtures name the places where an engine keeps things: they are made here, and the names
replaced. Staging runs as the user whose container it is, as it does in the supervisor.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.engines.local.target import local_target
from tests import CHECKOUT
from tests.harness import users
from tests.harness.bundle import make_rootfs, snapshot
from tests.harness.cluster import slurm_conf
from tests.harness.program import run_program
from tests.harness.users import User

pytestmark = pytest.mark.covers("guide all containers run without privileges")

BUNDLES = CHECKOUT / "tests" / "data" / "bundles"
NAMES = sorted(path.stem for path in BUNDLES.glob("*.json"))
PLACES = (
    *("slurm-user", "slurm-root", "local-user", "local-root", "local-namespace"),
    *("cgroup2-user", "cgroup2-root"),
)
# maps of the user who wrote the bundle: no place has them but a user's own, which replaces them
OWN_MAPS = ("podman-keep-id", "runc-spec-rootless", "umoci")

STAGE = """
import json, os, sys, msgspec
from scrun.supervisor.engines.local.runtimes import find_runtime
from scrun.images.leases import lease_of
from scrun.supervisor.staging.staged_bundle import stage_in
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.engines.local.target import local_target
bundle, directory, engine, run = sys.argv[1:]
uid, gid = os.geteuid(), os.getegid()
if engine == "slurm":
    target = Target(elsewhere=True, uid=uid, gid=gid, rootless=uid != 0, link_rootfs=True,
                    host_only=(run,))
    command = ["srun", "-Q", "--export=NONE", "-N1", "-n1", "--container=" + directory]
else:
    runtime = find_runtime(None, env=os.environ)
    target = local_target(uid=uid, gid=gid, maps_root=runtime.maps_root)
    container = "scrun-test-" + os.path.basename(directory)
    command = runtime.command(directory + "-state", "run", "--bundle", directory, "--", container,
                              log=directory + "-log")
config = msgspec.json.decode(open(bundle + "/config.json", "rb").read())
root, container = os.path.split(directory)
transfer = Transfer(lease_of(root, container))
staged = stage_in(config, bundle, directory, target, transfer=transfer)
user = msgspec.json.decode(open(staged.bundle + "/config.json", "rb").read())["process"]["user"]
print(json.dumps({"command": command, "notes": staged.notes, "user": user}))
"""
UNSTAGE = """
import sys
from scrun.supervisor.staging.stage_out import stage_out
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import bring_back
bring_back(sys.argv[1], Transfer())
stage_out(sys.argv[1])
"""
PURE_V2 = [
    *("unshare", "--mount", "--propagation", "slave", "sh", "-c"),
    *('mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"', "sh"),
]
# as many users as podman's own has
NAMESPACE = ["unshare", "--user", "--map-root-user", "--map-auto"]


@dataclass
class Ground:
    """Where a bundle lies, and where and as whom it runs."""

    path: Path
    place: str

    @property
    def user(self) -> User:
        return users.root() if self.place.endswith("root") else users.ordinary()

    @property
    def engine(self) -> str:
        return "slurm" if self.place.startswith("slurm") else "local"

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        inside = NAMESPACE if self.place.endswith("namespace") else []
        before = PURE_V2 if self.place.startswith("cgroup2") else []
        return run_program(
            [*before, *self.user.prefix, *inside, *command],
            env={
                **self.user.environment,
                "PYTHONPATH": str(CHECKOUT),
                "SLURM_CONF": slurm_conf(),
            },
            cwd="/",
        )

    def python(self, program: str, *arguments: str) -> str:
        done = self.run(sys.executable, "-c", program, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, config: dict[str, Any]) -> None:
        """Make the bundle, and everything on this machine that it names."""
        text = json.dumps(config)
        for name, folder in (
            ("/home/user", "home"),
            ("/run/user/1000", "run"),
            ("/var/lib/docker/containers", "run"),
        ):
            text = text.replace(name, str(self.path / folder))
        config = json.loads(text)
        config["root"]["path"] = "rootfs"
        config["process"]["terminal"] = False
        for mount in config["mounts"]:
            source = Path(mount["source"])
            if self.path in source.parents:
                source.parent.mkdir(parents=True, exist_ok=True)
                if source.name in ("shm", "data", "_data"):
                    source.mkdir(exist_ok=True)
                    source.chmod(0o1777)
                elif not source.exists():
                    source.write_text(f"{source.name}\n")
        (self.path / "bundle" / "config.json").write_text(json.dumps(config))
        self.user.give(self.path)

    def container(self, config: dict[str, Any], script: str) -> tuple[str, dict[str, Any]]:
        """Run a shell script in the staged container; return its output, and of staging."""
        config["process"]["args"] = ["/bin/sh", "-c", script]  # a bare name the node looks up
        self.write(config)
        bundle, staged = self.path / "bundle", self.path / "staged"
        before = snapshot(bundle)
        run = str(self.path / "run")
        made = json.loads(self.python(STAGE, str(bundle), str(staged), self.engine, run))
        command = made["command"]
        if self.engine == "slurm":
            command += config["process"]["args"]
        assert {n: v for n, v in snapshot(bundle).items() if "/" not in n} == {
            n: v for n, v in before.items() if "/" not in n
        }
        done = self.run(*command)
        self.python(UNSTAGE, str(staged))
        assert not staged.exists()
        assert (done.returncode, done.stderr) == (0, ""), (made, done)
        return done.stdout, made


@pytest.fixture(scope="session")
def image() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="scrun-image-"))
    make_rootfs(path / "rootfs")
    yield path / "rootfs"
    shutil.rmtree(path)


@pytest.fixture
def ground(image: Path, request: pytest.FixtureRequest) -> Iterator[Ground]:
    path = Path(tempfile.mkdtemp(prefix="scrun-staged-"))
    path.chmod(0o755)
    (path / "bundle").mkdir()
    shutil.copytree(image, path / "bundle" / "rootfs", symlinks=True)
    yield Ground(path, request.param)
    shutil.rmtree(path)
    for hierarchy in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        for left in Path(hierarchy).glob("scrun-test-staged"):
            left.rmdir()


def load(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((BUNDLES / f"{name}.json").read_bytes())
    return config


def prepared(name: str, place: str) -> dict[str, Any]:
    """Load a bundle for a place where nothing else than its engine would be missing."""
    config = load(name)
    if place.startswith(("local", "cgroup2")):
        # what the engine itself would have made on this machine before it calls the runtime
        config.pop("hooks", None)
        config["process"].pop("apparmorProfile", None)
        config["linux"].pop("cgroupsPath", None)
        # docker's weight 0 is none, but crun 1.21 wants the controller `io` for it
        config["linux"].get("resources", {}).pop("blockIO", None)
        for namespace in config["linux"]["namespaces"]:
            namespace.pop("path", None)
    return config


def runs_there(name: str, place: str) -> bool:
    if place.endswith("user"):
        return True
    if name == "podman-privileged" and not place.startswith(("local", "cgroup2")):
        # nobody here knows what the root of another machine may do
        possible = local_target(uid=0, gid=0).capabilities
        return possible is None or "CAP_SYS_RESOURCE" in possible
    if name in OWN_MAPS:
        return False
    # podman wrote these for the namespace, docker for root
    return place != "local-namespace" or name != "docker"


# by `srun --container`
ON_SLURM = [
    pytest.param(place, marks=pytest.mark.oci_conf) for place in ("slurm-user", "slurm-root")
]


def place_of(name: str) -> str:
    """Return where a bundle runs in each run of the tests; in a nightly one it runs everywhere."""
    places = [place for place in PLACES if runs_there(name, place)]
    return places[NAMES.index(name) % len(places)]


MATRIX = [
    pytest.param(
        *(name, place),
        id=f"{name}-{place}",
        marks=[
            *[pytest.mark.oci_conf] * place.startswith("slurm"),
            *[pytest.mark.nightly] * (place != place_of(name)),
        ],
    )
    for name in NAMES
    for place in PLACES
    if runs_there(name, place)
]


@pytest.mark.parametrize(("name", "ground"), MATRIX, indirect=["ground"])
def test_a_staged_bundle_runs(name: str, ground: Ground) -> None:
    config = prepared(name, ground.place)
    submitted = dict(config["process"]["user"])
    out, made = ground.container(
        config,
        "id -u; id -g; grep -c ' /proc ' /proc/mounts; ls -d /sys/kernel /dev/null /dev/pts/ptmx;"
        " echo x >/dev/null && [ ! -e /dev/shm ] || echo y >/dev/shm/y && cat /dev/shm/y",
    )
    user = made["user"]
    if ground.place != "local-user":
        # there it depends on which runtime works
        assert (user["uid"], user["gid"]) == (submitted["uid"], submitted["gid"])
    assert out.split() == [
        *(str(user["uid"]), str(user["gid"]), "1"),
        *("/dev/null", "/dev/pts/ptmx", "/sys/kernel", "y"),
    ]


@pytest.mark.parametrize("ground", ON_SLURM, indirect=True)
@pytest.mark.parametrize("name", ["podman-host", "docker"])
def test_what_is_only_here_comes_along(name: str, ground: Ground) -> None:
    config = load(name)
    out, _ = ground.container(config, "cat /etc/hosts /etc/resolv.conf /etc/hostname")
    assert out.split() == ["hosts", "resolv.conf", "hostname"]


@pytest.mark.parametrize("ground", ON_SLURM, indirect=True)
def test_a_container_of_a_prepared_network_has_the_nodes(ground: Ground) -> None:
    interfaces, _ = ground.container(load("podman-pod"), "ls /sys/class/net")
    assert sorted(interfaces.split()) == sorted(os.listdir("/sys/class/net"))


@pytest.mark.parametrize("ground", ON_SLURM[:1], indirect=True)
def test_changes_of_a_shared_volume_come_back(ground: Ground) -> None:
    ground.container(load("podman-volumes"), "echo new >/data/new; echo s >/scratch/s")
    assert (ground.path / "home" / "data" / "new").read_text() == "new\n"
