"""Containers that a shim has made by the commands of an oci.conf: real runtimes, and others."""

import json
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from scrun.supervisor.shim.files import plain
from scrun.supervisor.shim.site import NO_PID, Site, environment_file, kept
from tests.component.supervisor.shim.conftest import MakeShim, without_crun
from tests.harness import users
from tests.harness.bundle import make_config, map_user
from tests.harness.processes import descendants, signal_quietly
from tests.harness.shim import Shim
from tests.harness.wait import wait_until, wait_while

ONE = pytest.mark.parametrize("shim", ["user-crun"], indirect=True)
"""Where neither the runtime nor the user makes a difference."""

PID = "12345678901234567890"
"""What stands for `%p`."""


class BySite:
    """Calls for containers of an oci.conf, whose runtime says what it is called with.

    Attributes:
        shim: The shim.
        calls: The file with the calls.
    """

    def __init__(self, shim: Shim, folder: Path) -> None:
        self.shim = shim
        self.directory = Path(shim.hello["directory"])
        self.calls = folder / "calls"
        self.step = self.directory / "oci-job7-0"
        runtime = shim.hello["runtime"]
        options = "--cgroup-manager=disabled" if runtime.endswith("crun") else "--rootless=true"
        if runtime.endswith("runc") and not shim.user.uid:
            options = ""
        self.runtime = f"echo VERB >>{self.calls}; exec {runtime} {options}"
        self.runtime += f" --root={self.directory}/state VERB"

    def verb(self, verb: str, words: str = "", after: str = "", name: str = "a") -> str:
        """A command of the runtime's."""
        # runc names a cgroup after it
        name = f"site-{self.shim.process.pid}-{name}"
        return f"{self.runtime.replace('VERB', verb)} {words} {name} {after}".rstrip()

    def commands(self, *, runs: bool, name: str = "a") -> dict[str, str]:
        bundle = f"--bundle {self.task(name)}"
        found = {
            "kill": self.verb("kill", "", "KILL", name),
            "delete": self.verb("delete", "--force", "", name),
        }
        if runs:
            return {**found, "run": self.verb("run", bundle, "", name)}
        return {
            **found,
            "create": self.verb("create", bundle, "", name),
            "start": self.verb("start", "", "", name),
            "query": self.verb("state", "", "", name),
        }

    def task(self, name: str = "a") -> Path:
        return self.step / f"task-{name}"

    def fields(self, commands: dict[str, str], name: str = "a", **changes: Any) -> dict[str, Any]:
        return {
            "commands": commands, "pid": PID, "step": str(self.step), "task": str(self.task(name)),
            "keep": False, "file": "disabled", "hides": None, "withheld": None, "config": True,
            **changes,
        }  # fmt: skip

    def create(
        self,
        *args: str,
        site: dict[str, Any],
        streams: dict[str, int] | None = None,
        name: str = "a",
    ) -> dict[str, Any]:
        """Create a container that runs a command; return the reply."""
        terminal = "terminal" in (streams or {}) and "run" in site["commands"]
        config = make_config(args, str(self.shim.rootfs), terminal=terminal)
        if self.shim.user.uid:
            map_user(config, self.shim.user)
        return self.shim.call(
            "create", id=name, name=f"name-{name}", config=config, streams=streams or {}, joins={},
            site=site,
        )  # fmt: skip

    def signal(self, number: int, name: str = "a", command: str = "") -> dict[str, Any]:
        is_all = number == signal.SIGKILL
        return self.shim.call("signal", id=name, number=number, all=is_all, command=command)

    @property
    def called(self) -> list[str]:
        """The verbs that the runtime was called with."""
        return self.calls.read_text().split()


@pytest.fixture
def site(shim: Shim, tmp_path: Path) -> BySite:
    """A shim, with each of the runtimes, as root and as an ordinary user."""
    return BySite(shim, opened(tmp_path))


