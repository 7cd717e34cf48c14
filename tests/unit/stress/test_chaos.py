"""What tools/chaos makes of a seed, and what it makes of what it has seen."""

import importlib
import itertools
from pathlib import Path

import msgspec
import pytest

from tests.stress.chaos import points
from tests.stress.chaos.census import given_twice, left_in, not_made
from tests.stress.chaos.faults import (
    CREATED,
    CREATING,
    DELETING,
    ENDING,
    ENGINES,
    NONE,
    RUNNING,
    WAITING,
    WATCHED,
    Fault,
    Moment,
)
from tests.stress.chaos.forwards import FORWARDS
from tests.stress.chaos.jobs import INSIDE, PLACES, in_jobs
from tests.stress.chaos.plan import (
    GROUP,
    Plan,
    draw,
    draw_in_pod,
    draw_inside,
    in_pods,
    with_linger,
)
from tests.stress.chaos.pools import POOLED, in_pool
from tests.stress.chaos.seen import Answer, Kind, Seen, judge
from tests.stress.chaos.table import FAULTS, find

KILLED = Fault("anchor-kill", "anchor", "KILL", (RUNNING,), "", ends=frozenset({-9}))
REFUSED = Answer(1, "", "scrun: it is not possible\n")


def plan(fault: Fault = NONE, moment: Moment | None = None, kind: str = "lines") -> Plan:
    return Plan(1, "slurm", kind, fault, moment, 0.0, 1.0, 44, (2, 1), force=True)


def seen(**other: object) -> Seen:
    fine = Seen(
        create=Answer(0),
        start=Answer(0),
        anchor=44,
        state={"status": "stopped", "exit_status": "44"},
        deletes=[Answer(0)],
        out=b"1\n2\n1\n",
        expected=b"1\n2\n1\n",
        own=frozenset({44}),
    )
    return msgspec.structs.replace(fine, **other)


def kinds(of: Plan, what: Seen) -> list[Kind]:
    return [problem.kind for problem in judge(of, what)]


def test_a_container_depends_on_the_seed_and_its_number_alone() -> None:
    drawn = [draw(7, number, ENGINES, FAULTS) for number in range(300)]
    assert drawn == [draw(7, number, ENGINES, FAULTS) for number in range(300)]
    assert drawn != [draw(8, number, ENGINES, FAULTS) for number in range(300)]


def test_every_fault_comes_at_each_of_its_moments() -> None:
    drawn = [draw(1, number, ENGINES, FAULTS) for number in range(25000)]
    seen_ = {(plan.fault.name, plan.moment) for plan in drawn}
    assert seen_ == {
        (fault.name, moment)
        for fault in FAULTS
        for engine in fault.engines
        for moment in fault.moments_on(engine)
    } | {("none", None)}
    for plan_ in drawn:
        assert plan_.engine in plan_.fault.engines
        assert plan_.kind in plan_.fault.kinds
        assert plan_.waits or plan_.moment is not WAITING
        assert plan_.engine == "slurm" or not plan_.waits


@pytest.mark.parametrize("point", sorted(points.POINTS))
def test_every_point_is_a_function_of_the_product(point: str) -> None:
    function, side = points.POINTS[point]
    module, _, path = function.partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    assert callable(found)
    assert side in ("before", "after")


def test_an_outage_is_a_whole_groups() -> None:
    drawn = [draw(3, number, ENGINES, FAULTS) for number in range(8000)]
    groups = [drawn[first : first + GROUP] for first in range(0, len(drawn), GROUP)]
    disturbed = [group for group in groups if any(plan.fault.outage for plan in group)]
    assert disturbed
    for group in disturbed:
        assert len({(plan.fault.name, plan.engine) for plan in group}) == 1
    possible = {
        (fault.name, engine) for fault in FAULTS if fault.outage for engine in fault.engines
    }
    assert possible == {(group[0].fault.name, group[0].engine) for group in disturbed}


