"""What scrun doctor makes of what it sees, without a machine around it."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trio

from scrun.cli.parse import parse
from scrun.core.errors import SettingsError
from scrun.install import needs, podman
from scrun.settings.file.load import Settings, Slurm
from scrun.settings.oci_conf.commands import program_of
from scrun.settings.oci_conf.parse import parse_oci_conf
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.programs.doctor import (
    cluster,
    containers,
    job_trial,
    machine,
    main,
)
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, Reporter, run_tool
from scrun.supervisor.programs.doctor.findings import (
    Finding,
    Report,
    fail,
    json_text,
    ok,
    text_line,
)
from tests.harness import users

CONF = """
RunTimeRun="exec crun run --bundle=%b %u.%j"
RunTimeKill="crun kill %u.%j TERM"
RunTimeDelete="FOO=1 /usr/bin/crun delete --force %u.%j"
"""


# --- how it is told


def test_lines() -> None:
    good, bad = ok("fine"), fail("x\n\033y", "do z")
    assert text_line("a", good, colour=False) == "ok    a: fine"
    assert text_line("b\n", bad, colour=False) == "fail  b; : x; \\x1by; do z"
    assert text_line("a", good, colour=True) == "\033[32mok  \033[0m  a: fine"
    assert json.loads(json_text({"a": good, "b\n": bad})) == [
        {"name": "a", "status": "ok", "finding": "fine", "remedy": ""},
        {"name": "b\n", "status": "fail", "finding": "x\n\033y", "remedy": "do z"},
    ]


async def test_a_report_keeps_its_order() -> None:
    report = Report(["a", "b"])
    report.put("b", ok("first"))
    report.put("b", fail("second", ""))
    got: list[tuple[str, Finding]] = []
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def read() -> None:
            got.extend([entry async for entry in report])

        await trio.testing.wait_all_tasks_blocked()
        assert got == []
        assert report.missing(["a", "b"]) == ["a"]
        report.put("a", ok(""))
    assert got == [("a", ok("")), ("b", ok("first"))]


async def _nothing(call: DoctorCall, report: Reporter) -> None:
    report("a", ok("seen"))


async def _hangs(call: DoctorCall, report: Reporter) -> None:
    await trio.sleep_forever()


async def _refused(call: DoctorCall, report: Reporter) -> None:
    async with trio.open_nursery():
        raise SettingsError("no sense")


async def _missing(call: DoctorCall, report: Reporter) -> None:
    open("/nonexistent").close()  # noqa: ASYNC230


async def _fault(call: DoctorCall, report: Reporter) -> None:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("run", "status", "text"),
    [
        (_nothing, "ok", "seen"),
        (_hangs, "fail", "no answer within 5 s"),
        (_refused, "fail", "no sense"),
        (_missing, "fail", "/nonexistent: No such file or directory"),
        (_fault, "fail", "internal error: KeyError: 'x'"),
    ],
)
async def test_a_check_always_tells_something(
    autojump_clock: Any,
    run: Callable[[DoctorCall, Reporter], Awaitable[None]],
    status: str,
    text: str,
) -> None:
    report = Report(["a", "b"])
    await main._examine(Check(("a", "b"), run, deadline=5), cast("DoctorCall", None), report)
    first, second = [found async for _, found in report]
    assert (first.status, first.text) == (status, text)
    assert (second.status, second.text) == ("warn", "not tried")


def test_every_finding_has_one_place() -> None:
    for some in (containers.CHECKS, job_trial.CHECKS):
        names = [
            name for check in (*main.CHECKS, containers.BY_HAND, *some) for name in check.names
        ]
        assert len(names) == len(set(names))


@pytest.mark.parametrize(("launch", "status"), [("auto", "ok"), ("container", "warn")])
async def test_an_oci_conf_that_nobody_needs_is_not_missed(
    tmp_path: Path, launch: Any, status: str
) -> None:
    """A cluster whose nodes have a shim needs none; it was a warning there."""
    settings = Settings(engine="slurm", slurm=Slurm(launch=launch))
    conf, setting = str(tmp_path / "slurm.conf"), ChildEnv({})
    call = DoctorCall(
        parse(["doctor"]), setting, "/", settings, str(tmp_path), False, None, None, conf, {}
    )
    found = await containers._by_hand(call)
    assert found.status == status
    assert found.text == "not needed: no oci.conf" or "No such file" in found.text


async def test_another_scrun_that_comes_first_in_path(tmp_path: Path) -> None:
    """Slurm's own, which Debian 13 has in /usr/bin."""
    (other := tmp_path / "scrun").write_text("#!/bin/sh\necho slurm-wlm 24.11.5\n")
    other.chmod(0o755)
    setting = ChildEnv({"PATH": f"{tmp_path}:{users.PATH}"})
    call = DoctorCall(
        parse(["doctor"]), setting, "/", Settings(), str(tmp_path), False, None, None, None, {}
    )
    found = await machine._versions(call)
    assert found.status == "warn"
    assert f"; {other}, another scrun, comes first in PATH" in found.text


