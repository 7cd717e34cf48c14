"""Questions to nodes: what srun's tasks print, mixed as it comes, and the shell that prints it."""

import base64
import shutil

import pytest

from scrun.supervisor.contracts.engine import NodeAnswer
from scrun.supervisor.engines.slurm.remote import _COMMAND_LINE, _command, parts_of, read_answers
from tests.harness.program import run_program

SHELLS = [words for words in (["/bin/sh"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0])]


def run(scripts: dict[str, list[str]], node: str, shell: list[str] = SHELLS[0]) -> list[str]:
    """The lines that a task on a node prints."""
    _, *words = _command(scripts)
    done = run_program([*shell, *words], env={"SLURMD_NODENAME": node}, check=True)
    assert done.stderr == "" or "kill" in str(scripts)  # a shell says that one was
    return done.stdout.splitlines()


def labelled(label: str, lines: list[str]) -> list[str]:
    return [f"{label}: {line}" for line in lines]


def said(node: str, text: str, status: int = 0) -> list[str]:
    """What a task prints for a script that has printed this."""
    content = base64.encodebytes(f"{text}status {status}\n".encode()).decode()
    return [f"begin {node}", *content.splitlines(), "end"]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("script", "status", "text"),
    [
        ("echo a", 0, "a\n"),
        ("printf 'a\\nb'", 0, "a\nb"),
        (":", 0, ""),
        ("exit 7", 7, ""),
        ("echo; echo", 0, "\n\n"),
        ("echo out; echo err >&2; false", 1, "out\nerr\n"),
        ("kill -9 $$", 137, None),
        ("syntax (", 2, None),
        ("echo status 0; exit 3", 3, "status 0\n"),
        ("printf 'status 0'; exit 3", 3, "status 0"),
        ("echo end; echo begin n1; echo '0: end'", 0, "end\nbegin n1\n0: end\n"),
        ("printf '\\001end 0\\n\\001begin n2\\nx\\n'", 0, "\x01end 0\n\x01begin n2\nx\n"),
        ("printf '\\r\\n\\013\\014 \\033[2J'", 0, "\r\n\x0b\x0c \x1b[2J"),
        ("printf '\\377'", 0, "\ufffd"),
        ("echo \"$0 $# '%s' \\\\n\"", 0, None),
        ("head -c 300000 /dev/zero | tr '\\0' x", 0, "x" * 300_000),
        ("cat", 0, ""),
    ],
    ids=range(17),
)
def test_a_script(script: str, status: int, text: str | None, shell: list[str]) -> None:
    lines = run({"n1": [script]}, "n1", shell)
    assert max(map(len, lines)) < 100
    [found] = read_answers(labelled("0", lines))
    assert (found.node, found.status) == ("n1", status)
    if text is not None:
        assert found.text == text


def test_each_node_runs_its_own_in_their_order() -> None:
    scripts = {"n1": ["echo 1"], "node 2'*": ["echo a", "exit 4", "echo c"], "*": ["echo no"]}
    assert read_answers(labelled("1", run(scripts, "node 2'*"))) == [
        NodeAnswer("node 2'*", 0, "a\n"),
        NodeAnswer("node 2'*", 4, ""),
        NodeAnswer("node 2'*", 0, "c\n"),
    ]
    assert run(scripts, "n3") == []


def test_a_script_does_not_end_those_after_it() -> None:
    found = read_answers(labelled("0", run({"n": ["exit 1", "kill -9 $$", "echo c"]}, "n")))
    assert [answer.status for answer in found] == [1, 137, 0]


def test_hundreds_of_nodes_fit_into_a_command_line() -> None:
    scripts = {f"a-long-name-of-a-node-{number:04}": [": " + "x" * 1000] for number in range(900)}
    assert all(len(word) < 128 << 10 for word in _command(scripts))
    lines = run({**scripts, "last": ["echo here"]}, "last")
    assert read_answers(labelled("900", lines)) == [NodeAnswer("last", 0, "here\n")]


def test_tasks_speak_at_the_same_time() -> None:
    first, second = said("n1", "a\n" * 100), said("n2", "b\n" * 90, 5)
    mixed = []
    for number in range(max(len(first), len(second))):
        mixed += labelled("1", second[number : number + 1])
        mixed += labelled("0", first[number : number + 1])
    found = read_answers(mixed)
    assert sorted(found, key=lambda answer: answer.node) == [
        NodeAnswer("n1", 0, "a\n" * 100),
        NodeAnswer("n2", 5, "b\n" * 90),
    ]


def test_labels_are_padded_when_there_are_many() -> None:
    lines = labelled(" 0", said("n1", "a\n")) + labelled("10", said("n2", "b\n"))
    lines += labelled("  3", said("n3", "c\n"))
    assert [answer.text for answer in read_answers(lines)] == ["a\n", "b\n", "c\n"]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["", "srun: error: x", "0: ", "0: end", "end"],
        labelled("0", said("n", "a")[:-1]),
        labelled("0", said("n", "a")[1:]),
        labelled("0", ["begin n", "end"]),
        labelled("0", ["begin n", "!!!!", "end"]),
        labelled("0", ["begin n", "YWJj", "end"]),  # nothing of a status
        labelled("0", ["begin n", "YWJ", "end"]),
        labelled("0", ["begin n", "c3RhdHVzIMKyCg==", "end"]),  # "status ²"
    ],
)
def test_what_is_no_answer(lines: list[str]) -> None:
    assert read_answers(lines) == []
    assert read_answers([*lines, *labelled("0", said("n2", "b"))]) == [NodeAnswer("n2", 0, "b")]


@pytest.mark.parametrize("count", [0, 1, 10, 1500, 4000])
def test_many_nodes_are_asked_in_parts(count: int) -> None:
    """All in one command line would be E2BIG at about 1500."""
    scripts = {f"node{number}": ["x" * 1400, "y"] for number in range(count)}
    parts = parts_of(scripts)
    assert [node for part in parts for node in part] == [*scripts]
    assert {node: its for part in parts for node, its in part.items()} == scripts
    sizes = [sum(len(word) + 9 for word in _command(part)) for part in parts]
    assert max(sizes, default=0) < _COMMAND_LINE + 4096
    assert len(parts) <= 1 + sum(sizes) // (_COMMAND_LINE - 4096)


def test_a_script_that_is_too_long_is_alone() -> None:
    parts = parts_of({"a": ["x"], "b": ["x" * _COMMAND_LINE], "c": ["x"]})
    assert [[*part] for part in parts] == [["a"], ["b"], ["c"]]