def opened(folder: Path) -> Path:
    """Let other users write to a folder."""
    folder.chmod(0o1777)
    for parent in list(folder.parents)[:-2]:
        parent.chmod(parent.stat().st_mode | 0o011)
    return folder


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_the_directory_of_pmix(
    make_shim: MakeShim, tmp_path: Path, rootfs: Path, runtime: str, runs: bool
) -> None:
    """The first container sees it, by whichever command it is made."""
    directory = tmp_path / "pmix"
    directory.mkdir(mode=0o755)
    (directory / "socket").touch()
    env = {"PMIX_SERVER_TMPDIR": str(directory)}
    if runtime == "runc":
        env["PATH"] = without_crun(rootfs)
    site = BySite(make_shim(env, users.ordinary()), opened(tmp_path))
    streams = site.shim.streams("stdout", "stderr")
    show = "echo $PMIX_SERVER_TMPDIR; ls $PMIX_SERVER_TMPDIR"
    fields = site.fields(site.commands(runs=runs))
    assert "error" not in site.create("sh", "-c", show, site=fields, streams=streams)
    assert site.shim.call("start", id="a") == {}
    said = site.shim.finish(streams["stdout"], streams["stderr"]).decode()
    assert said.split() == ["/dev/pmix", "socket"]
    assert site.shim.ended("a") == 0
    site.shim.end()


@pytest.mark.parametrize("runs", [True, False])
def test_a_life(site: BySite, runs: bool) -> None:
    """oci.conf(5): which command comes when."""
    shim, streams = site.shim, site.shim.streams()
    fields = site.fields(site.commands(runs=runs))
    reply = site.create("sh", "-c", "cat; echo err >&2; exit 7", site=fields, streams=streams)
    assert "error" not in reply
    assert site.task().is_dir()
    if runs:
        assert not site.calls.exists()
    else:
        assert site.called == ["create", "state"]
        assert os.path.exists(f"/proc/{reply['pid']}")
    assert shim.call("start", id="a") == {}
    shim.write(streams["stdin"], b"in\n")
    assert shim.ended("a") == 7
    assert shim.finish(streams["stdout"], streams["stderr"]) == b"in\n"
    assert shim.output[streams["stderr"]] == b"err\n"
    assert shim.call("delete", id="a") == {}
    assert site.called == (["run"] if runs else ["create", "state", "start"]) + ["delete"]
    assert not site.step.exists()
    assert shim.close() == (7, "")


@pytest.mark.parametrize("runs", [True, False])
def test_signals(site: BySite, runs: bool) -> None:
    streams = site.shim.streams("stdout")
    script = "trap 'echo got' USR1; echo up; while :; do sleep 0.05; done"
    site.create("sh", "-c", script, site=site.fields(site.commands(runs=runs)), streams=streams)
    assert site.shim.call("start", id="a") == {}
    output = site.shim.output[streams["stdout"]]
    site.shim.until("up", lambda: b"up" in output)
    assert site.signal(signal.SIGUSR1, command=site.verb("kill", "", "USR1")) == {}
    site.shim.until("got", lambda: b"got" in output)
    wrong = site.signal(signal.SIGUSR1, command="echo no such thing >&2; exit 3")
    assert wrong["error"] == "no such thing"
    assert site.signal(signal.SIGKILL) == {}
    assert site.shim.ended("a") in (-9, 137)
    assert site.signal(signal.SIGUSR1) == {}
    assert site.called[-2:] == ["kill", "kill"]


@ONE
def test_one_that_is_killed_before_its_start(site: BySite) -> None:
    site.create("true", site=site.fields(site.commands(runs=True)))
    assert site.signal(signal.SIGKILL) == {}
    assert site.shim.ended("a") == -9
    assert site.shim.call("start", id="a") == {"error": "a has ended"}
    assert site.shim.call("delete", id="a") == {}
    assert site.called == ["delete"]


@pytest.mark.parametrize("runs", [True, False])
def test_delete_of_one_that_runs(site: BySite, runs: bool) -> None:
    site.create("sleep", "1000", site=site.fields(site.commands(runs=runs)))
    site.shim.call("start", id="a")
    wait_until("it", lambda: descendants(site.shim.process.pid))
    time.sleep(0.3)
    # where RunTimeKill takes longer than the shim waits, RunTimeDelete may say so
    assert "error" not in site.shim.call("delete", id="a")
    assert site.shim.ended("a") in (-9, 137)
    assert site.called[-2:] == ["kill", "delete"]
    assert not os.listdir(site.directory / "state")