async def test_a_tool_that_is_given_up_is_ended() -> None:
    setting = ChildEnv({"PATH": users.PATH})
    with trio.move_on_after(0.2) as scope:
        await run_tool(["sh", "-c", "trap '' TERM; exec sleep 60"], setting)
    assert scope.cancelled_caught
    done = await run_tool(["sh", "-c", "echo a; echo; echo b >&2; exit 3"], setting)
    assert (done.status, done.said) == (3, ["a", "b"])
    assert (await run_tool(["false"], setting)).said == ["it ended with 1"]


# --- this machine


@pytest.mark.covers("guide the kernel lets users make containers")
@pytest.mark.parametrize(
    ("most", "unprivileged", "restricted", "remedy"),
    [
        (0, 0, None, "user.max_user_namespaces="),
        (9, 0, 1, "unprivileged_userns_clone=1"),
        (9, None, 1, "apparmor_restrict_unprivileged_userns=0"),
        (None, None, None, "check what forbids it"),
    ],
)
def test_namespaces(
    most: int | None, unprivileged: int | None, restricted: int | None, remedy: str
) -> None:
    files = {
        "user/max_user_namespaces": most,
        "kernel/unprivileged_userns_clone": unprivileged,
        "kernel/apparmor_restrict_unprivileged_userns": restricted,
    }
    seen = {name: value for name, value in files.items() if value is not None}
    needed, other = (machine.judge_namespaces("no", seen, needed=need) for need in (True, False))
    assert (needed.status, other.status) == ("fail", "warn")
    assert remedy in needed.remedy
    assert "podman" in other.remedy
    assert (
        machine.judge_namespaces("", {"user/max_user_namespaces": 0}, needed=True).status == "ok"
    )


@pytest.mark.parametrize(
    ("subuid", "subgid", "status"),
    [
        ("u:100000:65536\n", "7:100000:65536", "ok"),
        ("x:1:65536\nu:100000:30000\nu:200000:35536", "u:100000:65536", "ok"),
        ("u:100000:65536", "", "warn"),
        ("uu:100000:65536\nu:1\nu:1:x\n# u", None, "warn"),
        (None, None, "warn"),
    ],
)
def test_subordinate_ids(subuid: str | None, subgid: str | None, status: str) -> None:
    finding = machine.judge_ids("u", 7, subuid, subgid)
    assert finding.status == status
    assert ("usermod" in finding.remedy) is (status == "warn")


def test_packages() -> None:
    assert machine.judge_packages([], "").status == "ok"
    finding = machine.judge_packages([needs.ID_MAPS], "as root: apt-get install uidmap")
    assert text_line("packages", finding, colour=False) == (
        "warn  packages: not installed: newuidmap; as root: apt-get install uidmap"
    )


@pytest.mark.parametrize(
    ("value", "owner", "mode", "uid", "status"),
    [
        ("", None, 0, 7, "warn"),
        ("", None, 0, 0, "ok"),
        ("run", None, 0, 7, "fail"),
        ("/run", None, 0, 7, "fail"),
        ("/run", 8, 0o40700, 7, "fail"),
        ("/run", 7, 0o40750, 7, "warn"),
        ("/run", 7, 0o40700, 7, "ok"),
    ],
)
def test_runtime_dir(value: str, owner: int | None, mode: int, uid: int, status: str) -> None:
    assert machine.judge_runtime_dir(value, owner, mode, uid).status == status


