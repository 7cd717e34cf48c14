"""The command by which the runtime on a node signals a container."""

import os
import pwd
import signal
import time
from pathlib import Path

import pytest

from scrun.core.errors import SettingsError
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.commands import NodeRuntime, node_runtime
from scrun.settings.oci_conf.parse import parse_oci_conf
from scrun.supervisor.children.node_scripts import NodeCommands
from scrun.supervisor.core import names
from scrun.supervisor.engines.slurm.signals import Running, kill_scripts
from tests.harness.program import output_of

ME = pwd.getpwuid(os.geteuid()).pw_name


def killing(pattern: str) -> NodeCommands:
    return NodeCommands(NodeRuntime(kill=pattern))


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ('RunTimeKill="crun kill %j.%s TERM"', "crun kill 7.0"),
        ('RunTimeKill="runc --root=/x kill %u.%j SIGKILL"', f"runc --root=/x kill {ME}.7"),
        ('RunTimeKill="crun kill %j.%s 9"', "crun kill 7.0"),
        ('RunTimeKill="crun kill %j.%s"', "crun kill 7.0"),
    ],
)
def test_a_signal_at_the_end_is_ours_to_give(line: str, command: str) -> None:
    rest = 'RunTimeQuery="x"\nRunTimeDelete="x"\nRunTimeRun="x"\n'
    conf = parse_oci_conf(f"{line}\n{rest}")
    found = NodeCommands(node_runtime(conf, RuntimeSettings()))
    names.learn()
    assert found.kill("7.0", "n", signal.SIGUSR1) == f"{command} USR1"


def test_filled_in() -> None:
    command = killing("crun kill %j.%s.%t.%n").kill("12.3", "node 1", 10)
    assert command == "crun kill 12.3.0.'node 1' USR1"


def test_filled_in_for_another_task_of_the_node() -> None:
    assert killing("crun kill %s.%t").kill("12.3", "node1", 10, 2) == "crun kill 3.2 USR1"


def only_script(kill: NodeCommands, running: Running, **tries: int) -> str:
    [(nodes, script)] = kill_scripts(kill, "12.3", running, 10, **tries)
    assert nodes == list(running)
    return script


def run(script: str, node: str) -> list[str]:
    """What a script says on a node, sorted."""
    said = output_of(
        ["/bin/sh", "-c", script],
        env={"PATH": "/usr/bin:/bin", "SLURMD_NODENAME": node},
    )
    return sorted(said.splitlines())


RUNNING = {"node1": [0], "node 2'": [0, 1, 3], "*": [7]}


def test_each_node_signals_its_own(tmp_path: Path) -> None:
    kill = killing(f"echo >>{tmp_path}/got kill %n %t")
    script = only_script(kill, RUNNING)
    for node, tasks in RUNNING.items():
        assert run(script, node) == ["delivered"] * len(tasks)
        lines = sorted((tmp_path / "got").read_text().splitlines())
        assert lines == [f"kill {node} {task} USR1" for task in tasks]
        (tmp_path / "got").unlink()
    assert run(script, "node9") == []


def test_it_is_tried_until_the_runtime_knows_the_container(tmp_path: Path) -> None:
    count = f"echo >>{tmp_path}/tries x; test $(wc -l <{tmp_path}/tries) -ge 3 || exit 9; : %t"
    assert run(only_script(killing(count), {"n": [0]}), "n") == ["delivered"]
    assert (tmp_path / "tries").read_text() == "x\n" * 3


def test_it_is_not_tried_for_ever() -> None:
    begun = time.monotonic()
    assert run(only_script(killing("false"), {"n": [0, 1]}, tries=3), "n") == []
    assert 0.2 < time.monotonic() - begun < 3


def test_a_large_step_fits_into_command_lines() -> None:
    kill = killing("/usr/local/bin/crun --root=/run/slurm-cluster/oci/%u kill %u.%j.%s.%t.%n")
    running = {f"a-long-name-of-a-node-{number:04}": [*range(8)] for number in range(1000)}
    parts = list(kill_scripts(kill, "1234567.0", running, 10))
    assert [node for nodes, _ in parts for node in nodes] == list(running)
    assert 1 < len(parts) < 20
    for nodes, script in parts:
        assert len(script) < 128 << 10
        assert script.count("try '") == 8 * len(nodes)


def test_no_script_where_nothing_runs() -> None:
    assert list(kill_scripts(killing("x"), "1.0", {}, 10)) == []


def test_what_only_the_node_knows_is_refused() -> None:
    with pytest.raises(SettingsError):
        killing("crun kill --bundle %b").kill("12.3", "node1", 10)