@ONE
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("create", "no such thing"),
        ("query", "RunTimeQuery does not know the new container"),
        ("start", "no such thing"),
        ("delete", "no such thing"),
    ],
)
def test_each_command_fails(site: BySite, command: str, said: str) -> None:
    commands = site.commands(runs=False)
    wrong = f"{command} >/dev/null; echo first >&2; echo no such thing >&2; exit 3"
    streams = site.shim.streams("stderr")
    reply = site.create("true", site=site.fields({**commands, command: wrong}), streams=streams)
    if command in ("create", "query"):
        assert reply["error"] == said
        wait_while("the step's directory", site.step.exists)
        return
    reply = site.shim.call("start", id="a")
    assert reply.get("error") == (said if command == "start" else None)
    if command == "delete":
        assert site.shim.ended("a") == 0
        assert site.shim.call("delete", id="a") == {"words": said}
    else:
        assert site.shim.call("delete", id="a") == {}
    assert not site.step.exists()


@ONE
def test_a_run_that_fails(site: BySite) -> None:
    """Its words are the container's, as with slurmstepd."""
    streams = site.shim.streams("stderr")
    commands = {**site.commands(runs=True), "run": "echo no such thing >&2; exit 3"}
    site.create("true", site=site.fields(commands), streams=streams)
    assert site.shim.call("start", id="a") == {}
    assert site.shim.ended("a") == 3
    assert site.shim.finish(streams["stderr"]) == b"no such thing\n"


@ONE
def test_what_the_commands_and_the_container_get(site: BySite, tmp_path: Path) -> None:
    """oci.conf(5): EnvExclude, RunTimeEnvExclude, CreateEnvFile; %p where there is no process."""
    seen = tmp_path / "seen"
    run = f"(env; echo; pwd; echo {PID}) >{seen}; {site.verb('run', f'--bundle {site.task()}')}"
    commands = {**site.commands(runs=True), "run": run}
    fields = site.fields(commands, file="newline", hides="^(HIDDEN|SLURM_X)=", withheld="^TMPDIR=")
    streams = site.shim.streams("stdout")
    config = make_config(["env"], str(site.shim.rootfs))
    config["process"]["env"] += ["HIDDEN=1", "OPEN=yes", "TWO=a\nb"]
    if site.shim.user.uid:
        map_user(config, site.shim.user)
    site.shim.call(
        "create", id="a", name="a", config=config, streams=streams, joins={}, site=fields
    )
    file = (site.task() / "environment").read_text().splitlines()
    assert "OPEN=yes" in file
    assert not [line for line in file if line.startswith(("HIDDEN", "TWO"))]
    site.shim.call("start", id="a")
    assert site.shim.ended("a") == 0
    variables = site.shim.finish(streams["stdout"]).decode().splitlines()
    assert "OPEN=yes" in variables
    assert "HIDDEN=1" not in variables
    environment, _, rest = seen.read_text().partition("\n\n")
    assert rest.splitlines() == [str(site.task()), str(NO_PID)]
    names = {line.partition("=")[0] for line in environment.splitlines()}
    assert "PATH" in names
    assert "TMPDIR" not in names


@ONE
def test_a_process_that_is_no_container(site: BySite, tmp_path: Path) -> None:
    """oci.conf(5): IgnoreFileConfigJson; the pid is that of RunTimeRun."""
    gone = tmp_path / "gone"
    commands = {
        "run": "exec sleep 1000",
        "kill": f"kill -s KILL {PID}",
        "delete": f"echo {PID} >{gone}",
    }
    site.create("true", site=site.fields(commands, config=False))
    assert not (site.task() / "config.json").exists()
    site.shim.call("start", id="a")
    assert site.signal(signal.SIGTERM, command=f"kill -s TERM {PID}") == {}
    assert site.shim.ended("a") == -15
    assert site.shim.call("delete", id="a") == {}
    assert gone.read_text() == f"{NO_PID}\n"


@ONE
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_container_that_is_not_left_to_the_shim(
    site: BySite, tmp_path: Path, *, is_seen: bool
) -> None:
    """Only a pidfd or RunTimeQuery tells its end then: as with Slurm, without a status."""
    state, calls = tmp_path / "state.json", tmp_path / "calls"
    commands = {
        **dict.fromkeys(("create", "start", "kill", "delete"), "true"),
        "query": f"echo >>{calls}; cat {state}",
    }
    with subprocess.Popen(["sleep", "30"]) as process:
        pid = process.pid if is_seen else 1 << 30
        state.write_text(json.dumps({"status": "created", "pid": pid}))
        site.create("true", site=site.fields(commands))
        site.shim.call("start", id="a")
        time.sleep(0.3)
        assert not site.shim.has_ended("a")
        assert (len(calls.read_text()) == 1) is is_seen
        state.write_text(json.dumps({"status": "stopped"}))
        process.kill()
        process.wait()
        assert site.shim.ended("a", 3) == 0


