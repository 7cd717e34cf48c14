from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file.load import Settings, Slurm
from scrun.settings.slurm_conf import find_slurm_conf, logical_lines, read_slurm_conf


def test_find(tmp_path: Path) -> None:
    here = tmp_path / "slurm.conf"
    here.touch()
    places = (str(tmp_path / "none"), str(here))
    assert find_slurm_conf(Settings(), places) == str(here)
    assert find_slurm_conf(Settings(), places[:1]) is None
    assert find_slurm_conf(Settings(slurm=Slurm(conf="/named")), places) == "/named"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a=1", [(1, "a=1")]),
        ("a=1 # no\nb=2", [(1, "a=1 "), (2, "b=2")]),
        ("a=x\\#y", [(1, "a=x#y")]),
        ("a=\\\\#y", [(1, "a=\\")]),
        ("a=1 \\\n b=2 \\  \n c=3\nd", [(1, "a=1  b=2  c=3"), (4, "d")]),
        ("a\\\\\nb", [(1, "a\\"), (2, "b")]),
        ("a \\ # gone\nb", [(1, "a b")]),
    ],
)
def test_logical_lines(text: str, lines: list[tuple[int, str]]) -> None:
    assert list(logical_lines(text)) == lines


def test_read(tmp_path: Path) -> None:
    (tmp_path / "extra-c1.conf").write_text('SlurmdSpoolDir = "/var/a b"\n')
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=c1 SlurmctldPort=1\nInclude extra-%c.conf\n"
        "NodeName=n1 \\\n  CPUs=4 Port=7\nPartitionName=p Default=YES\n"
        "ClusterName=c2\nSchedulerParameters+=x\n"
    )
    assert read_slurm_conf(str(tmp_path / "slurm.conf")) == {
        "clustername": "c2",
        "slurmctldport": "1",
        "slurmdspooldir": "/var/a b",
        "schedulerparameters": "x",
    }


def test_not_readable(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file"):
        read_slurm_conf(str(tmp_path / "none"))
    loop = tmp_path / "loop"
    loop.write_text("Include loop\n")
    with pytest.raises(SettingsError, match="levels"):
        read_slurm_conf(str(loop))
