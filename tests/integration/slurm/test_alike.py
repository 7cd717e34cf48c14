"""Containers of a job's tasks that are made from a template, without a supervisor each.

The others are in test_place.py: that they have what programs of srun have there.
"""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeSite
from tests.harness.load import fill, spin
from tests.harness.nightly import nightly
from tests.harness.processes import signal_quietly
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

MANY = 32
TRAPS = (
    'for s in USR1 USR2 HUP INT; do trap "echo $s >>/out/$1" $s; done; '
    'trap "echo TERM >>/out/$1; exit 7" TERM; echo up >>/out/$1; '
    "while :; do sleep 0.05; done"
)


@pytest.fixture(params=["slurm-user", "slurm-root"])
def site(request: pytest.FixtureRequest, make_site: MakeSite) -> Site:
    """A place with a directory that its containers may write to."""
    made = make_site(request.param, settings="idle_timeout = 2\n")
    out = made.base / "b" / "out"
    out.mkdir()
    made.user.give(out)
    return made


def words(site: Site, *command: str, tasks: int = 1, options: tuple[str, ...] = ()) -> list[str]:
    """`srun scrun run` of an image, which is a directory."""
    # a node that still ends a job is passed over, and each has mounts of its own
    node = "--nodelist=node1"
    srun = ["srun", "--quiet", f"--job-name={site.base.name}", "-N1", node, f"-n{tasks}", "-O"]
    mount = f"--mount={site.base / 'b' / 'out'}:/out"
    run = [*site.command, "run", mount, *options, str(site.rootfs), *command]
    return [*site.user.prefix, *srun, *run]


def run(site: Site, *command: str, tasks: int = 1) -> "subprocess.CompletedProcess[str]":
    return run_program(
        words(site, *command, tasks=tasks), env=site.environment, cwd=site.base, timeout=120
    )


def records(site: Site) -> list[Path]:
    if not site.root.exists():
        return []
    return sorted(path for path in site.root.iterdir() if path.name[0] != "@")


def is_alone(record: Path) -> bool:
    """Whether a container's `run` has no supervisor for it."""
    return os.readlink(record / "supervisor") == "own"


def said(site: Site, name: str = "out") -> list[str]:
    file = site.base / "b" / "out" / name
    return file.read_text().split() if file.exists() else []


@contextmanager
def running(site: Site, tasks: int = 1) -> Iterator[tuple["subprocess.Popen[bytes]", list[Path]]]:
    """Containers of a step after one that was the first of their kind; their program traps."""
    script = f'set -- "$SLURM_PROCID"; [ -e /out/go ] || exit 0; {TRAPS}'
    assert run(site, "sh", "-c", script).returncode == 0
    (site.base / "b" / "out" / "go").touch()
    wait_while("the first one", lambda: records(site))
    process = subprocess.Popen(
        words(site, "sh", "-c", script, tasks=tasks),
        env=site.environment,
        cwd=site.base,
        stdin=subprocess.DEVNULL,
    )
    try:
        wait_until("they run", lambda: all(said(site, str(n)) for n in range(tasks)), 60)
        yield process, records(site)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        wait_while("the job", site.jobs, 60)


def test_all_tasks_of_a_step(site: Site) -> None:
    """Each is itself; one is staged, and nothing stays."""
    script = "echo $SLURM_PROCID >>/out/out; exit $((SLURM_PROCID % 3))"
    done = run(site, "sh", "-c", script, tasks=MANY)
    assert done.returncode == 2, done.stderr
    assert sorted(map(int, said(site))) == list(range(MANY))
    assert not records(site)
    [template] = [path for path in (site.root / "@templates").iterdir() if path.suffix == ""]
    assert template.stat().st_size
    again = template.stat().st_mtime_ns
    assert run(site, "sh", "-c", script, tasks=2).returncode == 1
    assert template.stat().st_mtime_ns == again


def config_of(record: Path) -> dict[str, Any]:
    text = (record / "config.json").read_text().replace(record.name, "ID")
    config: dict[str, Any] = json.loads(text)
    return config


