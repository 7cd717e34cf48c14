"""What only the nodes have: they decide about it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.site import Site

pytestmark = pytest.mark.covers("promise that the node decides about what is the node's")


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site("slurm-user")


@pytest.fixture
def only_there(site: Site) -> Iterator[Path]:
    """A directory with a file and a program, in the mount namespaces of the nodes only."""
    place = site.base / "only"
    place.mkdir()
    run = Path(cluster.slurm_conf()).parents[1] / "run"
    nodes = [file.read_text().strip() for file in run.glob("slurmd-*.pid")]
    data = place / "data"
    script = f"mount -t tmpfs none {place} && mkdir -m 755 {data} && echo read >{data}/f"
    script += f" && cp /bin/busybox {data}/busybox"
    try:
        for node in nodes:
            cluster.slurm("nsenter", "--mount", "--target", node, "sh", "-c", script)
        assert not data.exists()
        yield data
    finally:
        for node in nodes:
            cluster.slurm("nsenter", "--mount", "--target", node, "umount", str(place))


def with_mount(site: Site, source: Path, *command: str) -> Life:
    config = site.config(*command)
    mount = {"destination": "/p", "type": "bind", "source": str(source), "options": ["rbind"]}
    config["mounts"].append(mount)
    return site.life(config=config)


@pytest.mark.parametrize("program", ["cat", "/p/busybox"])
def test_the_source_of_a_mount(site: Site, only_there: Path, program: str) -> None:
    words = (program, "/p/f") if program == "cat" else (program, "cat", "/p/f")
    life = with_mount(site, only_there, *words).created(60).start(60)
    life.ends(0, 60, says="read\n")


def test_for_an_image(site: Site, only_there: Path) -> None:
    words = ("run", "--mount", f"{only_there}:/p", str(site.rootfs), "cat", "/p/f")
    assert site.must(*words, timeout=60) == "read\n"


def test_the_node_lacks_it(make_site: MakeSite) -> None:
    """The message says what, and where."""
    with cluster.without_oci_conf():
        site = make_site("slurm-user", settings='idle_timeout = 20\n[slurm]\nlaunch = "shim"\n')
        life = with_mount(site, Path("/nowhere/at/all"), "true")
        assert "there is no /nowhere/at/all on the node node" in life.refused(60)
