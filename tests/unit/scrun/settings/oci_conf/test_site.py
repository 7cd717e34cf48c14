"""What a site's oci.conf says to scrun itself: its srun, and the levels of its messages."""

from pathlib import Path

import msgspec
import pytest

from scrun.core.errors import EngineUnavailable, SettingsError
from scrun.settings.file.load import Local, Log, Settings, Slurm
from scrun.settings.oci_conf.parse import OciConf, beside, site_conf, with_site_levels
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.engines.slurm.tools import Tools

RUN = 'RunTimeRun="exec crun run -b %b"\nRunTimeKill="k"\nRunTimeDelete="d"\n'
LEVELS = "StdIODebug=verbose\nFileDebug=debug2\nSyslogDebug=error\n"
TOOLS = Tools("/bin/salloc", ("/bin/sh",), "/bin/scancel", "/etc/s.conf", ())


def test_beside_slurm_conf() -> None:
    assert beside("/x/slurm.conf") == "/x/oci.conf"
    assert beside(None) == "/etc/slurm/oci.conf"


def test_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert site_conf(str(tmp_path / "oci.conf"), None) is None
    (tmp_path / "oci.conf").write_text("Fancy=1\n")
    with pytest.raises(SettingsError, match=r"oci\.conf:1: Fancy: unknown key"):
        site_conf(str(tmp_path / "oci.conf"), None)


@pytest.mark.covers("oci.conf FileDebug", "oci.conf SyslogDebug")
@pytest.mark.parametrize("engine", ["slurm", "auto", "local"])
def test_levels_where_nobody_has_set_others(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "oci.conf"
    path.write_text(RUN + LEVELS)
    settings = msgspec.convert(
        {
            "engine": engine,
            "slurm": {"conf": f"{tmp_path}/slurm.conf"},
            "local": {"oci_conf": str(path)},
        },
        Settings,
    )
    log = with_site_levels(settings).log
    assert (log.stderr_level, log.file_level, log.syslog_level) == ("verbose", "debug2", "error")
    own = msgspec.structs.replace(settings, log=Log(stderr_level="info", file_level="fatal"))
    log = with_site_levels(own).log
    assert (log.stderr_level, log.file_level, log.syslog_level) == ("info", "fatal", "error")
    path.write_text(RUN)  # read again when it has changed
    assert with_site_levels(settings) == settings


@pytest.mark.parametrize("text", [None, "Fancy=1\n" + LEVELS])
def test_levels_of_no_oci_conf(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "oci.conf").write_text(text)
    by_slurm = Settings(slurm=Slurm(conf=f"{tmp_path}/slurm.conf"))
    here = Settings(engine="local", local=Local())
    assert [with_site_levels(settings) for settings in (by_slurm, here)] == [by_slurm, here]


def test_srun_of_the_site() -> None:
    conf = OciConf(srun_path="/bin/true", srun_args=("--mpi=none", "-A x"), debug_flags="Steps")
    tools = TOOLS.of_site(conf)
    assert tools.srun == ("/bin/true", "--mpi=none", "-A x")
    setting = ChildEnv({"PATH": "/bin", "SLURM_DEBUG_FLAGS": "caller", "SLURM_X": "y"})
    assert tools.child_env(setting).environment == {
        "PATH": "/bin", "SLURM_CONF": "/etc/s.conf", "SLURM_DEBUG_FLAGS": "Steps",
    }  # fmt: skip
    assert TOOLS.of_site(OciConf()) == TOOLS


def test_srun_that_is_not_there() -> None:
    with pytest.raises(EngineUnavailable, match="SrunPath=/nowhere/srun: not an executable"):
        TOOLS.of_site(OciConf(srun_path="/nowhere/srun"))
