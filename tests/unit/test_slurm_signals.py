"""The command by which the runtime on a node signals a container."""

from pathlib import Path

import pytest

from scrun.errors import SettingsError
from supervisor.engines.slurm.signals import KillCommand, first_node, read_kill_command


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[3-5,9],other", "node3"),
        ("rack1-node[07,09]", "rack1-node07"),
        ("n[1-2]", "n1"),
    ],
)
def test_first_node(listed: str, first: str) -> None:
    assert first_node({"SLURM_JOB_NODELIST": listed}) == first


@pytest.mark.parametrize(
    ("line", "pattern"),
    [
        ('RunTimeKill="crun kill %j.%s TERM"', "crun kill %j.%s"),
        ('RunTimeKill="runc --root=/x kill %u.%j SIGKILL"', "runc --root=/x kill %u.%j"),
        ('RunTimeKill="crun kill %j.%s 9"', "crun kill %j.%s"),
        ('RunTimeKill="crun kill %j.%s"', "crun kill %j.%s"),
    ],
)
def test_a_signal_at_the_end_is_ours_to_give(tmp_path: Path, line: str, pattern: str) -> None:
    rest = 'RunTimeQuery="x"\nRunTimeDelete="x"\nRunTimeRun="x"\n'
    (tmp_path / "oci.conf").write_text(f"{line}\n{rest}")
    assert read_kill_command(str(tmp_path / "slurm.conf")) == KillCommand(pattern)


@pytest.mark.parametrize("content", [None, "", "nonsense", "RunTimeRun=x\n", "\udcff"])
def test_no_command_where_none_is_known(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "oci.conf").write_bytes(content.encode(errors="surrogateescape"))
    assert read_kill_command(str(tmp_path / "slurm.conf")) is None


def test_filled_in() -> None:
    command = KillCommand("crun kill %j.%s.%t.%n").command("12.3", "node 1", 10)
    assert command == "crun kill 12.3.0.'node 1' USR1"


def test_what_only_the_node_knows_is_refused() -> None:
    with pytest.raises(SettingsError):
        KillCommand("crun kill --bundle %b").command("12.3", "node1", 10)
