"""An engine reads oci.conf once: after a change of the file there is another engine."""

import os
from pathlib import Path

import msgspec
import pytest

from scrun.settings.file.load import Local, Settings, Slurm
from scrun.supervisor.engines.local import plugin as local
from scrun.supervisor.engines.slurm import plugin as slurm


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder with a slurm.conf, programs and an oci.conf."""
    for name in ("salloc", "srun", "scancel", "squeue"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "slurm.conf").touch()
    (tmp_path / "oci.conf").write_text('RunTimeRun="a"\n')
    return tmp_path / "oci.conf"


@pytest.mark.covers("oci.conf is read again when it has changed")
@pytest.mark.parametrize("engine", ["local", "slurm"])
def test_it_is_read_again_when_it_has_changed(conf: Path, engine: str) -> None:
    folder = str(conf.parent)
    settings = msgspec.structs.replace(
        Settings(),
        engine=engine,
        local=Local(oci_conf=str(conf)),
        slurm=Slurm(conf=f"{folder}/slurm.conf", bin=folder),
    )
    plugin = {"local": local, "slurm": slurm}[engine]
    environment = {"PATH": os.defpath}
    first = plugin.configure(settings, environment)
    assert plugin.configure(settings, environment) == first
    conf.write_text('RunTimeRun="another"\n')
    second = plugin.configure(settings, environment)
    assert second != first
    conf.unlink()
    assert plugin.configure(settings, environment) not in (first, second)
