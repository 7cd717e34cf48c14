"""Which oci.conf counts on a node, and what a shim gets of it."""

import zlib
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio

from scrun.core.errors import EngineError, SettingsError
from scrun.settings.file.load import RuntimeSettings
from scrun.settings.oci_conf.commands import node_runtime
from scrun.settings.oci_conf.parse import parse_oci_conf
from scrun.supervisor.contracts.engine import Step
from scrun.supervisor.engines.slurm.shim_site import NodeSite, SiteConfs, SiteContainer
from scrun.supervisor.nodes.connection import Hello, Shim

RUN = """\
RunTimeRun="runc run %j.%s.%t -b %b"
RunTimeKill="runc kill -a %j.%s.%t"
RunTimeDelete="runc delete --force %j.%s.%t"
RunTimeEnvExclude="^SECRET="
EnvExclude="^[[:digit:]]="
"""
CREATE = """\
RunTimeCreate="runc create %n %p '%b'"
RunTimeStart="runc start %j"
RunTimeQuery="runc state %j"
RunTimeKill="runc kill %j KILL"
RunTimeDelete="runc delete %j"
MountSpoolDir=/mnt/%s
ContainerPath=/var/oci/%U
DisableCleanup=yes
"""
PROCESS = 'IgnoreFileConfigJson=true\nRunTimeRun="x exec %r %@"\nRunTimeKill="kill %p"\n'
CONFIG = {
    "root": {"path": "/b/rootfs"},
    "process": {"args": ["echo", "it's"], "env": ["A=1"], "terminal": True},
}
STEP = Step(
    "/b", ("echo", "it's"), (0, 1, 2), terminal=False, program="", program_is_known=False,
    running=lambda: None,
)  # fmt: skip


class Node:
    """A shim that tells the node's oci.conf."""

    def __init__(self, text: str, status: int = 0, place: str = "n1") -> None:
        self.text = text
        self.place = place
        self.status = status
        self.scripts: list[str] = []

    async def call(self, verb: str, **fields: Any) -> dict[str, Any]:
        assert verb == "script"
        self.scripts.append(fields["script"])
        return {"status": self.status, "text": self.text}


def hello(text: str = "", step: str = "0") -> Hello:
    """What a shim says on a node with this oci.conf."""
    environment = {"SLURMD_NODENAME": "n1", "SLURM_STEP_ID": step}
    path = "/etc/slurm/oci.conf" if text else ""
    return Hello(
        1, "host", 9, directory="/tmp/shim", oci_conf=path, oci_conf_sum=zlib.crc32(text.encode()),
        environment=environment,
    )  # fmt: skip


def confs(text: str = "") -> SiteConfs:
    """The oci.conf of the submit host."""
    conf = parse_oci_conf(text) if text else None
    return SiteConfs(text.encode() if text else None, conf, RuntimeSettings())


async def found(here: str, there: str, node: Node) -> NodeSite | None:
    return await confs(here).of_node(hello(there), cast("Shim", node))


async def site(text: str, number: int | None = None) -> SiteContainer:
    """What is run for a container."""
    counts = await found(text, "", Node(""))
    assert counts is not None
    return counts.container("7", "/home/me", STEP, CONFIG, number)


async def test_which_one_counts() -> None:
    """oci.conf(5): the node's own; it is asked for only where it is another one."""
    assert await found("", "", Node("")) is None
    for here, there, asked in ((RUN, "", 0), (RUN, RUN, 0), (RUN, CREATE, 1), ("", CREATE, 1)):
        node = Node(there)
        counts = await found(here, there, node)
        assert counts is not None
        commands = cast("Any", counts.container("7", "/", STEP, CONFIG).fields())["commands"]
        assert ("create" in commands) is ((there or here) == CREATE)
        assert node.scripts == ["exec cat -- /etc/slurm/oci.conf"] * asked
        assert counts.where == ("/etc/slurm/oci.conf" if there else "oci.conf")


async def test_it_is_read_once() -> None:
    node, known = Node(CREATE), confs()
    for _ in range(2):
        assert await known.of_node(hello(CREATE), cast("Shim", node)) is not None
    assert len(node.scripts) == 1


async def test_a_node_that_changes_it_is_read_again() -> None:
    known = confs()
    for text in (CREATE, RUN, CREATE):
        node = Node(text)
        counts = await known.of_node(hello(text), cast("Shim", node))
        assert len(node.scripts) == 1
        assert counts is not None
        assert counts.facts()["run_time_run"] == node_facts(text)


def node_facts(text: str) -> object:
    return parse_oci_conf(text).run_time_run


@pytest.mark.covers("security say what is true of another node")
@pytest.mark.parametrize("place", ["n2", ""])
async def test_a_node_that_lies_gives_others_no_commands(place: str) -> None:
    """It says that its oci.conf is theirs, by the sum, and shows another."""
    known = confs()
    liar = Node(RUN.replace("runc run", "of-the-liar"), place=place)
    assert await known.of_node(hello(CREATE), cast("Shim", liar)) is not None
    honest = Node(CREATE)
    counts = await known.of_node(hello(CREATE), cast("Shim", honest))
    assert len(honest.scripts) == 1
    assert counts is not None
    assert counts.facts()["run_time_run"] is None
    # nor where that of the submit host counts
    known = confs(CREATE)
    counts = await known.of_node(hello(CREATE), cast("Shim", liar))
    assert counts is not None
    assert counts.facts()["run_time_run"] is None