def test_one_member_of_a_pod_has_a_fault_and_the_others_what_is_theirs_too() -> None:
    faults = in_pods(find("all", launches=("shim",)))
    drawn = [draw_in_pod(5, number, 3, faults) for number in range(6000)]
    for first in range(0, len(drawn), 3):
        pod = drawn[first : first + 3]
        assert {plan.pod for plan in pod} == {first // 3}
        hit = [plan for plan in pod if plan.moment is not None]
        assert len(hit) <= 1
        for plan_ in pod:
            assert not any((plan_.waits, plan_.fault.own, plan_.fault.outage))
            if plan_.is_beside:
                assert plan_.fault.name == f"{hit[0].fault.name}, beside it"
                assert hit[0].fault.target in ("job", "salloc", "shim", "srun", "stream")
    shared = {plan.fault.target for plan in drawn if plan.is_beside}
    assert shared == {"job", "salloc", "shim", "srun", "stream"}
    by_srun = in_pods(find("srun", launches=("container",)))  # each has a step of its own
    assert not any(draw_in_pod(5, number, 3, by_srun).is_beside for number in range(300))


def test_a_member_beside_one_that_was_hit_may_end_with_it_or_not() -> None:
    [fault] = find("shim-kill")
    of = msgspec.structs.replace(plan(fault.beside_it), pod=1)
    assert kinds(of, seen(hit=True)) == []
    assert kinds(of, seen(hit=True, anchor=125, state=None, out=b"1\n")) == []
    assert kinds(of, seen(hit=True, create=REFUSED, start=None, anchor=None)) == []
    assert kinds(of, seen(anchor=125, state=None)) == [Kind.STATUS]
    assert kinds(of, seen(create=REFUSED, start=None, anchor=None)) == [Kind.WORDS]


def test_what_has_passed_on_its_job_is_not_hit_by_it() -> None:
    moments = {fault.moments for fault in with_linger(find("job-cancel,salloc-kill"))}
    assert all(not {ENDING, DELETING} & {*one} for one in moments)
    assert with_linger(find("salloc", DELETING)) == []
    assert with_linger(find("shim", ENDING)) == []
    assert with_linger(find("client")) == find("client")


def test_in_a_pool_what_hits_a_job_is_an_outage() -> None:
    faults = in_pool(find("all", launches=("shim",), more=POOLED))
    assert {*POOLED} <= {*faults}
    targets = {fault.target for fault in faults if not fault.outage}
    assert {"supervisor", "anchor", "client"} <= targets
    assert not {"job", "salloc", "shim", "srun", "stream", "image"} & targets
    assert not {fault.name for fault in POOLED} & {fault.name for fault in find("all")}


def test_in_a_job_nobody_allocates_another_one() -> None:
    faults = in_jobs(find("all", more=PLACES))
    assert {fault.name for fault in PLACES} <= {fault.name for fault in faults}
    assert not {fault.name for fault in PLACES} & {fault.name for fault in find("all")}
    drawn = [draw_inside(6, number, ENGINES, faults, INSIDE) for number in range(8000)]
    assert {(plan.inside, plan.engine) for plan in drawn} == {*itertools.product(INSIDE, ENGINES)}
    for plan_ in drawn:
        assert not plan_.waits
        assert plan_.moment is not WAITING
        assert not {"salloc", "job"} & {plan_.fault.target, *plan_.fault.beside}
        assert plan_.kind != "podman"
    assert drawn[7] == draw_inside(6, 7, ENGINES, faults, INSIDE)


@pytest.mark.parametrize(
    ("what", "problems"),
    [
        ({"anchor": -9, "out": b"1\n"}, []),
        ({"anchor": 33, "out": b"1\n", "deletes": [REFUSED, Answer(0)]}, []),
        ({"create": Answer(-9), "start": None, "anchor": None, "out": b""}, []),
        ({"anchor": 0}, [Kind.STATUS]),
        ({"deletes": [REFUSED]}, [Kind.LEAK]),
        ({"deletes": [Answer(1, "", "Traceback\n"), Answer(0)]}, [Kind.WORDS]),
        ({"left": ["its record"]}, [Kind.LEAK]),
        ({"out": b"2\n"}, [Kind.LINES]),
        ({"hit": False}, [Kind.HANG]),
    ],
)
def test_a_job_that_is_taken_away_with_all_that_was_called_there(
    what: dict[str, object], problems: list[Kind]
) -> None:
    [fault] = find("place-cancel", more=PLACES)
    of = msgspec.structs.replace(plan(fault, RUNNING), inside="script")
    assert kinds(of, seen(lost=True, **{"hit": True, **what})) == problems


def test_faults_by_their_names() -> None:
    assert [fault.name for fault in find("anchor-kill,srun-term")] == ["anchor-kill", "srun-term"]
    assert {fault.target for fault in find("salloc")} == {"salloc"}
    assert len(find("quick")) < len(find("all")) == len(FAULTS)
    assert {fault.moments for fault in find("all", WAITING)} == {(WAITING,)}
    assert not find("srun", WAITING)
    with pytest.raises(KeyError, match="nothing"):
        find("nothing")


def test_who_makes_containers_decides_which_faults_there_are() -> None:
    by_srun, by_shims = find("all", launches=("container",)), find("all", launches=("shim",))
    assert {fault.name for fault in [*by_srun, *by_shims]} == {fault.name for fault in FAULTS}
    assert {fault.name for fault in find("srun", launches=("container",))} == {
        f"srun-{name}" for name in ("kill", "term", "int", "stop")
    }
    assert {fault.name for fault in find("srun", launches=("shim",))} == {
        f"step-{name}" for name in ("kill", "term", "int", "stop")
    }
    asked = "shim-kill,shim-stop,stream-reset,stream-blackhole,wrong-secret,ports-used-up"
    assert len(find(f"{asked},runtime-hang")) == 7
    with pytest.raises(KeyError, match="stream-reset"):
        find("stream-reset", launches=("container",))


def test_who_waits_for_a_runtime_that_hangs_is_ended() -> None:
    [fault] = find("runtime-hang")
    what = seen(hit=True, create=Answer(-15), start=None, anchor=None)
    assert kinds(plan(fault, CREATING), what) == []
    assert kinds(plan(), msgspec.structs.replace(what, hit=False)) == [Kind.WORDS]


def test_a_container_that_is_right() -> None:
    assert kinds(plan(), seen()) == []
    assert kinds(plan(KILLED, RUNNING), seen(hit=True, anchor=-9, out=b"1\n")) == []


@pytest.mark.parametrize(
    ("what", "problems"),
    [
        ({"anchor": 0}, [Kind.STATUS, Kind.STATUS]),
        ({"anchor": None}, [Kind.STATUS]),
        ({"state": {"status": "running"}}, [Kind.STATUS]),
        ({"state": {"status": "stopped", "exit_status": "0"}}, [Kind.STATUS]),
        ({"out": b"1\n2\n"}, [Kind.LINES]),
        ({"out": b"1\n1\n"}, [Kind.LINES]),
        ({"left": ["its record"]}, [Kind.LEAK]),
        ({"deletes": [Answer(0), REFUSED]}, [Kind.LEAK]),
        ({"deletes": [REFUSED, Answer(0)]}, [Kind.WORDS]),
        ({"hangs": ["start"]}, [Kind.HANG]),
        ({"create": REFUSED, "start": None}, [Kind.WORDS]),
        ({"executed": Answer(0, "executed\n")}, [Kind.STATUS]),
        ({"bad_client": "answered"}, [Kind.WORDS]),
    ],
)
def test_what_is_wrong_without_a_fault(what: dict[str, object], problems: list[Kind]) -> None:
    assert kinds(plan(), seen(**what)) == problems


@pytest.mark.parametrize(
    ("moment", "what", "problems"),
    [
        # it waits for the fault, so its own end cannot come before
        (RUNNING, {"anchor": 44}, [Kind.STATUS]),
        (RUNNING, {"anchor": 0, "out": b""}, [Kind.STATUS]),
        (CREATED, {"anchor": -9, "out": b""}, []),
        # a race
        (CREATING, {"anchor": 44}, []),
        (CREATING, {"anchor": -9, "out": b"1\n"}, []),
        (CREATING, {"anchor": -9, "out": b"2\n"}, [Kind.LINES]),
        (CREATING, {"create": REFUSED, "anchor": None}, []),
        (CREATING, {"create": Answer(1, "", "Traceback\n  x\n"), "anchor": None}, [Kind.WORDS]),
        (CREATING, {"create": Answer(-9), "anchor": None}, [Kind.WORDS]),
    ],
)
def test_what_is_wrong_with_a_fault(
    moment: Moment, what: dict[str, object], problems: list[Kind]
) -> None:
    of = plan(KILLED, moment)
    assert kinds(of, seen(hit=True, state=None, **what)) == problems


@pytest.mark.parametrize(
    ("what", "problems"),
    [
        ({"anchor": 143, "out": b""}, []),
        ({"anchor": 143, "out": b"scrun: job 7 is queued\r\n"}, []),
        ({"anchor": 143, "out": b"up\r\n"}, [Kind.LINES]),
        ({"anchor": 143, "out": b"", "staged_out": 1}, [Kind.LINES]),
        ({"anchor": 33, "out": b""}, [Kind.STATUS]),  # nobody was there who could have trapped it
        ({"anchor": 44, "out": b""}, [Kind.STATUS, Kind.LINES]),
        ({"anchor": 143, "out": b"", "state": {"status": "running"}}, [Kind.STATUS]),
    ],
)
def test_an_end_while_the_job_waits(what: dict[str, object], problems: list[Kind]) -> None:
    [fault] = find("anchor-term")
    state = {"status": "stopped", "exit_status": str(what["anchor"])}
    fine = seen(hit=True, state=state, expected=b"up\n")
    of = msgspec.structs.replace(plan(fault, WAITING, "terminal"), waits=True)
    assert kinds(of, msgspec.structs.replace(fine, **what)) == problems


def test_a_container_whose_job_waits_is_running_and_no_longer_waits_in_the_end() -> None:
    of = msgspec.structs.replace(plan(), waits=True)
    assert kinds(of, seen(waiting="running")) == []
    assert kinds(of, seen(waiting="created")) == [Kind.STATUS]
    state = {"status": "stopped", "exit_status": "44", "pending": "Dependency"}
    assert kinds(of, seen(state=state)) == [Kind.STATUS]


def test_the_anchor_of_a_script_on_this_machine_is_killed_like_others() -> None:
    """Its parent knows first, and with its own process it is the engine that does."""
    [fault] = find("anchor-kill")
    of = msgspec.structs.replace(plan(fault, RUNNING, "script"), engine="local")
    what = seen(hit=True, anchor=-9, state={"status": "running"}, staged_out=1, out=b"")
    assert kinds(of, what) == []
    [fault] = find("first-kill")
    of = msgspec.structs.replace(plan(fault, RUNNING), engine="local")
    what = seen(hit=True, anchor=137, state={"status": "running"}, out=b"")
    assert kinds(of, what) == [Kind.STATUS]


def test_who_is_hit_on_this_machine_is_there() -> None:
    """An anchor with a script alone; an OCI runtime below a running container, too."""
    for number in range(1000):
        drawn = draw(2, number, ["local"], find("anchor,first,runtime"))
        anchored = drawn.kind == "script"
        if drawn.fault.target == "anchor" and drawn.moment is not CREATING:
            assert anchored
        if drawn.fault.target == "runtime" and drawn.moment is RUNNING:
            assert anchored
        assert not (drawn.fault.target == "first" and anchored)


@pytest.mark.parametrize(
    "own_words",
    [
        "Fatal Python error: init_sys_streams: none\nKeyboardInterrupt\n",
        "python: failed to set __main__.__loader__\nTraceback (most):\n  x\nKeyboardInterrupt: \n",
    ],
)
def test_an_interpreter_that_was_interrupted_at_once(own_words: str) -> None:
    [fault] = find("client-int")
    deletes = [Answer(1, "", own_words), Answer(0)]
    assert kinds(plan(fault, DELETING), seen(hit=True, deletes=deletes)) == []
    assert kinds(plan(), seen(deletes=deletes)) == [Kind.WORDS]


@pytest.mark.parametrize(
    "out",
    [
        b"1\n2\nscrun: the supervisor was told to stop\r\r\n",
        b"1\n2\n4\r\nscrun: the supervisor was told to stop\r\r\n",
        b"1\n2\nslurmstepd: error: *** STEP 7.39 ON node1 CANCELLED AT 2026-11-28T14:53:50 ***\n",
        b"1\n2slurmstepd-node1: error: *** STEP 7.39 ON node1 CANCELLED AT 2026-11-28T14:53 ***\n",
    ],
)
def test_what_others_say_at_its_end_is_not_the_container_s(out: bytes) -> None:
    [fault] = find("supervisor-int")
    state = {"status": "stopped", "exit_status": "125"}
    what = seen(hit=True, anchor=125, state=state, out=out)
    assert kinds(plan(fault, RUNNING, "attach"), what) == []


@pytest.mark.parametrize(("moment", "problems"), [(CREATING, []), (RUNNING, [Kind.STATUS])])
def test_an_anchor_that_was_ended_before_it_had_traps(
    moment: Moment, problems: list[Kind]
) -> None:
    [fault] = find("anchor-term")
    what = seen(hit=True, anchor=-15, state={"status": "stopped", "exit_status": "137"}, out=b"")
    assert kinds(plan(fault, moment), what) == problems
    what.start = REFUSED
    assert kinds(plan(fault, moment), what) == problems


@pytest.mark.parametrize(
    ("kind", "status", "problems"),
    [("stubborn", 137, []), ("lines", 137, [Kind.STATUS]), ("stubborn", 44, [Kind.STATUS])],
)
def test_one_that_ignores_signals_is_killed(kind: str, status: int, problems: list[Kind]) -> None:
    [fault] = find("anchor-term")
    state = {"status": "stopped", "exit_status": str(status)}
    what = seen(hit=True, anchor=status, state=state, out=b"1\n2\n1\n")
    assert kinds(plan(fault, RUNNING, kind), what) == problems


def test_a_keeper_that_gets_sigint_before_its_first_line() -> None:
    words = 'Traceback (most recent call last):\n  File "keeper.py", line {}, in <module>\n'
    words += "KeyboardInterrupt\nscrun: the container could not be created: the runtime was "
    words += "killed by signal 2 (SIGINT)\n"
    [fault] = find("runtime-int")
    early = seen(hit=True, create=Answer(1, "", words.format(0)))
    assert kinds(plan(fault, CREATING), early) == []
    late = seen(hit=True, create=Answer(1, "", words.format(7)))
    assert kinds(plan(fault, CREATING), late) == [Kind.WORDS]


def test_what_could_not_be_started_has_written_nothing() -> None:
    [fault] = find("answer-stranger")
    what = seen(hit=True, start=REFUSED, anchor=137, state=None, out=b"", own=frozenset({137}))
    assert kinds(plan(fault, CREATED, "kill"), what) == []
    what.start = Answer(0)
    assert kinds(plan(fault, CREATED, "kill"), what) == [Kind.LINES]


def test_a_number_that_was_given_twice(tmp_path: Path) -> None:
    conf = tmp_path / "etc" / "slurm.conf"
    line = (
        "[2026-11-21T23:51:20.991] sched: _slurm_rpc_allocate_resources JobId={} NodeList=node1\n"
    )
    (tmp_path / "log").mkdir()
    text = "".join(map(line.format, (36, 37, 3, 36)))
    (tmp_path / "log" / "slurmctld.log").write_text(text)
    words = 'level=info msg="the job is {}"\n'
    assert given_twice(str(conf), words.format(36)) == "36"
    assert given_twice(str(conf), words.format(37)) == ""
    assert given_twice(str(conf), words.format(3)) == ""
    assert given_twice(str(conf), "") == ""
    assert given_twice("/none/etc/slurm.conf", words.format(36)) == ""


def test_a_step_that_a_node_could_not_make() -> None:
    words = "standard error: 'slurmstepd-node2: error: proctrack_g_add: Bad address\\n'"
    log = 'msg="srun: error: task 0 launch failed: Slurmd could not execve job"'
    assert not_made(words, log)
    assert not not_made(words, "")
    assert not not_made("", log)


def test_what_may_stay_in_a_root_directory(tmp_path: Path) -> None:
    """The mark of who has looked, and a log without a fault of scrun's own."""
    (tmp_path / "@looked").touch()
    log = tmp_path / "@supervisor.log"
    log.write_text(
        'level=warning msg="job 7 belongs to a dead supervisor: releasing it"\n'
        'level=error msg="RuntimeError: can\'t start new thread"\n'
        'level=error msg="OSError: [Errno 28] No space left on device"\n'
    )
    assert left_in(str(tmp_path)) == []
    (tmp_path / "c1").mkdir()
    log.write_text('level=error msg="ValueError: 7"\n')
    assert left_in(str(tmp_path)) == ["c1", "@supervisor.log: ValueError: 7"]
    assert left_in(f"{tmp_path}/none") == []


@pytest.mark.parametrize(
    "name", ["supervisor-kill", "supervisor-term", "supervisors-kill", "supervisors-term"]
)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("what", "problems"),
    [
        ({}, []),
        ({"anchor": 125, "state": None, "out": b"1\n"}, [Kind.STATUS]),
        ({"state": {"status": "stopped"}}, [Kind.STATUS]),
        ({"out": b"1\n2\n"}, [Kind.LINES]),
        ({"start": REFUSED}, [Kind.WORDS]),
        ({"states": [REFUSED]}, [Kind.WORDS]),
        ({"kills": [REFUSED]}, [Kind.WORDS]),
        ({"deletes": [REFUSED, Answer(0)]}, [Kind.WORDS]),
        ({"executed": REFUSED}, [Kind.STATUS]),
    ],
)
def test_nothing_shows_of_a_supervisor_that_is_killed(
    name: str, engine: str, what: dict[str, object], problems: list[Kind]
) -> None:
    [fault] = find(name)
    waits = {False, engine == "slurm"}
    for moment, waiting in itertools.product(fault.moments_on(engine), waits):
        of = msgspec.structs.replace(plan(fault, moment), engine=engine, waits=waiting)
        if moment is CREATING:
            assert Kind.STATUS not in kinds(of, seen(hit=True, state=None, anchor=125))
            assert kinds(of, seen(hit=True, create=REFUSED, start=None, anchor=None)) == []
        else:
            assert kinds(of, seen(hit=True, **what)) == problems


