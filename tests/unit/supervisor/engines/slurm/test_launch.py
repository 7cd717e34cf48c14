"""What decides how containers are launched, and how a shim may reach us."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from scrun.core.errors import EngineError, SettingsError
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.parse import parse_oci_conf
from scrun.settings.slurm.requests import Release
from scrun.supervisor.engines.slurm.engine import SlurmConfiguration, SlurmEngine
from scrun.supervisor.engines.slurm.job import SrunJob
from scrun.supervisor.engines.slurm.launching import Launch, Launching
from scrun.supervisor.engines.slurm.shim_site import HAS_OCI_CONF, SiteConfs
from scrun.supervisor.engines.slurm.shim_step import ShimStep
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.nodes.beginning import Direct
from scrun.supervisor.nodes.link import Sealing
from scrun.supervisor.wire.processor import has_gmac
from tests.harness.peer import Said

OCI_CONF = (
    'RunTimeQuery="crun state %n"\nRunTimeKill="crun kill %n"\n'
    'RunTimeDelete="crun delete %n"\nRunTimeRun="crun run %n"\n'
)


def engine(conf: Path) -> SlurmEngine:
    tools = Tools("/bin/salloc", ("/bin/true",), "/bin/scancel", str(conf), ())
    allowed, runtime = frozenset[str](), RuntimeSettings()
    return SlurmEngine(SlurmConfiguration(tools, 1, (), (), (), allowed, runtime, "auto"))


@pytest.mark.parametrize(
    ("text", "direct"),
    [
        ("", Direct(True, None)),
        ("SrunPortRange=60001-60100\n", Direct(True, "60001-60100")),
        ("TLSType=tls/none\n", Direct(True, None)),
        ("TLSType=tls/s2n\n", Direct(False, None)),
    ],
)
def test_where_a_shim_may_connect(tmp_path: Path, text: str, direct: Direct) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text(f"ClusterName=c\n{text}")
    assert engine(conf)._direct() == direct._replace(sealing=Sealing(gmac=has_gmac()))


class Node:
    """A job on some nodes, as far as it matters here.

    Attributes:
        environment: Its SLURM_* variables.
        is_lacking: Whether its node lacks what a shim needs.
        is_unreached, is_gathered: It can connect to us, and serves one task.
        scripts: What the nodes were asked.
        waits: How often its shim was waited for.
    """

    is_unreached = is_gathered = False

    def __init__(
        self, nodes: str = "n1", error: str = "", *answers: str, is_lacking: bool = False
    ) -> None:
        self.environment = {"SLURM_JOB_NODELIST": nodes}
        self.is_lacking = is_lacking
        self.scripts: list[str] = []
        self.waits = 0
        self._error = error
        self._answers = list(answers)

    async def ranks(self) -> None:
        self.waits += 1
        if self._error:
            raise EngineError(self._error)

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        self.scripts.append(script(0))
        return self._answers


def launching(launch: Launch = "auto", oci_conf: str | None = OCI_CONF) -> Launching:
    conf = None if oci_conf is None else parse_oci_conf(oci_conf, "oci.conf")
    here = None if oci_conf is None else oci_conf.encode()
    return Launching(launch, SiteConfs(here, conf, RuntimeSettings()))


async def lack(ways: Launching, node: Node) -> str:
    return await ways.lack(node.environment, cast("ShimStep", node))


async def test_the_first_shim_on_some_nodes_is_waited_for() -> None:
    ways = launching()
    first, second, other = Node(), Node(), Node("n[2-3]")
    for node in (first, second, other):
        assert await lack(ways, node) == ""
    assert (first.waits, second.waits, other.waits) == (1, 0, 1)


async def test_a_failure_that_passes_is_an_error_and_decides_nothing() -> None:
    """Slurm's or the runtime's, not what a node lacks: then srun --container would fail, too."""
    ways = launching()
    for _ in range(2):
        with pytest.raises(EngineError, match=r"^srun: Unable to create step$"):
            await lack(ways, Node("n1", "srun: Unable to create step"))
    assert ways.known_lack(Node().environment) == ""
    assert await lack(ways, Node()) == ""


@pytest.mark.parametrize(
    ("said", "is_known"),
    [
        ("the shim could not be started: there is no Python on this node", True),
        ("scrun needs Python 3.6 or newer on the node, this is 3.5", True),
        ("n1: no OCI runtime (crun or runc) works there", False),
        ("Traceback; MemoryError", False),
    ],
)
async def test_what_a_node_lacks(said: str, is_known: bool) -> None:
    """Only a Python that is missing is remembered: the rest may be different next time."""
    ways = launching()
    assert await lack(ways, Node("n1", said, is_lacking=True)) == said
    assert ways.known_lack(Node("n1").environment) == (said if is_known else "")
    assert ways.known_lack(Node("n2").environment) == ""
    assert ways.known_lack({}) == ""


async def test_a_shim_that_is_asked_for_is_not_waited_for() -> None:
    ways, node = launching("shim"), Node("n1", "there is no Python on this node", is_lacking=True)
    assert await lack(ways, node) == ""
    assert node.waits == 0


async def fall_back(ways: Launching, node: Node, mpi: str = "") -> str:
    said, wanted = Said(), {"SCRUN_MPI_TYPE": mpi}
    await ways.fall_back(cast("SrunJob", node), said.journal, wanted, (22, 5), "no Python")
    [(_, text)] = said.lines
    return text


async def test_without_a_shim_there_has_to_be_an_oci_conf() -> None:
    """Else slurmstepd would run the program without a container; the shim's words say why."""
    has, has_not = Node("n", "", ".\n", ".\n"), Node("n", "", ".\n", "none\n.\n")
    said = await fall_back(launching(oci_conf=None), has)
    assert said == "no Python: launched by srun --container"
    assert has.scripts == [HAS_OCI_CONF]
    with pytest.raises(EngineError, match=r"^no Python; srun --container would need an oci\.conf"):
        await fall_back(launching(oci_conf=None), has_not)
    await fall_back(launching(), has_not)
    assert len(has_not.scripts) == 1


