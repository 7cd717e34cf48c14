"""A machine like those of podman 6: no slirp4netns, iptables and CNI, and cgroups of version 2.

Nodes have none of these in any case; the submit host, where podman itself can do without.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster, users
from tests.harness.daemons import program
from tests.harness.networks import free_port, gets_to
from tests.harness.networks import tun as tun
from tests.harness.podman import Podman, podman_of
from tests.harness.program import output_of
from tests.integration.engines.test_networks import HTTPD, answers, log_of, run

pytestmark = pytest.mark.covers("promise networks")

_HIDE = """
: > "$0"; chmod 644 "$0"
for program; do mount --bind "$0" "$program"; done
for folder in /usr/lib/cni /opt/cni/bin; do
    [ ! -d "$folder" ] || mount -t tmpfs none "$folder"
done
[ -e /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 cgroup /sys/fs/cgroup
"""
_SHOW = 'for path; do umount --lazy "$path"; done'
_VERSION_2 = "sys/fs/cgroup/cgroup.controllers"
_FOLDERS = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin")
_NAMES = ("slirp4netns", "iptables", "ip6tables", "iptables-nft", "iptables-legacy")
_CNI = ("/usr/lib/cni", "/opt/cni/bin")


def _needed_by_podman() -> bool:
    return int(output_of([program("podman"), "--version"]).split()[2].split(".")[0]) < 5


def _programs() -> list[str]:
    """The files that are one of these programs; several names lead to some."""
    paths = {Path(folder, name).resolve() for folder in _FOLDERS for name in _NAMES}
    return sorted(str(path) for path in paths if path.exists())


@pytest.fixture(scope="module", autouse=True)
def nodes() -> Iterator[list[str]]:
    """The processes of nodes, which see none of all that; nor do we, if podman can do without."""
    run = Path(cluster.slurm_conf()).parents[1] / "run"
    nodes = [file.read_text().strip() for file in run.glob("slurmd-*.pid")]
    places = [*nodes, *(() if _needed_by_podman() else (str(os.getpid()),))]
    programs = _programs()
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as nothing, ExitStack() as stack:
        for place in places:
            enter = ["nsenter", "--mount", "--target", place, "sh", "-ec"]
            folders = [path for path in _CNI if Path(path).is_dir()]
            if not Path(f"/proc/{place}/root/{_VERSION_2}").exists():
                folders.append("/sys/fs/cgroup")
            stack.callback(output_of, [*enter, _SHOW, "sh", *programs, *folders])
            output_of([*enter, _HIDE, nothing.name, *programs])
        yield nodes


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    with cluster.without_oci_conf(), podman_of(users.ordinary()) as podman:
        yield podman


def test_they_are_hidden(nodes: list[str]) -> None:
    """So that the other tests say something."""
    programs = _programs()
    assert programs
    for node in nodes:
        root = Path(f"/proc/{node}/root")
        assert not any(os.access(f"{root}{path}", os.X_OK) for path in programs)
        assert (root / _VERSION_2).exists()
        assert not (root / "sys/fs/cgroup/memory").exists()
    assert _needed_by_podman() or not any(map(shutil.which, _NAMES))


def test_a_published_port(podman: Podman) -> None:
    """The node connects the container by pasta; what is published leads there, and out."""
    port = free_port()
    network = "slirp4netns" if _needed_by_podman() else "pasta"
    container = run(podman, "-p", f"{port}:80", *HTTPD, network=network)
    answers(port)
    assert "its own, by pasta" in log_of(podman, container)
    podman.must("rm", "--force", "--time", "0", container)


def test_names_in_a_network(podman: Podman) -> None:
    """One container reaches another by its name, on another node, through rules of nft's."""
    podman.must("network", "create", "net")
    run(podman, "--name", "web", "busybox", "sleep", "1000", network="net")
    there = ("--annotation", "slurm.nodelist=node2")
    run(podman, "--name", "db", *there, *HTTPD, network="net")
    gets_to(podman, "web", "db")
    podman.must("rm", "--force", "--time", "0", "web", "db")
    podman.must("network", "rm", "net")


@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
def test_a_container_of_scrun_s_own(place: str, make_site: MakeSite) -> None:
    """With a limit, which cgroups of version 1 kept; and exec."""
    site = make_site(place)
    config = site.config("sh", "-c", "echo up; sleep 1000")
    config["linux"]["resources"] = {"memory": {"limit": 64 << 20}}
    life = site.life(config=config).created().start().says("up")
    assert site.must("exec", life.id, "echo", "in it") == "in it\n"
    life.delete()


def test_in_a_pool(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "shim"\n')
    site.must("pool", "start", "mine")
    life = site.shell("echo up", environment={"SCRUN_POOL": "mine"}).created().start().says("up")
    assert life.wait() == 0
    life.delete()
    site.must("pool", "stop", "mine")