async def test_a_node_with_a_wrong_one() -> None:
    with pytest.raises(SettingsError, match=r"host: /etc/slurm/oci\.conf:1: Fancy: unknown key"):
        await found("", "Fancy=1", Node("Fancy=1"))
    with pytest.raises(SettingsError, match=r"host: /etc/slurm/oci\.conf: cat: gone"):
        await found("", RUN, Node("cat: gone\n", 1))


async def test_run() -> None:
    fields = (await site(RUN)).fields()
    commands = fields["commands"]
    assert commands == {
        "run": "exec runc run 7.0.0 -b /tmp/shim/oci-job7-0/task-0",
        "kill": "runc kill 7.0.0 KILL",
        "delete": "runc delete --force 7.0.0",
    }
    assert (fields["step"], fields["task"]) == (
        "/tmp/shim/oci-job7-0",
        "/tmp/shim/oci-job7-0/task-0",
    )
    assert (fields["hides"], fields["withheld"]) == ("^[0-9]=", "^SECRET=")
    assert (fields["keep"], fields["config"], fields["file"]) == (False, True, "disabled")


async def test_create_and_start() -> None:
    one = await site(CREATE, 3)
    fields = cast("Any", one.fields())
    step = fields["step"]
    assert step.startswith("/var/oci/")
    assert fields["keep"] is True
    assert fields["commands"]["create"] == f"runc create n1 {fields['pid']} '{step}/task-3'"
    assert len(fields["pid"]) >= 19
    changed = one.changed(dict(CONFIG))
    assert changed["process"]["terminal"] is False
    assert changed["mounts"][-1]["source"] == step
    assert changed["mounts"][-1]["destination"] == "/mnt/0"


async def test_a_process() -> None:
    """oci.conf(5): IgnoreFileConfigJson; quotes, and a pid that only the shim will know."""
    one = await site(PROCESS)
    fields = cast("Any", one.fields())
    assert fields["config"] is False
    assert fields["commands"]["run"] == "exec x exec /b/rootfs 'echo' 'it'\"'\"'s'"
    assert fields["commands"]["kill"] == f"kill -s KILL {fields['pid']}"
    assert one.changed(dict(CONFIG)) == CONFIG
    with pytest.raises(EngineError, match="has no command for it"):
        one.exec({})


async def test_containers_of_one_shim_differ() -> None:
    counts = await found(RUN, "", Node(""))
    assert counts is not None
    made = [counts.container("7", "/", STEP, CONFIG).fields() for _ in range(2)]
    assert [cast("Any", one)["commands"]["delete"][-5:] for one in made] == ["7.0.0", "7.0.1"]
    assert made[0]["pid"] != made[1]["pid"]


async def test_exec_and_pause() -> None:
    conf = parse_oci_conf(CREATE)
    own = RuntimeSettings(pause="freeze %j", resume="thaw %j")
    known = SiteConfs(CREATE.encode(), conf, own)
    counts = await known.of_node(hello(), cast("Shim", Node("")))
    assert counts is not None
    one = counts.container("7", "/", STEP, CONFIG)
    assert (one.pause(resume=False), one.pause(resume=True)) == ("freeze 7", "thaw 7")
    assert one.state == "runc state 7"
    said = one.exec({"args": ["true"]})
    assert "runc exec --process /proc/self/fd/9 7" in str(said["command"])
    assert said["variables"] == {"SCRUN_PROCESS_0": '{"args": ["true"]}'}
    assert msgspec.json.encode(one.fields())


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        (RUN, True),
        (CREATE, False),
        (PROCESS, True),
        (RUN.replace(".%t", ""), False),
        (CREATE.replace("%n %p", "%n.%t %p"), True),
    ],
)
def test_commands_that_tell_containers_of_a_step_apart(text: str, apart: bool) -> None:
    conf = parse_oci_conf(text, "oci.conf")
    site = NodeSite(conf, node_runtime(conf, RuntimeSettings()), hello())
    assert site.tells_apart is apart


class RealNode:
    """A shim that runs scripts here."""

    async def call(self, verb: str, **fields: Any) -> dict[str, Any]:
        assert verb == "script"
        command = ["/bin/sh", "-c", fields["script"]]
        done = await trio.run_process(command, capture_stdout=True)
        return {"status": 0, "text": done.stdout.decode()}


@pytest.mark.parametrize(
    ("place", "said"),
    [
        pytest.param("/", "", marks=pytest.mark.by_root),
        pytest.param("/dev", "", marks=pytest.mark.by_root),
        ("{tmp}/new/%U/it's", ""),
        ("{tmp}/file/x", "{tmp}/file/x: {tmp}/file: Permission denied; set ContainerPath in the"),
        (None, ""),
    ],
)
async def test_a_place_that_the_user_can_make(
    tmp_path: Path, place: str | None, said: str
) -> None:
    (tmp_path / "file").touch()
    path = "" if place is None else f'ContainerPath="{place.format(tmp=tmp_path)}"\n'
    conf = parse_oci_conf(path + RUN, "oci.conf")
    site = NodeSite(conf, node_runtime(conf, RuntimeSettings()), hello())
    found = await site.forbidden(cast("Shim", RealNode()))
    assert found.startswith(said.format(tmp=tmp_path)) if said else found == ""
