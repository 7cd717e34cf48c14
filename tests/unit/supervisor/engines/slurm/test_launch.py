"""What decides how containers are launched, and how a shim may reach us."""

from pathlib import Path

import pytest

from scrun.settings.file.load import RuntimeSettings
from scrun.supervisor.engines.slurm.engine import Launch, SlurmEngine
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
