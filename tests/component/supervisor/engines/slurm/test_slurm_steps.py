"""What srun is asked for a container's step, and how a signal gets to it; srun is a script."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from scrun.core.errors import EngineError
from scrun.model.states import Ending, exited
from scrun.settings.file.load import Log
from scrun.settings.oci_conf.commands import NodeRuntime
from scrun.settings.slurm.versions import SlurmVersion, features
from scrun.supervisor.children.node_scripts import NodeCommands
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.contracts.engine import JobRequest, Step
from scrun.supervisor.engines.slurm import signals
from scrun.supervisor.engines.slurm.allocation import Allocation
from scrun.supervisor.engines.slurm.job import JobParts, SrunJob
from scrun.supervisor.engines.slurm.layout import StepLayout
from scrun.supervisor.engines.slurm.signals import signal_container
from scrun.supervisor.engines.slurm.tools import Tools
from scrun.supervisor.log.journal import Journal
from tests.harness import users

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_SUBMIT_DIR": "/home/a",
    "SLURM_SUBMIT_HOST": "login",
    "SLURM_CLUSTER_NAME": "c",
    "SLURM_NTASKS": "9",
    "SLURM_JOB_PARTITION": "p",
    "SLURM_JOB_NAME": "mine",
    "SLURM_ARRAY_TASK_ID": "3",
    "SLURM_LABELIO": "1",
}
SETTING = ChildEnv({"PATH": users.PATH, "SRUN_PARTITION": "x", "SLURM_JOB_ID": "1"})


class Srun:
    """Scripts for srun and scancel, which tell how they were called."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tools = Tools(
            "salloc", (str(directory / "srun"),), str(directory / "scancel"), None, ()
        )
        self.journal = Journal(str(directory / "log"), Log(level="debug"), "c1")

    def does(self, script: str, tool: str = "srun") -> None:
        program = self.directory / tool
        program.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$@" >> {self.directory}/{tool}.argv\n'
            f"env >> {self.directory}/{tool}.env\n{script}\n"
        )
        program.chmod(0o755)

    def argv(self, tool: str = "srun") -> list[str]:
        path = self.directory / f"{tool}.argv"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def environment(self) -> dict[str, str]:
        lines = (self.directory / "srun.env").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines)

    async def run(self, layout: StepLayout) -> Ending:
        request = JobRequest(
            container="c1", child_env=SETTING, directory="/", record=str(self.directory),
            journal=self.journal, on_job_id=lambda *_: None, on_lost=lambda _: None,
        )  # fmt: skip
        parts = JobParts(
            self.tools, features(SlurmVersion(24, 11, 5)), NodeCommands(NodeRuntime()), request,
            Allocation("7", JOB), layout, [],
        )  # fmt: skip
        job = SrunJob(parts)
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            with trio.fail_after(20):
                return await job.run(
                    Step("/bundle", ["true"], (nothing,) * 3, False, "/bin/true", True, _nothing)
                )
        finally:
            os.close(nothing)


def _nothing() -> None:
    """Do nothing."""


@pytest.fixture
def srun(tmp_path: Path) -> Srun:
    made = Srun(tmp_path)
    made.does(
        "echo 'srun: launching StepId=7.0 on host n1, 1 tasks: 0' >&2\n"
        "echo 'srun: Node n1, 1 tasks started' >&2\n"
        "echo 'srun: Received task exit notification for 1 task of StepId=7.0 (status=0x0300).'"
        " >&2"
    )
    return made


@pytest.mark.parametrize(
    ("layout", "no_kill"),
    [(StepLayout(1, 1), False), (StepLayout(2, 2), True), (StepLayout(2, None), True)],
)
async def test_a_step_of_several_nodes_outlives_one(
    srun: Srun, layout: StepLayout, no_kill: bool
) -> None:
    assert await srun.run(layout) == exited(3)
    assert ("--no-kill" in srun.argv()) is no_kill


async def test_the_jobs_variables(srun: Srun) -> None:
    """A step has those of its job; how srun shall talk to the job's user is not for us."""
    await srun.run(StepLayout(2, 2))
    found = {name: text for name, text in srun.environment.items() if name.startswith("SLURM")}
    expected = {**JOB}
    del expected["SLURM_LABELIO"], expected["SLURM_JOB_ID"]  # for which there is --jobid
    expected |= {"SLURM_CONTAINER": "/bundle", "SLURM_CONTAINER_ID": "c1"}
    assert found == expected
    assert srun.argv()[:4] == ["-v", "--jobid", "7", "--job-name"]
    assert srun.argv()[4] == "mine"
    assert "SRUN_PARTITION" not in srun.environment


# Signals


async def kill(srun: Srun, pattern: str) -> None:
    with trio.fail_after(30):
        await signal_container(
            srun.tools, ChildEnv({"PATH": users.PATH}), NodeCommands(NodeRuntime(kill=pattern)),
            "7.0", {"n1": [0]}, signal.SIGUSR1,
        )  # fmt: skip


ON_THE_NODE = (  # runs what it is given on this machine
    'while [ "$1" != -- ]; do shift; done; shift; export SLURMD_NODENAME=n1; exec "$@"'
)


async def test_it_is_tried_again_on_the_node(srun: Srun) -> None:
    """The runtime does not know a container in its first moments."""
    tries = srun.directory / "tries"
    srun.does(ON_THE_NODE)
    srun.does("", "scancel")
    await kill(srun, f"echo x >>{tries}; test $(grep -c x {tries}) -ge 12 || exit 9; :")
    assert tries.read_text().count("x") == 12
    assert srun.argv("scancel") == []
    assert srun.argv().count("--") == 1  # one step for all tries


async def test_what_the_runtime_does_not_deliver_scancel_does(srun: Srun) -> None:
    tries = srun.directory / "tries"
    srun.does(ON_THE_NODE)
    srun.does("", "scancel")
    await kill(srun, f"echo x >>{tries}; false || exit 9; :")
    assert tries.read_text().count("x") == 30
    assert srun.argv("scancel") == ["--signal", "USR1", "7.0"]


def answers(lines: Sequence[str]) -> str:
    return "\n".join(f"echo '{line}' >&2" for line in lines)


@pytest.mark.parametrize(
    ("line", "delivered"),
    [
        ("scancel: error: Kill job error on job step id 7.0: Invalid job id specified", True),
        ("scancel: error: Kill job error on job step id 7.0: No error", True),
        ("scancel: error: Kill job error on job step id 7.0: Access/permission denied", False),
        ("scancel: error: site: Invalid job id specified, see wiki", False),
    ],
)
async def test_what_scancel_says_of_a_signal(srun: Srun, line: str, delivered: bool) -> None:
    srun.does("")
    srun.does(f"{answers([line])}\nexit 1", "scancel")
    if delivered:
        await kill(srun, "")
    else:
        with pytest.raises(EngineError, match="was not delivered"):
            await kill(srun, "")


async def test_a_step_that_is_not_made_is_not_waited_for_for_ever(
    srun: Srun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "_DEADLINE", 0.3)
    srun.does("exec sleep 600")
    with pytest.raises(EngineError, match="Slurm started no step for it"):
        await kill(srun, "true")
