"""Which scripts of plugstack.conf are found for a container, and whose they may be."""

import os
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file.load import Settings, Slurm
from scrun.supervisor.scripts.spank import around


def test_slurm_conf_is_read_only_to_know_whom_else_to_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have hundreds of lines, and each container asks."""
    asked: list[str | None] = []

    def slurm_user(conf: str | None) -> tuple[int, ...]:
        asked.append(conf)
        return (os.geteuid(),)

    monkeypatch.setattr(around, "slurm_user", slurm_user)
    conf, stack, script = (tmp_path / name for name in ("slurm.conf", "plugstack.conf", "a.lua"))
    conf.write_text("ClusterName=c\n")
    script.write_text("")
    stack.write_text(f"required lua.so {script}\n")
    settings = Settings(slurm=Slurm(conf=str(conf)))
    source, [found] = around.find(settings)
    assert (source, found.path, asked) == (str(stack), str(script), [])
    script.chmod(0o666)
    with pytest.raises(SettingsError, match=r"a\.lua"):
        around.find(settings)
    assert asked == [str(conf)]
