"""The batch scripts of docs/howto/jobs.md, as they stand there."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from tests.harness import cluster
from tests.harness.pages import HOWTO, blocks
from tests.harness.reader import Reader, reading
from tests.harness.session import Step
from tests.harness.wait import wait_until

PAGE = HOWTO / "jobs.md"
IMAGES = ("docker://alpine", "docker://registry.site/train:3", "docker://registry.site/mpi:1")
SHELL = "#!/bin/sh\n"
COUNT = 'echo "$1: $(wc -l <"$1") of ${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"'
RANK = 'echo "rank $SLURM_PROCID of $SLURM_NTASKS on node $SLURM_NODEID"'
RANKS = [f"rank {rank} of 4 on node {rank // 2}" for rank in range(4)]
SERVE = "rm -f asked; mkfifo asked; echo answer >asked; sleep 60"
TRAIN = """\
if [ -e state ]; then echo "goes on at $(cat state)"; exit; fi
trap 'echo 7 >state; echo saved; exit 99' USR1
echo begins
sleep 200 & while ! wait $!; do :; done
"""
RESUME = """\
if [ -e state ]; then echo "goes on at $(cat state)"; exit; fi
trap 'echo 7 >state; exit 1' TERM
echo begins
sleep 200 & while ! wait $!; do :; done
"""


@dataclass(frozen=True)
class Case:
    """What a script has, and does.

    Attributes:
        programs: The user's own, by their names.
        says: What is written, in any order; `JOB` stands for the job's number.
        during: What happens while it runs.
        options: Of sbatch, which come before those of the script.
    """

    says: list[str]
    programs: Mapping[str, str]
    during: Callable[[str, Callable[[], str]], None] = lambda job, said: None
    options: list[str] = field(default_factory=list)


def requeue(job: str, said: Callable[[], str]) -> None:
    wait_until("it has begun", lambda: "begins" in said(), 40)
    cluster.slurm("scontrol", "requeue", job)


CASES = {
    "files": Case([f"{x}.txt: {n} of JOB" for n, x in enumerate("abc", 1)], {"count": COUNT}),
    "ranks": Case(RANKS, {"solve": RANK}),
    "torch": Case(
        [
            f"node {node}: --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d --rdzv-id=JOB "
            "--rdzv-endpoint=node1:29500 train.py"
            for node in range(2)
        ],
        {},
    ),
    "gpus": Case([f"GPU {n}" for n in range(4)], {"infer": 'echo "GPU $CUDA_VISIBLE_DEVICES"'}),
    # the signal is 300 seconds before the limit of five minutes: soon
    "checkpoint": Case(
        ["begins", "saved", "goes on at 7"], {"train": TRAIN}, options=["--time=5"]
    ),
    "again": Case(["run 0", "begins", "run 1", "goes on at 7"], {"resume": RESUME}, requeue),
    "beside": Case([f"{x}.txt: {n} of JOB" for n, x in enumerate("ab", 1)], {"count": COUNT}),
    "service": Case(
        ["answer"], {"serve": SERVE, "ready": "test -p asked", "query": "cat asked"}
    ),
    "podman": Case(
        ["a.txt: 1 of JOB", *(f"rank {n} of 2 on node {n}" for n in range(2))],
        {"count": COUNT, "rank": RANK},
    ),
}  # fmt: skip
GPUS = ("torch", "gpus")


def scripts() -> dict[str, str]:
    found = {}
    for block in blocks(PAGE):
        name = re.search(r"^#SBATCH --job-name=(\S+)", block.text, re.MULTILINE)
        assert name, block.text
        found[name[1]] = block.text
    return found


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with reading() as reader:
        for number, name in enumerate("abc", 1):
            reader.write(f"{name}.txt", "line\n" * number)
        reader.write("files.txt", "a.txt\nb.txt\nc.txt\n")
        pulls = [Step(f"scrun image pull {image}") for image in IMAGES]
        reader.session([*pulls, Step("podman pull alpine")], reader.site.user)
        yield reader


@pytest.fixture(scope="module")
def reader_with_gpus(reader: Reader) -> Iterator[Reader]:
    with cluster.with_gpus(4):
        yield reader


def run_to_its_end(reader: Reader, name: str, case: Case) -> list[str]:
    """Submit a script; return the lines that it has written."""
    (state := reader.home / "state").unlink(missing_ok=True)
    for program, text in case.programs.items():
        reader.write(program, SHELL + text + "\n", 0o755)
    reader.write(f"{name}.sh", scripts()[name])
    folder = reader.home / f"said-{name}"
    folder.mkdir(mode=0o777)
    reader.site.user.give(folder)
    job = reader.must(
        "sbatch", "--parsable", f"--output={folder}/%a", *case.options, f"{name}.sh"
    ).strip()

    def said() -> str:
        return "".join(path.read_text() for path in folder.iterdir())

    hurried = 0.0

    def is_over() -> bool:
        nonlocal hurried
        rows = cluster.slurm("squeue", "-h", "-j", job, "-o", "%T %r").splitlines()
        if "PENDING BeginTime" in rows and time.monotonic() > hurried + 2:  # it is requeued
            cluster.slurm("scontrol", "update", f"JobId={job}", "StartTime=now")
            hurried = time.monotonic()
        return all(row.split()[0] in ("COMPLETED", "FAILED") for row in rows)

    try:
        case.during(job, said)
        wait_until(f"{name} is over", is_over, 100)
        assert cluster.job(job)["JobState"] == "COMPLETED", said()
    finally:
        cluster.slurm("scancel", job)
        state.unlink(missing_ok=True)
    return [line.replace(job, "JOB") for line in said().splitlines() if "***" not in line]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", [name for name in CASES if name not in GPUS])
def test_a_script(reader: Reader, name: str) -> None:
    assert sorted(run_to_its_end(reader, name, CASES[name])) == sorted(CASES[name].says)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", GPUS)
def test_a_script_for_gpus(reader_with_gpus: Reader, name: str) -> None:
    said = run_to_its_end(reader_with_gpus, name, CASES[name])
    assert sorted(said) == sorted(CASES[name].says)


def test_every_script_is_run() -> None:
    assert {*scripts()} == {*CASES}