@pytest.mark.parametrize("runs", [True, False])
def test_a_terminal(site: BySite, runs: bool) -> None:
    shim = site.shim
    streams = {**shim.streams("terminal"), "rows": 24, "columns": 80}
    script = "test -t 0 && test -t 2 && stty size; read line; stty size; echo got $line; exit 3"
    site.create("sh", "-c", script, site=site.fields(site.commands(runs=runs)), streams=streams)
    shim.call("resize", id="a", rows=30, columns=100)
    assert shim.call("start", id="a") == {}
    output = shim.output[streams["terminal"]]
    shim.until("its size", lambda: b"30 100" in output)
    shim.call("resize", id="a", rows=42, columns=142)
    time.sleep(0.2)
    shim.write(streams["terminal"], b"x\n", end=False)
    assert shim.ended("a") == 3
    shown = shim.finish(streams["terminal"])
    assert b"42 142" in shown
    assert b"got x" in shown


@ONE
def test_create_on_a_terminal_fails(site: BySite) -> None:
    streams = {**site.shim.streams("terminal"), "rows": 24, "columns": 80}
    commands = {**site.commands(runs=False), "create": "echo no such thing >&2; exit 3"}
    assert site.create("true", site=site.fields(commands), streams=streams)["error"] == (
        "no such thing"
    )


def test_a_node_where_no_terminal_can_be_opened(make_shim: MakeShim, tmp_path: Path) -> None:
    """openpty(3) names no file, and "Permission denied" alone was all that a user heard."""
    covered = 'mount --bind /dev/null /dev/ptmx; exec "$@"'
    before = ("unshare", "--mount", "sh", "-c", covered, "sh")
    site = BySite(make_shim(before=before), opened(tmp_path))
    streams = {**site.shim.streams("terminal"), "rows": 24, "columns": 80}
    fields = site.fields(site.commands(runs=False))
    said = site.create("true", site=fields, streams=streams)
    assert said["error"] == "/dev/ptmx: Invalid argument"


@ONE
@pytest.mark.parametrize("terminal", [False, True])
def test_exec(site: BySite, terminal: bool) -> None:
    shim = site.shim
    site.create("sleep", "1000", site=site.fields(site.commands(runs=False)))
    shim.call("start", id="a")
    # crun 1.8 takes the last words on a terminal for its own log
    config = make_config(["sh", "-c", "echo in; sleep 0.3; exit 5"], terminal=terminal)
    streams = shim.streams("terminal" if terminal else "stdout")
    file = site.task() / "process"
    command = f'printf %s "$WHAT" >{file}; {site.verb("exec", f"--process {file}")}'
    reply = shim.call(
        "exec", id="b", container="a", streams=streams, command=command,
        variables={"WHAT": json.dumps(config["process"])},
    )  # fmt: skip
    assert "error" not in reply
    assert shim.ended("b") == 5
    [number] = streams.values()
    assert shim.finish(number).strip() == b"in"
    assert site.called[-1] == "exec"


@ONE
@pytest.mark.parametrize("where", ["/proc/1/nowhere", "{file}", "{foreign}"])
def test_a_directory_that_cannot_be_made(site: BySite, tmp_path: Path, where: str) -> None:
    """oci.conf(5): ContainerPath."""
    (tmp_path / "file").touch()
    (tmp_path / "foreign").mkdir(mode=0o755)
    step = where.format(file=tmp_path / "file", foreign=tmp_path / "foreign")
    fields = site.fields(site.commands(runs=True), step=step, task=f"{step}/task-0")
    reply = site.create("true", site=fields)
    assert reply["error"].startswith(step)
    assert reply["error"].endswith("; set ContainerPath in the oci.conf to another directory")
    assert (tmp_path / "foreign").exists()