def test_a_program_of_srun_ends_with_the_supervisor() -> None:
    [fault] = find("supervisor-kill")
    of = plan(fault, RUNNING, "exec")
    ended = seen(hit=True, executed=Answer(125, "executed\n"), exec_lasts=False)
    assert kinds(of, ended) == []
    assert kinds(of, msgspec.structs.replace(ended, exec_lasts=True)) == [Kind.STATUS]
    assert kinds(plan(kind="exec"), ended) == [Kind.STATUS]


@pytest.mark.parametrize(
    ("answer", "problems"),
    [
        (Answer(0, "1\n2\n"), []),
        (Answer(1, "1\n2\n"), [Kind.STATUS]),
        (Answer(0, "1\n2\n", "scrun: lost\n"), [Kind.STATUS]),
        (Answer(0, "1\n"), [Kind.LINES]),
        (Answer(0, "1\n2\n2\n"), [Kind.LINES]),
        (Answer(0, "scrun: pending: PoolResources\n1\n2\n"), []),
    ],
)
def test_who_watches_sees_all_once(answer: Answer, problems: list[Kind]) -> None:
    watched = [("logs", answer, Answer(0, "1\n2\n"))]
    [killed] = find("supervisor-kill")
    for of in (plan(killed, RUNNING, "logs"), plan(kind="logs")):
        assert kinds(of, seen(hit=True, watched=watched)) == problems
    [ended] = find("supervisor-int")
    what = seen(hit=True, anchor=125, state=None, watched=watched)
    assert kinds(plan(ended, RUNNING, "logs"), what) == []


