"""What the nodes print of a container's processes, which name themselves as they like."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from scrun.core.errors import EngineError
from scrun.supervisor.contracts.engine import Job, NodeAnswer
from scrun.supervisor.sessions.inspection import (
    ProcessList,
    ProcessUsage,
    processes,
    read_list,
    rows_of,
    total,
)

TABLE = """\
UID          PID    PPID  C STIME TTY          TIME CMD
root           1       0  0 10:00 ?        00:00:01 init
root          17       1  0 10:00 ?        00:00:00 sleep 17 23
root          23       1  0 10:00 ?        00:00:00 [kthread]
"""


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("host a pid:[1]\npids\n1\n23\ntable\n", ProcessList("a pid:[1]", frozenset({1, 23}), "")),
        ("host a\npids\n1\ntable\nx\ny\n", ProcessList("a", frozenset({1}), "x\ny\n")),
        (
            "host a\npids\n1\ntable\n2\npids\ntable\n",
            ProcessList("a", frozenset({1}), "2\npids\ntable\n"),
        ),
        ("host \npids\ntable\n", ProcessList("", frozenset(), "")),
        (
            "host a\npids\n" + "".join(f"{pid}\n" for pid in range(30_000)) + "table\n",
            ProcessList("a", frozenset(range(30_000)), ""),
        ),
    ],
    ids=range(5),
)
def test_a_list(text: str, seen: ProcessList) -> None:
    assert read_list(NodeAnswer("n", 0, text)) == seen


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "its runtime does not know the container"),
        ("\n", "its runtime does not know the container"),
        ("sh: 1: crun: not found\n", "sh: 1: crun: not found"),
        ("two\nlines\n", "lines"),
        ("host a\npids\n1\n", "1"),  # it has ended in the middle
        ("host a\npids\nx\ntable\n", "table"),
        ("host a\npids\n²\ntable\n", "table"),
        ("x\nhost a\npids\n1\ntable\n", "table"),
    ],
)
def test_no_list(text: str, reason: str) -> None:
    with pytest.raises(EngineError) as caught:
        read_list(NodeAnswer("n1", 3, text))
    assert str(caught.value) == f"the processes on n1 cannot be listed: {reason}"


@pytest.mark.parametrize(
    ("table", "pids", "rows"),
    [
        (TABLE, {1, 17, 23}, [0, 1, 2, 3]),
        (TABLE, {17}, [0, 2]),
        (TABLE, set(), [0]),
        (TABLE, {0, 2, 1723}, [0]),
        (TABLE.removesuffix("\n"), {23}, [0, 3]),
        ("PID\n1\n2\n", {2}, [0, 2]),
        ("  PID CMD\n    1 a  b \n\n x\n", {1}, [0, 1]),
        ("CMD PID\nsleep 1\n", {1}, [0, 1]),
    ],
)
def test_rows(table: str, pids: set[int], rows: list[int]) -> None:
    lines = table.split("\n")
    assert rows_of(table, frozenset(pids)) == [lines[row] for row in rows]


@pytest.mark.parametrize(
    "odd",
    ["²", "٣", "9" * 5000, "-1", "0x1", "1.0", "+1", "1_0", "\x0b1", "\u2028", "\x00", "\x1b[2J"],
)
def test_a_process_that_names_itself_oddly_harms_nobody(odd: str) -> None:
    table = f"CMD PID\n{odd} 1\nx {odd}\n{odd}\nx 2\n"
    found = rows_of(table, frozenset({2}))
    assert found[0] == "CMD PID"
    assert found[-1] == "x 2"


def test_a_name_ends_no_row() -> None:
    row = "17 a\x0b23 b\x0c23 c\r23 d\x85" + "23 e\u202823 f"
    assert rows_of(f"PID CMD\n{row}\n", frozenset({17, 23})) == ["PID CMD", row]


@pytest.mark.parametrize("table", ["", "\n", "error: unknown option\n", "pid\n1\n", "PPID\n1\n"])
def test_a_table_without_pids(table: str) -> None:
    with pytest.raises(EngineError, match="ps printed no column PID"):
        rows_of(table, frozenset({1}))


def stat(pid: int, name: str, numbers: dict[int, int]) -> str:
    """A line of /proc/PID/stat; proc(5) counts its fields from 1, and the third is the state."""
    fields = [str(numbers.get(place, 0)) for place in range(4, 53)]
    return f"{pid} ({name}) S {' '.join(fields)}\n"


USED = {14: 1, 15: 2, 16: 30, 17: 40, 20: 5, 24: 6}
USAGE = ProcessUsage(310_000_000, 420_000_000, memory=6 * 4096, threads=5, uptime=1.0)
UNITS = "units 100 4096 1.00\n"


@pytest.mark.parametrize(
    "name",
    [
        "sh",
        "",
        "a b",
        ")",
        "a) S 1 1",
        "((",
        "))) R 9 9 9",
        "\\n",
        "\x0b",
        "\x0c)",
        "\r",
        "\x85",
        "1 (x",
    ],
)
def test_a_name_is_no_part_of_the_account(name: str) -> None:
    assert total([NodeAnswer("n", 0, UNITS + stat(7, name, USED))]) == USAGE


def test_this_process() -> None:
    line = Path("/proc/self/stat").read_text()
    found = total([NodeAnswer("n", 0, UNITS + line)])
    assert (found.memory > 1 << 20, found.threads > 0) == (True, True)


@pytest.mark.covers("scrun events")
@pytest.mark.parametrize(
    ("texts", "processes", "threads"),
    [
        ([], 0, 0),
        ([UNITS], 0, 0),
        (["units 100 4096\n" + stat(1, "a", USED)], 1, 5),  # of an older version
        ([UNITS + stat(1, "a", USED) + stat(2, "b", USED)], 2, 10),
        ([UNITS + stat(1, "a", USED), UNITS + stat(1, "a", USED)], 2, 10),
        ([UNITS + stat(1, "a", USED) + stat(2, "b", USED)[:40]], 1, 5),  # it ended meanwhile
        ([UNITS + "\n\n"], 0, 0),
    ],
)
def test_all_are_added_up(texts: list[str], processes: int, threads: int) -> None:
    found = total([NodeAnswer("n", 0, text) for text in texts])
    assert (found.user, found.threads) == (processes * USAGE.user, threads)


@pytest.mark.covers("plugin-api job_step_pids_t")
def test_each_node_has_units_of_its_own() -> None:
    answers = [NodeAnswer("a", 0, UNITS + stat(1, "x", USED))]
    answers += [NodeAnswer("b", 0, "units 1000 65536 7.00\n" + stat(1, "x", USED))]
    found = total(answers)
    assert found.user == 310_000_000 + 31_000_000
    assert found.memory == 6 * 4096 + 6 * 65536
    assert found.uptime == 1.0


def test_the_limit_of_a_node_is_for_all_of_its_tasks() -> None:
    answers = [NodeAnswer(node, 0, f"units 100 4096 1.00 {4096}\n") for node in ("a", "a", "b")]
    assert total(answers).limit == 2 * 4096


@pytest.mark.parametrize(
    "text", ["", "sh: getconf: not found\n", "units 0 4096 1.0\n", "units  \n", "units ² 1 1.0\n"]
)
def test_a_node_that_does_not_tell(text: str) -> None:
    with pytest.raises(EngineError, match=r"^the processes on n1 cannot be inspected: "):
        total([NodeAnswer("n1", 3, text)])


class Nodes:
    """A job whose nodes answer so."""

    def __init__(self, *answers: NodeAnswer) -> None:
        self._answers = answers
        self.scripts: list[str] = []

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        self.scripts.append(script("crun state x"))
        return list(self._answers)


_BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
THIS_HOST = f"{_BOOT} {Path('/proc/self/ns/pid').readlink()}"


def answer(node: str, table: str, *pids: int, host: str = "there", status: int = 0) -> NodeAnswer:
    lines = "".join(f"{pid}\n" for pid in pids)
    return NodeAnswer(node, status, f"host {host}\npids\n{lines}table\n{table}")


async def ps(*answers: NodeAnswer, form: str = "table", words: tuple[str, ...] = ()) -> str:
    return (await processes(cast(Job, Nodes(*answers)), 99, form, words)).decode()


async def test_a_table_of_one_node() -> None:
    assert await ps(answer("n1", TABLE, 1, 17, 23)) == TABLE
    assert await ps(answer("n1", TABLE)) == TABLE.split("\n")[0] + "\n"


@pytest.mark.covers("scrun ps")
async def test_a_table_of_several_nodes_names_them() -> None:
    table = "PID CMD\n1 a\n2 b\n"
    found = await ps(answer("n1", table, 1), answer("node2", table, 1, 2))
    assert found == "NODE  PID CMD\nn1    1 a\nnode2 1 a\nnode2 2 b\n"
    assert await ps(answer("n1", table, 1), answer("n1", table, 2)) == table


@pytest.mark.covers("scrun ps")
async def test_pids_are_those_of_this_host() -> None:
    assert json.loads(await ps(answer("n1", "", 1, 2), form="json")) == [99]
    here = answer("n1", "", 7, 5, host=THIS_HOST)
    assert json.loads(await ps(here, answer("n2", "", 6), form="json")) == [5, 7]


async def test_what_ps_complains_of() -> None:
    with pytest.raises(EngineError, match=r"^ps on n1: error: unknown$"):
        await ps(answer("n1", "usage\nerror: unknown\n", 1, status=1))
    with pytest.raises(EngineError, match=r"^ps on n1: 1$"):
        await ps(answer("n1", "", 1, status=1))


async def test_words_for_ps_are_quoted() -> None:
    nodes = Nodes(answer("n1", "PID\n", 1))
    await processes(cast(Job, nodes), 99, "table", ["-o", "pid;reboot"])
    assert nodes.scripts[0].endswith("exec ps -o 'pid;reboot'\n")