def test_what_the_runtime_gets_is_the_same(site: Site) -> None:
    """That of the first, which a supervisor has staged, and those of the others."""
    process = subprocess.Popen(
        words(site, "sh", "-c", "echo up >>/out/out; exec sleep 100", tasks=3),
        env=site.environment,
        cwd=site.base,
        stdin=subprocess.DEVNULL,
    )
    try:
        wait_until("they run", lambda: len(said(site)) == 3, 60)
        found = records(site)
        assert sorted(map(is_alone, found)) == [False, True, True]
        configs = [config_of(record) for record in found]
        environments = [dict(e.split("=", 1) for e in c["process"].pop("env")) for c in configs]
        assert configs[0] == configs[1] == configs[2]
        own = {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_TASK_PID"}
        assert {env["SLURM_CONTAINER_ID"] for env in environments} == {"ID"}
        assert len({env["SLURM_PROCID"] for env in environments}) == 3
        for env in environments:
            for name in own:
                del env[name]
        assert environments[0] == environments[1] == environments[2]
        states = [json.loads((record / "state.json").read_text()) for record in found]
        varying = ("id", "pid", "created", "job_id", "staged", "supervisor")
        for state, record in zip(states, found, strict=True):
            assert state["id"] == record.name
            assert state["staged"] == str(record / "bundle")
            assert state["annotations"].pop("org.scrun.job_id") == state["job_id"]
            for name in ("task", "started"):
                state["annotations"].pop(f"org.scrun.{name}", "")
            for name in varying:
                del state[name]
        assert states[0] == states[1] == states[2]
    finally:
        for record in records(site):
            site.run("delete", "--force", record.name)
        process.kill()
        process.wait()
        wait_while("the job", site.jobs, 60)


def test_operations(site: Site) -> None:
    """Whoever asks for more than `state` gets a supervisor; the container does not notice."""
    with running(site) as (process, [record]):
        state = json.loads(site.must("state", record.name))
        assert (state["status"], state["id"]) == ("running", record.name)
        assert record.name in site.must("list", "--quiet")
        assert is_alone(record)
        assert site.must("exec", record.name, "echo", "within") == "within\n"
        assert not is_alone(record)
        assert "sleep" in site.must("ps", record.name)
        assert json.loads(site.must("state", record.name))["pid"] == state["pid"]
        site.must("kill", record.name, "USR1")
        wait_until("it has the signal", lambda: "USR1" in said(site, "0"))
        site.must("kill", record.name, "TERM")
        assert process.wait(60) == 7
        assert said(site, "0") == ["up", "USR1", "TERM"]
    assert not records(site)


@pytest.mark.parametrize("handed_over", [False, True])
def test_what_each_has_used(make_site: MakeSite, handed_over: bool) -> None:
    """The first one's supervisor says it, the others themselves, or a supervisor that has one."""
    site = make_site("slurm-user", settings="idle_timeout = 2\n[log]\nusage = true\n")
    out = site.base / "b" / "out"
    out.mkdir()
    site.user.give(out)
    wait = "while [ -e /out/go ]; do sleep 0.1; done"
    script = f"{spin(1)}; {fill(100)}; echo >>/out/up; {wait}"
    first = run(site, "sh", "-c", script)
    assert first.returncode == 0, first.stderr
    lines = first.stderr.splitlines()
    (out / "go").touch()
    argv = words(site, "sh", "-c", script, tasks=2)
    with subprocess.Popen(
        argv, env=site.environment, cwd=site.base, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_until("both are up", lambda: (out / "up").read_bytes() == b"\n" * 3, 60)
        assert [is_alone(record) for record in records(site)] == [True] * 2
        for record in records(site) if handed_over else ():
            site.must("exec", record.name, "true")
            assert not is_alone(record)
        (out / "go").unlink()
        lines += process.communicate(timeout=60)[1].splitlines()
        assert process.returncode == 0
    assert len(lines) == 3
    for line in lines:
        figures = r"scrun: used: ([0-9.]+) s, 1\.\d s of processor .*, 10[0-5]\.[0-9]MiB of memory"
        told = re.match(figures, line)
        assert told, lines
        assert 1 <= float(told[1]) < 30


def test_nobody_reads_what_each_has_used(make_site: MakeSite) -> None:
    """The status is there all the same."""
    site = make_site("slurm-user", settings="idle_timeout = 2\n[log]\nusage = true\n")
    (site.base / "b" / "out").mkdir()
    argv = words(site, "sh", "-c", "exit $((SLURM_PROCID + 3))", tasks=2)
    at = argv.index(site.command[0])
    closed = [*argv[:at], "sh", "-c", 'exec "$@" 2>/dev/full', "sh", *argv[at:]]
    for _ in range(2):  # by a supervisor, then from the template
        done = run_program(closed, env=site.environment, cwd=site.base, timeout=120)
        assert done.returncode == 4
        assert "used" not in done.stderr
    assert not records(site)


@pytest.mark.parametrize("asked", [nightly(("kill", "KILL")), ("delete", "--force")])
def test_is_ended_by_others(site: Site, asked: tuple[str, str]) -> None:
    command, word = asked
    with running(site) as (process, [record]):
        site.must(command, *([word, record.name] if command == "delete" else [record.name, word]))
        assert process.wait(60) == 137
    assert not records(site)


def test_several_ask_at_once(site: Site) -> None:
    with running(site) as (process, [record]):
        callers = [site.popen("exec", record.name, "echo", str(number)) for number in range(6)]
        for number, caller in enumerate(callers):
            out, errors = caller.communicate(timeout=60)
            assert (out.decode(), caller.returncode) == (f"{number}\n", 0), errors
        site.must("kill", record.name, "TERM")
        assert process.wait(60) == 7


@pytest.mark.parametrize("handed_over", [False, True])
def test_signals_of_slurm(site: Site, handed_over: bool) -> None:
    with running(site, tasks=3) as (process, found):
        [job] = site.jobs()
        if handed_over:
            for record in found:
                site.must("exec", record.name, "true")
        assert [is_alone(record) for record in found] == [not handed_over] * 3
        for number, name in enumerate(("USR1", "USR2", "HUP", "INT", "USR1")):
            words = ["scancel", f"--signal={name}", job.split()[0]]
            run_program([*site.user.prefix, *words], env=site.environment, check=True, timeout=60)
            wait_until("it came to each", partial(have_said, site, number + 2), 30)
        expected = ["up", "USR1", "USR2", "HUP", "INT", "USR1"]
        assert [said(site, task) for task in ("0", "1", "2")] == [expected] * 3
        words = ["scancel", "--signal=TERM", job.split()[0]]
        run_program([*site.user.prefix, *words], env=site.environment, check=True, timeout=60)
        assert process.wait(60) == 7  # at which its program ends
    assert not records(site)


def have_said(site: Site, count: int) -> bool:
    return all(len(said(site, task)) == count for task in ("0", "1", "2"))


def own_process(record: Path) -> int:
    pid: int = json.loads((record / "state.json").read_text())["pid"]
    return pid


def test_a_second_signal_does_not_end_what_handles_it(site: Site) -> None:
    with running(site) as (process, [record]):
        signal_quietly(own_process(record), signal.SIGINT)
        wait_until("it came", lambda: said(site, "0") == ["up", "INT"])
        time.sleep(1.1)  # of two within a second it would get one
        signal_quietly(own_process(record), signal.SIGINT)
        wait_until("it came again", lambda: said(site, "0") == ["up", "INT", "INT"])
        signal_quietly(own_process(record), signal.SIGTERM)
        assert process.wait(60) == 7
    assert not records(site)


def test_is_killed(site: Site) -> None:
    """Its keepalive ends the container, and the next supervisor removes what is left."""
    with running(site, tasks=2) as (process, [record, other]):
        signal_quietly(own_process(record))
        wait_while("the container", lambda: (record / "runtime" / record.name).exists())
        state = json.loads(site.must("state", record.name))
        assert state["status"] == "stopped"
        site.must("delete", record.name)
        assert not record.exists()
        site.must("kill", other.name, "TERM")
        process.wait(60)


def test_is_not_used_when_something_has_changed(site: Site) -> None:
    """The image, the settings: the next container is staged anew."""
    folder = site.root / "@templates"

    def times() -> dict[str, int]:
        return {p.name: p.stat().st_mtime_ns for p in folder.iterdir() if p.suffix == ""}

    assert run(site, "true").returncode == 0
    before = times()
    assert run(site, "true").returncode == 0
    assert times() == before
    (site.rootfs / "new").mkdir()
    site.user.give(site.rootfs / "new")
    assert run(site, "ls", "/new").returncode == 0
    assert run(site, "true").returncode == 0
    assert times() != before
    before = times()
    settings = Path(site.environment["SCRUN_CONFIG"])
    settings.write_text(settings.read_text() + "\n")
    assert run(site, "true").returncode == 0
    assert len(times()) == len(before) + 1


def test_program_that_is_gone(site: Site) -> None:
    """What the runtime refuses is done the usual way, which says why."""
    assert run(site, "true").returncode == 0
    (site.rootfs / "bin" / "true").unlink()
    done, other = run(site, "true"), run(site, "missing")
    assert done.returncode == other.returncode != 0
    line = other.stderr.splitlines()[0].replace("missing", "true")
    assert line in done.stderr
    assert not records(site)


def test_image_is_kept(site: Site) -> None:
    with running(site) as (process, [record]):
        image = json.loads((record / "state.json").read_text())["bundle"]
        held = [*Path(image).parent.glob(f"leases/{Path(image).name}/*")]
        assert record.name in "".join(lease.read_text() for lease in held)
        site.must("kill", record.name, "TERM")
        process.wait(60)
    held = [*Path(image).parent.glob(f"leases/{Path(image).name}/*")]
    assert record.name not in "".join(lease.read_text() for lease in held)


def test_root_may_ask(site: Site) -> None:
    with running(site) as (process, [record]):
        asked = [*site.command, "kill", record.name, "TERM"]
        run_program(asked, env=site.environment, check=True, timeout=60)
        assert process.wait(60) == 7


def test_closed_descriptors(site: Site) -> None:
    """None of the command's own becomes the program's."""
    plain = words(site, "sh", "-c", "readlink /proc/self/fd/0 >>/out/out")
    at = plain.index(site.command[0])
    closing = ["sh", "-c", 'exec "$@" <&-', "sh"]
    for _ in range(2):
        command = [*plain[:at], *closing, *plain[at:]]
        run_program(command, env=site.environment, cwd=site.base, check=True, timeout=60)
    assert said(site) == ["/dev/null"] * 2
