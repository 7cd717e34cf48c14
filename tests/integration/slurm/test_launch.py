"""`launch = "auto"`, the default: a shim where the node has what that needs, else srun."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.life import Life
from tests.harness.site import Site
from tests.harness.versions import slurm_version
from tests.integration.slurm.test_shim_bad_cases import on_its_node, with_programs, with_srun

AUTO = 'idle_timeout = 20\n[slurm]\nlaunch = "auto"\n'
NODE = {"SCRUN_JOB_NODELIST": "node1"}


@pytest.fixture
def site(make_site: MakeSite) -> Iterator[Site]:
    made = make_site("slurm-user", settings=AUTO)
    yield made
    made.settle(20)


def launch_of(life: Life) -> str:
    launch: str = life.state()["annotations"]["org.scrun.launch"]
    return launch


def log_of(life: Life) -> str:
    return life.site.must("logs", "--messages", life.id)


@pytest.mark.oci_conf
def test_a_shim_runs_the_commands_of_the_site(site: Site) -> None:
    life = site.shell("echo up").created()
    assert launch_of(life) == "shim"
    assert f", with the commands of {cluster.oci_conf()}" in log_of(life)
    life.start().ends(says="up\n")


@pytest.mark.oci_conf
def test_a_node_without_a_python_that_will_do(site: Site) -> None:
    """The log says why, each time; that it is too old is found out once."""
    old = f"exec {sys.executable} -I -S -c 'import sys; sys.version_info = (3, 5, 2)"
    environment = NODE | with_programs(site, python3=f'{old}; exec(sys.argv[-1])\' "$@"')
    for steps in (2, 1):
        life = site.shell("echo $SLURM_STEP_ID", environment=environment).created()
        said = "scrun needs Python 3.6 or newer on the node, this is 3.5: launched by srun --con"
        assert said in log_of(life)
        assert launch_of(life) == "container"
        life.start().ends(says=f"{steps - 1}\n")


def test_a_failure_that_passes(make_site: MakeSite) -> None:
    """Not what the node lacks: an error, and the next container has its shim."""
    site = make_site("slurm-user", settings=AUTO)
    failed = site.base / "l" / "failed"
    said = "srun: error: Unable to create step for job 1: Error generating job credential"
    with_srun(
        site,
        f"#!/bin/sh\nif mkdir {failed} 2>/dev/null; then echo '{said}' >&2; exit 1; fi\n"
        f'exec {shutil.which("srun")} "$@"\n',
    )
    assert "Error generating job credential" in site.life("true").refused()
    assert failed.exists()
    life = site.life("true").created()
    assert launch_of(life) == "shim"
    life.start().ends()
    site.settle(20)


@pytest.fixture
def of_root() -> Iterator[Path]:
    """A directory that only root may write to."""
    path = Path(tempfile.mkdtemp(prefix="oci-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.mark.oci_conf
def test_a_directory_for_steps_that_is_roots(site: Site, of_root: Path) -> None:
    """oci.conf(5): ContainerPath. slurmstepd makes it as root, a shim is the user's."""
    text = f"ContainerPath={of_root}/%u\n{cluster.oci_conf().read_text()}"
    with cluster.with_oci_conf(text):
        life = site.shell("echo up").created()
        assert f"{of_root}: Permission denied; set ContainerPath" in log_of(life)
        assert launch_of(life) == "container"
        assert life.start().wait() == 0, life.errors()
        life.delete()


def test_neither_an_oci_conf_nor_a_runtime(site: Site) -> None:
    """The shim says that itself; no step asks the node once more."""
    with cluster.without_oci_conf():
        environment = with_programs(site, crun="exit 1", runc="exit 1")
        said = site.life("true", environment=environment).refused()
    assert said.endswith("no OCI runtime (crun or runc) works there\n")


def test_neither_an_oci_conf_nor_python(site: Site) -> None:
    with cluster.without_oci_conf():
        environment = on_its_node(site, "echo export PATH=/nothing")
        said = site.life("true", environment=environment).refused()
    assert "there is no Python on this node; srun --container would need an oci.conf on" in said


def test_srun_without_an_oci_conf(make_site: MakeSite) -> None:
    """slurmstepd of 22.05 would run the program on the node, in no container."""
    site = make_site("slurm-user", settings='[slurm]\nlaunch = "container"\n')
    with cluster.without_oci_conf():
        said = site.shell("echo up").refused()
    assert 'launch = "container" needs an oci.conf on the nodes' in said
    site.settle(20)


_RUNC = """RunTimeQuery="runc --root=/tmp/%U state %j.%s.%t"
RunTimeKill="runc --root=/tmp/%U kill %j.%s.%t TERM"
RunTimeDelete="runc --root=/tmp/%U delete --force %j.%s.%t"
RunTimeRun="exec runc --root=/tmp/%U run --bundle=%b %j.%s.%t"
"""


@pytest.mark.oci_conf
def test_runc_where_slurm_gives_it_a_link(make_site: MakeSite) -> None:
    """22.05 does; each container ended with 1."""
    settings = 'idle_timeout = 20\n[slurm]\nlaunch = "container"\n'
    with cluster.with_oci_conf(_RUNC):
        site = make_site("slurm-user", settings=settings)
        if slurm_version().forces_rootfs:
            said = site.life("true").refused()
            assert "a link to it, which runc refuses: name crun in oci.conf" in said
            assert site.jobs() == []
        else:
            site.life("true").created().delete()
        site.settle(20)