async def test_what_neither_can_do() -> None:
    said = "cannot work: no Python; srun --container of Slurm 22.05 passes nothing of it on: leave"
    with pytest.raises(SettingsError, match=said):
        await fall_back(launching(), Node(), "pmix")


@pytest.mark.parametrize(
    ("launch", "oci_conf", "version", "said"),
    [
        ("auto", OCI_CONF, (24, 11), "the commands of the oci.conf do not pass its descriptor"),
        ("shim", OCI_CONF, (22, 5), "the commands of the oci.conf do not pass its descriptor"),
        ("container", OCI_CONF, (24, 11), "srun --container of Slurm 24.11 does not pass"),
        ("auto", None, (22, 5), ""),  # PMI's descriptor is the runtime's
    ],
)
def test_mpi_before_a_job_is_asked_for(
    launch: Launch, oci_conf: str | None, version: Release, said: str
) -> None:
    ways = launching(launch, oci_conf)
    asked = ({"SCRUN_MPI_TYPE": "pmi2"}, ["--mpi=pmi2"], version)
    if not said:
        ways.check(*asked)
        return
    with pytest.raises(SettingsError, match=f"^SCRUN_MPI_TYPE=pmi2: cannot work: {said}"):
        ways.check(*asked)


@pytest.mark.parametrize("there", [False, True])
def test_how_a_node_is_asked_for_one(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "oci.conf").touch(mode=0o000)
    environment = {"SLURM_CONF": f"{tmp_path}/slurm.conf"}
    done = subprocess.run(
        ["/bin/sh", "-c", HAS_OCI_CONF], env=environment, check=True, capture_output=True
    )
    assert done.stdout == (b".\n" if there else b"none\n.\n")