# --- Slurm


@pytest.mark.parametrize(
    ("status", "lines", "judged", "text"),
    [
        (0, ["Slurmctld(primary) at a is UP"], "ok", "Slurmctld(primary) at a is UP"),
        (0, ["Slurmctld(primary) at a is DOWN", "Slurmctld(backup) at b is UP"], "ok", "b is UP"),
        (1, ["Slurmctld(primary) at a is DOWN", "***", "** RESTORE", "***"], "fail", "a is DOWN"),
        (1, ["scontrol: error: munge", "scontrol: fatal: x"], "fail", "scontrol: fatal: x"),
        (1, [], "fail", "ended with 1"),
    ],
)
def test_ping(status: int, lines: list[str], judged: str, text: str) -> None:
    finding = cluster.judge_ping(status, tuple(lines))
    assert finding.status == judged
    assert finding.text.endswith(text)


@pytest.mark.parametrize(
    ("lines", "status", "text"),
    [
        (["test up 2 idle", "test up 1 down*"], "ok", "2 of 3 can run jobs"),
        (["a up 1 mix-", "a up 1 drain", "b up 3 idle~"], "ok", "4 of 5 can run jobs"),
        (["a down 2 idle", "a up 1 idle*", "a up 1 drng"], "warn", "none of 4 can run jobs now"),
        (["nonsense"], "warn", "none of 0 can run jobs now"),
    ],
)
def test_nodes(lines: list[str], status: str, text: str) -> None:
    finding = cluster.judge_nodes(tuple(lines))
    assert (finding.status, finding.text) == (status, text)


@pytest.mark.parametrize(
    ("status", "said", "flags", "judged", "text"),
    [
        (0, "it ended with 0", "job_script,Job_Comment", "ok", "names and images"),
        (0, "it ended with 0", "", "ok", "lacks job_comment"),
        (0, "it ended with 0", "no_job_comment", "ok", "lacks job_comment"),
        (1, "sacct: error: Connection refused", "job_comment", "warn", "Connection refused"),
    ],
)
def test_accounting(status: int, said: str, flags: str, judged: str, text: str) -> None:
    finding = cluster.judge_accounting(status, said, flags)
    assert finding.status == judged
    assert text in finding.text


@pytest.mark.parametrize(
    ("pattern", "program"),
    [
        ("exec crun --root=/x run %b", "crun"),
        ("A=1 exec B='2 3' /usr/bin/runc run", "/usr/bin/runc"),
        ("", None),
        ("exec", None),
        ("$(which crun) run", None),
        ("'crun", None),
        ("(crun run)", None),
    ],
)
def test_program_of_a_command(pattern: str, program: str | None) -> None:
    assert program_of(pattern) == program


@pytest.mark.parametrize(
    ("text", "missing", "status", "complaint"),
    [
        (CONF, {}, "ok", "RunTimeRun"),
        (CONF.replace("exec ", ""), {}, "warn", "does not begin with exec"),
        (CONF + "EnvExclude=x\nenvexclude=y", {}, "warn", "EnvExclude is set twice"),
        (CONF, {"RunTimeRun": "crun"}, "warn", "crun (RunTimeRun) is not on this machine"),
        ("IgnoreFileConfigJson=true\nRunTimeRun=x", {}, "fail", "runs no OCI runtime"),
    ],
)
def test_oci_conf(text: str, missing: dict[str, str], status: str, complaint: str) -> None:
    finding = cluster.judge_oci_conf("/oci.conf", parse_oci_conf(text), missing)
    assert finding.status == status
    assert complaint in finding.text
    assert bool(finding.remedy) is (status != "ok")


@pytest.mark.parametrize("text", [CONF.replace("exec ", ""), f"{CONF}IgnoreFileConfigJson=true\n"])
def test_an_oci_conf_whose_commands_a_shim_runs(text: str) -> None:
    """What only slurmstepd minds is no complaint then."""
    conf = parse_oci_conf(text)
    finding = cluster.judge_oci_conf("/oci.conf", conf, {}, mounts_spool=True, by_slurm=False)
    assert finding.status == "ok"


