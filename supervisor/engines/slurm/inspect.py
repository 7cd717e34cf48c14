"""Questions to the nodes about a container: a small step beside it, and what that prints."""

import shlex
from collections.abc import Mapping, Sequence

import trio

from scrun.errors import EngineError
from supervisor.engines.base import Answer
from supervisor.engines.slurm.tools import Tools
from supervisor.processes import Setting, child
from supervisor.pumps import messages

_DEADLINE = 20.0


async def inspect(
    tools: Tools, setting: Setting, job_id: str, scripts: Mapping[str, Sequence[str]]
) -> list[Answer]:
    """Run shell scripts on nodes of a job, one after the other on each node.

    Args:
        tools: Slurm's tools.
        setting: Their surroundings.
        job_id: The job.
        scripts: By node.

    Returns:
        The answers, in the order of the scripts.

    Raises:
        EngineError: Slurm makes no step, or a script does not end.
    """
    count = len(scripts)
    words = [tools.srun, "--jobid", job_id, "--overlap", "--export=NONE", "--label"]
    words += [f"--nodes={count}", f"--ntasks={count}", "--nodelist", ",".join(scripts)]
    words += ["--mem=0", "--chdir=/", "--input=none", "--job-name=scrun-inspect"]
    words += ["--", "/bin/sh", "-c", _script(scripts)]
    lines: list[str] = []
    said: list[str] = []
    with trio.move_on_after(_DEADLINE) as patience:
        async with (
            messages(lines.append) as stdout,
            messages(said.append) as stderr,
            child(words, setting, stdout=stdout, stderr=stderr) as srun,
        ):
            status = await srun.wait()
    if patience.cancelled_caught:
        raise EngineError(f"job {job_id}: no answer from its nodes within {_DEADLINE:g} s")
    found = read_answers(lines)
    if len(found) != sum(map(len, scripts.values())):
        reason = said[-1].removeprefix("srun: error: ") if said else f"srun ended with {status}"
        raise EngineError(f"job {job_id}: its nodes cannot be asked: {reason}")
    return sorted(found, key=lambda answer: list(scripts).index(answer.node))


_BEGIN, _END = "\x01begin ", "\x01end "


def _script(scripts: Mapping[str, Sequence[str]]) -> str:
    """Write the script that finds out on which node it is, and marks what each one prints."""
    cases = ""
    for node, all_of_it in scripts.items():
        runs = "\n".join(
            f"printf '{_BEGIN}%s\\n' {shlex.quote(node)}\n/bin/sh -c {shlex.quote(script)} 2>&1\n"
            f"printf '\\n{_END}%s\\n' $?"
            for script in all_of_it
        )
        cases += f"{shlex.quote(node)}) {runs} ;;\n"
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin; export PATH\n"
    return f"{path}case $SLURMD_NODENAME in\n{cases}esac\n"


def read_answers(lines: Sequence[str]) -> list[Answer]:
    r"""Put together what srun's tasks have printed with `--label`: `0: …`, mixed with others'."""
    answers: list[Answer] = []
    open_ones: dict[str, tuple[str, list[str]]] = {}
    for line in lines:
        label, _, text = line.partition(": ")
        label = label.strip()
        if text.startswith(_BEGIN):
            open_ones[label] = (text.removeprefix(_BEGIN), [])
        elif text.startswith(_END) and label in open_ones:
            node, content = open_ones.pop(label)
            if content and not content[-1]:
                content.pop()  # of the newline before the mark
            status = int(text.removeprefix(_END) or 1)
            answers.append(Answer(node, status, "".join(f"{part}\n" for part in content)))
        elif label in open_ones:
            open_ones[label][1].append(text)
    return answers