def test_another_directory_is_no_remedy_for_want_of_descriptors(tmp_path: Path) -> None:
    task = tmp_path / "step" / "task-a"
    fields = {
        "commands": {"run": "true", "delete": "true"}, "pid": PID, "step": str(task.parent),
        "task": str(task), "keep": False, "file": "nul", "hides": None, "withheld": None,
        "config": True,
    }  # fmt: skip
    site = Site(fields, {})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        site.prepare({"process": {"env": []}}, str(tmp_path))
    except Exception as error:
        said = plain(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert said == f"{task}/environment: Too many open files"


@ONE
def test_files_that_stay(site: BySite, tmp_path: Path) -> None:
    """oci.conf(5): DisableCleanup, and what it has left of a job that was requeued."""
    step = tmp_path / "step"
    fields = site.fields(site.commands(runs=True), step=str(step), task=f"{step}/task-a")
    site.step = step
    fields["commands"] = site.commands(runs=True)
    for _ in range(2):
        site.create("true", site={**fields, "keep": True})
        site.shim.call("start", id="a")
        assert site.shim.ended("a") == 0
        site.shim.call("delete", id="a")
        del site.shim._ended["a"]
        assert (step / "task-a" / "config.json").exists()
        (step / "task-a" / "older").mkdir()
    site.create("true", site=fields)
    assert not (step / "task-a" / "older").exists()
    site.shim.call("delete", id="a")
    assert not step.exists()


@ONE
def test_two_tasks_have_one_step(site: BySite) -> None:
    for name in "ab":
        site.create("true", site=site.fields(site.commands(runs=True, name=name), name), name=name)
    site.shim.call("delete", id="a")
    assert [entry.name for entry in site.step.iterdir()] == ["task-b"]
    site.shim.call("delete", id="b")
    assert not site.step.exists()


@ONE
@pytest.mark.parametrize("how", ["end", "kill"])
def test_the_shim_ends(site: BySite, make_shim: MakeShim, tmp_path: Path, how: str) -> None:
    """By itself, or, killed, by the next one of that user on that node."""
    step = tmp_path / "step"
    site.step = step
    fields = site.fields(site.commands(runs=True))
    site.create("sleep", "1000", site=fields)
    site.shim.call("start", id="a")
    wait_until("it", lambda: list((site.directory / "state").glob("*")))
    if how == "end":
        site.shim.close()
    else:
        runtime = descendants(site.shim.process.pid)
        site.shim.process.kill()
        site.shim.process.wait()
        for pid in runtime:  # as Slurm does with the processes of the step
            signal_quietly(pid)
        make_shim({}, site.shim.user)
    wait_while("what is left", lambda: step.exists() or site.directory.exists())
    assert site.called[-1] == "delete"


def test_what_needs_no_process() -> None:
    variables = ["A=1", "B=x\ny", "AB=2"]
    assert kept(variables, None) == variables
    assert kept(variables, "^A=") == variables[1:]
    assert environment_file(variables, newlines=True) == "A=1\nAB=2\n"
    assert environment_file(variables, newlines=False) == "A=1\0B=x\ny\0AB=2\0"


def test_the_nodes_oci_conf(make_shim: MakeShim, tmp_path: Path) -> None:
    """oci.conf(5): it lies beside slurm.conf; then no runtime is looked for."""
    conf = tmp_path / "oci.conf"
    shim = make_shim({"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert (shim.hello["oci_conf"], shim.hello["oci_conf_sum"]) == ("", 0)
    assert shim.hello["runtime"]
    conf.write_text("RunTimeRun=x\n")
    shim = make_shim({"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert shim.hello["oci_conf"] == str(conf)
    assert shim.hello["oci_conf_sum"]
    assert shim.hello["runtime"] == ""
    assert len(json.dumps(shim.hello)) < 1000


@ONE
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_what_slurm_signals(site: BySite, number: int) -> None:
    """It is for RunTimeRun, which passes it on, as slurmstepd would have it."""
    shim, streams = site.shim, site.shim.streams("stdout")
    out = shim.output[streams["stdout"]]
    script = "trap 'echo got' USR1 TERM; echo up; while :; do sleep 0.05; done"
    fields = site.fields(site.commands(runs=True))
    assert "error" not in site.create("sh", "-c", script, streams=streams, site=fields)
    shim.process.send_signal(number)
    assert shim.call("start", id="a") == {}
    shim.until("the first", lambda: out.split() == [b"up", b"got"])
    time.sleep(1.2)  # Slurm says some twice
    shim.process.send_signal(number)
    shim.until("the second", lambda: out.split() == [b"up", b"got", b"got"])