def test_where_slurm_mounts_the_directory_of_a_step() -> None:
    named = parse_oci_conf(CONF + "MountSpoolDir=/dev/slurm\n")
    assert cluster.judge_oci_conf("/oci.conf", named, {}, mounts_spool=True).status == "ok"
    finding = cluster.judge_oci_conf("/oci.conf", parse_oci_conf(CONF), {}, mounts_spool=True)
    assert finding.status == "warn"
    assert "MountSpoolDir is not set" in finding.text
    assert "MountSpoolDir=/dev/slurm" in finding.remedy


def test_munge_socket() -> None:
    assert cluster.munge_socket("") == "/run/munge/munge.socket.2"
    assert cluster.munge_socket("ttl=60, socket=/x/y") == "/x/y"


# --- on a node


@pytest.mark.parametrize(
    ("lines", "status", "text"),
    [
        (["python Python 3.6.8", "runtime crun version 1.8"], "ok", "crun version 1.8, called by"),
        (["python Python 3.14.0", "runtime runc version 1.1"], "ok", "runc version 1.1"),
        (["python Python 3.5.3", "runtime crun version 1.8"], "fail", "3.6 or newer is missing"),
        (["python Python 2.7.18", "runtime crun version 1.8"], "fail", "3.6 or newer is missing"),
        (["runtime crun version 1.8"], "fail", "3.6 or newer is missing"),
        (["python Python 3.11.2"], "fail", "neither crun nor runc works there"),
    ],
)
def test_a_node_for_a_shim(lines: list[str], status: str, text: str) -> None:
    found = job_trial.judge_node_for_shim(job_trial.read(["node n1", *lines]))
    assert found.status == status
    assert found.text.startswith("n1: ")
    assert text in found.text


def test_what_a_node_tells() -> None:
    seen = job_trial.read(
        ["node n1", "runtime crun version 1", "token t", "node n2", "noise", "token"]
    )
    assert seen == job_trial.NodeReport("n1", "crun version 1", "t")
    assert job_trial.read([]) == job_trial.NodeReport("?", "", "")
    assert job_trial.judge_runtime("crun", seen, "/oci.conf", "auto").status == "ok"
    without = job_trial.NodeReport("n1", "", "")
    lacking = job_trial.judge_runtime("/opt/crun", without, "/oci.conf", "auto")
    assert (lacking.status, lacking.text) == ("fail", "n1: /opt/crun is not installed")
    assert job_trial.judge_runtime(None, seen, "/oci.conf", "auto").status == "warn"
    assert job_trial.judge_directory("/d", seen, "t", scripted=False).status == "ok"
    assert job_trial.judge_directory("/d", seen, "u", scripted=True).status == "warn"
    elsewhere = job_trial.judge_directory("/d", seen, "u", scripted=False)
    assert (elsewhere.status, "scratch" in elsewhere.remedy) == ("fail", True)


@pytest.mark.parametrize(
    ("launch", "python", "status", "text"),
    [
        ("auto", "Python 3.11.2", "ok", "n1: crun, crun 1.8, called by a shim of Python 3.11.2"),
        ("shim", "Python 3.6.8", "ok", "n1: crun, crun 1.8, called by a shim of Python 3.6.8"),
        (
            "auto",
            "Python 2.7",
            "ok",
            "n1: crun, crun 1.8, called by Slurm: Python 3.6 or newer is",
        ),
        ("shim", "", "fail", "n1: Python 3.6 or newer is missing, which a shim needs"),
        ("container", "", "ok", "n1: crun, crun 1.8"),
    ],
)
def test_who_calls_the_runtime(launch: str, python: str, status: str, text: str) -> None:
    seen = job_trial.NodeReport("n1", "crun 1.8", "t", python)
    found = job_trial.judge_runtime("crun", seen, "/oci.conf", launch)
    assert found.status == status
    assert found.text.startswith(text)
    assert found.text == text or launch == "auto"


async def test_the_script_of_a_node(tmp_path: Any) -> None:
    file = tmp_path / "it's"
    file.write_text("token-1")
    setting = ChildEnv({"PATH": users.PATH, "SLURMD_NODENAME": "n1"})
    for program, runtime in (("sh", "-"), ("no such", ""), (None, "")):
        done = await run_tool(["sh", "-c", job_trial.script(program, str(file))], setting)
        seen = job_trial.read(list(done.lines))
        assert (seen.node, seen.token, bool(seen.runtime)) == ("n1", "token-1", bool(runtime))


