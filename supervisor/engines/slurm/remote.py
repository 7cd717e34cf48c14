"""Runs scripts and programs on the nodes of a container, in small steps beside it."""

import base64
import re
import shlex
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import trio

from scrun.core.errors import EngineError
from scrun.oci.signals import its_end
from scrun.supervisor.children.processes import ChildEnv, child, shell_status
from scrun.supervisor.children.pumps import Output, heard, messages
from scrun.supervisor.contracts.engine import NodeAnswer
from scrun.supervisor.engines.slurm.grammar import Sentence, complaint, parse_line
from scrun.supervisor.engines.slurm.tools import Tools, for_a_command

_DEADLINE = 20.0
# The kernel allows a quarter of the stack limit, 2 MiB, for arguments and environment. The latter
# may be the larger part, and this share is enough for 300 nodes.
_COMMAND_LINE = 512 << 10
_GRACE = 0.5  # srun ends its step at once on SIGTERM
# with --chdir to a missing directory every task writes a message to its standard error
_THERE = 'cd "$1" 2>/dev/null; exec /bin/sh -c "$2"'


async def inspect(
    tools: Tools, child_env: ChildEnv, job_id: str, scripts: Mapping[str, Sequence[str]]
) -> list[NodeAnswer]:
    """Run shell scripts on the nodes of a job, one after the other on each node, in this order.

    Raises EngineError if Slurm starts no step, or a script does not end.
    """
    answers: list[NodeAnswer] = []
    for part in parts_of(scripts):
        answers += await _inspect(tools, child_env, job_id, part)
    return answers


def parts_of(scripts: Mapping[str, Sequence[str]]) -> list[dict[str, Sequence[str]]]:
    """Split scripts by node, so that each part fits in a command line (execve(2))."""
    parts: list[dict[str, Sequence[str]]] = []
    room = 0
    for node, its in scripts.items():
        size = sum(len(script) + len(node) + 18 for script in its)  # with both words' pointers
        if not parts or size > room:
            parts.append({})
            room = _COMMAND_LINE
        parts[-1][node] = its
        room -= size
    return parts


async def _inspect(
    tools: Tools, child_env: ChildEnv, job_id: str, scripts: Mapping[str, Sequence[str]]
) -> list[NodeAnswer]:
    count = len(scripts)
    words = [*tools.srun, "--jobid", job_id, "--overlap", "--export=NONE", "--label"]
    words += [f"--nodes={count}", f"--ntasks={count}", "--nodelist", ",".join(scripts)]
    words += ["--mem=0", "--chdir=/", "--input=none", "--job-name=scrun-inspect"]
    words += ["--", *_command(scripts)]
    output = Output()
    errors: deque[str] = deque(maxlen=1)
    with trio.move_on_after(_DEADLINE) as patience:
        status = await heard(words, child_env, errors.append, output.take)
    if patience.cancelled_caught:
        raise EngineError(f"job {job_id}: no answer from its nodes within {_DEADLINE:g} s")
    found = read_answers(output.lines)
    if len(found) != sum(map(len, scripts.values())):
        reason = errors[-1].removeprefix("srun: error: ") if errors else f"srun {its_end(status)}"
        raise EngineError(f"job {job_id}: its nodes did not answer: {reason}")
    order = {node: index for index, node in enumerate(scripts)}
    return sorted(found, key=lambda answer: order.get(answer.node, len(order)))


# A script's output contains names that the container's processes choose. So it is sent as base64,
# in which no byte of theirs can pass for a mark, a label or the status.
_SCRIPT = """\
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
while [ $# -gt 1 ]; do
    if [ "$1" = "$SLURMD_NODENAME" ]; then
        echo "begin $1"
        { /bin/sh -c "$2" 2>&1; echo "status $?"; } | base64
        echo end
    fi
    shift 2
done
"""


def _command(scripts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the command that runs the scripts of the node it is on, each of 128 KiB at most."""
    pairs = [(node, script) for node, all_of_it in scripts.items() for script in all_of_it]
    return ["/bin/sh", "-c", _SCRIPT, "sh", *(word for pair in pairs for word in pair)]


_LABELLED = """\
{ echo "begin $SLURMD_NODENAME"
  { /bin/sh -c %s 2>&1; echo "status $?"; } | base64
  echo end; } | sed "s/^/$SLURM_PROCID: /"
"""


def labelled(script: str) -> str:
    """Return a script for all tasks of a step, whose output `read_answers` can tell apart."""
    return _LABELLED % shlex.quote(script)


def read_answers(lines: Sequence[str]) -> list[NodeAnswer]:
    r"""Collect the output of srun's tasks with `--label`: interleaved lines `0: …`."""
    answers: list[NodeAnswer] = []
    open_ones: dict[str, tuple[str, list[str]]] = {}
    for line in lines:
        label, _, text = line.partition(": ")
        label = label.strip()  # padded when there are more than ten
        if text.startswith("begin "):
            open_ones[label] = (text.removeprefix("begin "), [])
        elif text == "end" and label in open_ones:
            node, parts = open_ones.pop(label)
            if (answer := _decoded(node, "".join(parts))) is not None:
                answers.append(answer)
        elif label in open_ones:
            open_ones[label][1].append(text)
    return answers


def _decoded(node: str, content: str) -> NodeAnswer | None:
    """Decode an answer; None if it is damaged."""
    try:
        text = base64.b64decode(content, validate=True).decode(errors="replace")
    except ValueError:
        return None
    found = re.fullmatch(r"(.*)status ([0-9]{1,3})\n", text, re.DOTALL)
    return NodeAnswer(node, int(found[2]), found[1]) if found else None


def in_directory(directory: str, script: str) -> tuple[str, ...]:
    """Return the command that runs a shell script in a directory, or in / if that is missing."""
    return ("/bin/sh", "-c", _THERE, "sh", directory, script)


async def run_on_nodes(
    tools: Tools,
    child_env: ChildEnv,
    job_id: str,
    environment: Mapping[str, str],
    program: Sequence[str],
    output: int,
    log: Callable[[str], None],
) -> int:
    """Run a program once on each node of a job, as a separate step; return the highest status.

    That is 128+n for a signal. `output` is the descriptor for the standard output and error of the
    tasks, without srun's own messages. Raises EngineError if the step could not be started.
    """
    nodes = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or "1"
    argv = [*tools.srun, "--jobid", job_id, "--job-name", "scrun", "--overlap"]
    argv += ["--nodes", nodes, "--ntasks", nodes, "--ntasks-per-node", "1", "--mem", "0"]
    argv += ["--chdir", "/", "--input", "none", f"--error=/proc/self/fd/{output}"]
    argv += ["--", *program]
    whole = child_env.with_more(for_a_command(environment))
    refused = ""

    def take_line(line: str) -> None:
        nonlocal refused
        parsed = parse_line("srun", line)
        if parsed is not None and parsed.sentence is Sentence.NO_STEP:
            refused = complaint("srun", line)
        log(line)

    async with (
        messages(take_line) as own,
        child(argv, whole, stdout=output, stderr=own, pass_fds=(output,), grace=_GRACE) as srun,
    ):
        status = await srun.wait()
    if status and refused:
        raise EngineError(refused)
    return shell_status(status)