@pytest.mark.parametrize(
    ("name", "breaks"),
    [
        ("supervisor-kill", True),
        ("forward-kill", True),
        ("shim-kill", True),
        ("forward-stop", False),
        ("shim-stop", False),
        ("keeper-kill", False),
    ],
)
def test_a_forwarded_connection_breaks_by_what_reaches_it_alone(
    name: str, *, breaks: bool
) -> None:
    [fault] = find(name, more=FORWARDS)
    problems = [] if breaks else [Kind.LINES]
    hit = seen(hit=True, anchor=125 if name == "shim-kill" else 44, state=None, broken=1)
    assert kinds(plan(fault, RUNNING), hit) == problems
    assert kinds(plan(fault, RUNNING), seen(broken=1)) == [Kind.LINES]
    assert kinds(plan(fault, RUNNING), msgspec.structs.replace(hit, wrong_answers=["no"]))


@pytest.mark.parametrize(
    ("name", "answer", "problems"),
    [
        ("forward-kill", Answer(-9, "8 -> 8\n"), []),
        ("forward-kill", Answer(2, "8 -> 8\n"), [Kind.STATUS]),
        ("answer-stranger", REFUSED, []),
        ("answer-stranger", Answer(1), [Kind.WORDS]),
        ("keeper-stop", REFUSED, [Kind.WORDS]),
        ("supervisor-kill", Answer(-9, "8 -> 8\n"), [Kind.STATUS]),
        ("supervisor-kill", Answer(0, ""), [Kind.LINES]),
    ],
)
def test_a_forward_ends_with_its_container(
    name: str, answer: Answer, problems: list[Kind]
) -> None:
    [fault] = find(name, more=FORWARDS)
    what = seen(hit=True, watched=[("forward", answer, Answer(0, "8 -> 8\n"))])
    for kind in ("lines", "program"):
        assert kinds(plan(fault, RUNNING, kind), what) == problems


def test_who_watches_does_so_while_there_is_something_to_see() -> None:
    drawn = [draw(4, number, ENGINES, find("supervisor")) for number in range(4000)]
    seen_ = {(one.kind, one.moment) for one in drawn if one.kind in WATCHED}
    assert seen_ == {("program", RUNNING)} | {
        (kind, moment)
        for kind in ("logs", "attach")
        for moment in (CREATING, RUNNING, ENDING, DELETING)
    }
    assert not any(one.waits for one in drawn if one.kind in WATCHED)
