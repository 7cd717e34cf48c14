"""What decides how containers are launched, and how a shim may reach us."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from scrun.core.errors import EngineError
from scrun.settings.file.load import RuntimeSettings
from scrun.supervisor.engines.slurm.engine import HAS_OCI_CONF, Launch, SlurmEngine
from scrun.supervisor.engines.slurm.job import SlurmJob
from scrun.supervisor.engines.slurm.shim_step import Direct
from scrun.supervisor.engines.slurm.tools import Tools

OCI_CONF = (
    'RunTimeQuery="crun state %n"\nRunTimeKill="crun kill %n"\n'
    'RunTimeDelete="crun delete %n"\nRunTimeRun="crun run %n"\n'
)


def engine(conf: Path, launch: Launch = "auto") -> SlurmEngine:
    tools = Tools("/bin/salloc", ("/bin/true",), "/bin/scancel", str(conf), ())
    return SlurmEngine(
        tools, release_timeout=1, give_up=(), host_only=(), defaults={}, allowed=(),
        runtime=RuntimeSettings(), launch=launch,
    )  # fmt: skip


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
    assert engine(conf)._direct() == direct


class Node:
    """A job whose node has an oci.conf, or none."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.scripts: list[str] = []

    async def ask(self, script: Callable[[int], str]) -> list[str]:
        self.scripts.append(script(0))
        return self.answers


async def test_without_a_shim_there_has_to_be_an_oci_conf(tmp_path: Path) -> None:
    """Else slurmstepd would run the program without a container; the shim's words say why."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\n")
    has, has_not = Node(".\n", ".\n"), Node(".\n", "none\n.\n")
    await engine(conf)._check_nodes(cast("SlurmJob", has), "no Python")
    assert has.scripts == [HAS_OCI_CONF]
    with pytest.raises(EngineError, match=r"^no Python; srun --container would need an oci\.conf"):
        await engine(conf)._check_nodes(cast("SlurmJob", has_not), "no Python")
    (tmp_path / "oci.conf").write_text(OCI_CONF)
    await engine(conf)._check_nodes(cast("SlurmJob", has_not), "no Python")
    assert len(has_not.scripts) == 1


@pytest.mark.parametrize("there", [False, True])
def test_how_a_node_is_asked_for_one(tmp_path: Path, there: bool) -> None:
    if there:
        (tmp_path / "oci.conf").touch(mode=0o000)
    environment = {"SLURM_CONF": f"{tmp_path}/slurm.conf"}
    done = subprocess.run(
        ["/bin/sh", "-c", HAS_OCI_CONF], env=environment, check=True, capture_output=True
    )
    assert done.stdout == (b".\n" if there else b"none\n.\n")


@pytest.mark.parametrize(
    ("asked", "oci_conf", "launch"),
    [
        ("auto", None, "auto"),
        ("auto", OCI_CONF, "container"),
        ("auto", "Fancy=1\n", "container"),
        ("shim", OCI_CONF, "shim"),
        ("container", None, "container"),
    ],
)
def test_an_oci_conf_decides(
    tmp_path: Path, asked: Launch, oci_conf: str | None, launch: Launch
) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\n")
    if oci_conf is not None:
        (tmp_path / "oci.conf").write_text(oci_conf)
    assert engine(conf, asked)._launch == launch