@pytest.mark.parametrize("conf", ["oci.conf", "none"])
async def test_a_crun_that_has_no_directory_of_its_own(tmp_path: Any, conf: str) -> None:
    crun = tmp_path / "crun"
    crun.write_text("#!/bin/sh\n[ $1 = --root ] || exit 1\necho crun version 1.21\n")
    crun.chmod(0o755)
    asks = job_trial.script("crun", "/x") if conf == "oci.conf" else job_trial._RUNTIME
    done = await run_tool(["sh", "-c", asks], ChildEnv({"PATH": f"{tmp_path}:{users.PATH}"}))
    assert job_trial.read(list(done.lines)).runtime == "crun version 1.21"


# --- the container


@pytest.mark.parametrize(
    ("state", "said", "status", "text"),
    [
        ({"org.scrun.exit_status": "0", "org.scrun.engine": "slurm"}, "", "ok", "deleted (slurm)"),
        ({"org.scrun.exit_status": "1"}, "crun: no", "fail", "ended with status 1: crun: no"),
        (
            {"org.scrun.exit_status": "250", "org.scrun.message": "job 1 timed out"},
            "crun: no", "fail", "ended with status 250: job 1 timed out",
        ),
        ({}, "", "fail", "its state has no exit status"),
    ],
)  # fmt: skip
def test_how_the_container_ended(state: dict[str, str], said: str, status: str, text: str) -> None:
    finding = containers.judge_state(json.dumps({"annotations": state}), said)
    assert finding.status == status
    assert finding.text.endswith(text)
    assert containers.judge_state("nonsense", "").status == "fail"


def test_libraries() -> None:
    text = (
        "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64/libc.so.6 (0x00007f)\n"
        "\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibx.so => not found\n"
    )
    assert containers.libraries(text) == ["/lib/x86_64/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
    assert containers.libraries("\tnot a dynamic executable\n") == []


# --- engines


@pytest.mark.parametrize(
    ("driver", "engine", "status"),
    [
        ("overlay", "slurm", "ok"),
        ("vfs", "slurm", "ok"),
        ("btrfs", "slurm", "warn"),
        ("btrfs", "local", "ok"),
    ],
)
def test_podmans_storage(driver: str, engine: str, status: str) -> None:
    storage = podman.Storage(driver, "/home/a/storage")
    assert machine.judge_storage(storage, engine).status == status
    found = machine.judge_storage(storage, engine, "Operation not permitted")
    assert found.status == "warn"
    assert found.text == (
        "/home/a/storage: files there cannot have an image's users (Operation not permitted)"
    )


def test_podman() -> None:
    engine: dict[str, object] = {"runtimes": {"scrun": ["/a"]}, "scrun named by": "/c"}
    assert machine.judge_podman({**engine, "cgroup_manager": "cgroupfs"}, "/a").text == (
        "knows scrun as /a; cgroup manager cgroupfs"
    )
    assert machine.judge_podman({**engine, "runtime": "scrun"}, "/a").text.endswith("its default")
    gone = machine.judge_podman(engine, None)
    assert (gone.status, gone.text) == ("warn", "/c: /a cannot be run")
    assert machine.judge_podman({"runtimes": {}}, None).remedy == "run `scrun install podman`"


def test_docker() -> None:
    assert machine.judge_docker("/d", "/a", usable=True).status == "ok"
    assert machine.judge_docker("/d", "/a", usable=False).text == (
        "/d: runtimes.scrun: /a cannot be run"
    )
    assert machine.judge_docker("/d", "", usable=False).status == "warn"
    assert machine.judge_docker("/d", None, usable=False).remedy == "run `scrun install docker`"


def test_a_runtime_directory_that_goes_with_the_session() -> None:
    found = machine.judge_runtime_dir("/run/user/1000", 1000, 0o700, 1000, goes=True)
    assert found.status == "warn"
    assert "loginctl enable-linger" in found.remedy
