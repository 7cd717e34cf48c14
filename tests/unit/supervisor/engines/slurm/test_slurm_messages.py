"""What salloc and srun say, line by line as 22.05 said it, and what that means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrun.model.states import Ending, exited
from scrun.supervisor.engines.failures import program_failure
from scrun.supervisor.engines.slurm.job_state import (
    Exit,
    JobState,
    StepState,
    ending_of_step,
    step_exit,
)


def salloc(text: str) -> JobState:
    state = JobState()
    for line in text.strip().splitlines():
        state.feed(line)
    return state


def srun(text: str, tasks: int = 1) -> StepState:
    state = StepState(tasks)
    for line in text.strip().splitlines():
        state.feed(line)
    return state


GRANTED = "salloc: Granted job allocation 3537"
PENDING = """
salloc: Requested partition configuration not available now
salloc: Pending job allocation 3538
salloc: job 3538 queued and waiting for resources
"""
WAITED = """
salloc: Pending job allocation 3546
salloc: job 3546 queued and waiting for resources
salloc: job 3546 has been allocated resources
salloc: Granted job allocation 3546
"""


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: Slurm job 32000090 has expired",
        "srun: error: Unable to create step for job 7: Job/step already completing or completed",
        "srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
    ],
)
def test_a_step_for_which_there_is_no_job_any_more(line: str) -> None:
    """Why there is none, salloc tells."""
    assert srun(line).aborted


def test_a_tool_is_slowed_down_until_its_next_word() -> None:
    limited = "{}: RPC rate limited 2 time(s). Sleeping then trying again."
    assert salloc(limited.format("salloc")).slowed
    assert not salloc(limited.format("salloc") + "\n" + GRANTED).slowed
    assert srun(limited.format("srun")).slowed
    assert not srun(limited.format("srun") + "\nsrun: jobid 7: nodes(1)").slowed


@pytest.mark.parametrize(("text", "job"), [(GRANTED, "3537"), (WAITED, "3546")])
def test_salloc_granted(text: str, job: str) -> None:
    state = salloc(text)
    assert (state.job_id, state.granted, state.revoked, state.gone) == (job, True, False, False)


def test_salloc_pending() -> None:
    state = salloc(PENDING)
    assert (state.job_id, state.granted, state.revoked, state.gone) == (
        "3538",
        False,
        False,
        False,
    )
    assert state.refusal == ""


def test_a_refusal_is_the_end() -> None:
    """Of a job that had a number already, too: there is nothing to cancel any more."""
    refused = (
        "salloc: error: Job submit/allocate failed: Requested node configuration is not available"
    )
    assert salloc(PENDING + refused).gone


def test_salloc_knows_the_job_at_the_first_word_of_it() -> None:
    assert salloc("salloc: Pending job allocation 7").job_id == "7"
    assert salloc("salloc: job 8 queued and waiting for resources").job_id == "8"


def test_salloc_relinquished() -> None:
    state = salloc(f"{GRANTED}\nsalloc: Relinquishing job allocation 3537")
    assert state.gone
    assert not state.revoked


@pytest.mark.parametrize(
    ("lines", "reason", "status", "words"),
    [
        ("salloc: Job allocation 3537 has been revoked.", "cancelled", 122, "cancelled"),
        (
            "salloc: Job 3537 has exceeded its time limit and its allocation has been revoked.",
            "time-limit",
            124,
            "time limit",
        ),
        (
            "salloc: Job allocation 3537 has been revoked.\nsalloc: error: Node failure on node2",
            "node-failure",
            120,
            "node node2 failed",
        ),
        (
            "salloc: error: Node failure on node2\nsalloc: Job allocation 3537 has been revoked.",
            "node-failure",
            120,
            "node node2 failed",
        ),
    ],
)
def test_salloc_revoked(lines: str, reason: str, status: int, words: str) -> None:
    state = salloc(f"{GRANTED}\n{lines}")
    assert state.granted
    assert state.revoked
    assert state.gone
    assert (state.ending.reason, state.ending.status) == (reason, status)
    assert words in state.ending.text
    assert "3537" in state.ending.text


def test_salloc_a_node_that_failed_alone_revokes_nothing() -> None:
    """With --no-kill the job goes on without the node."""
    state = salloc(f"{GRANTED}\nsalloc: error: Node failure on node2")
    assert not state.revoked
    assert not state.gone


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (
            "salloc: error: invalid partition specified: nope\n"
            "salloc: error: Job submit/allocate failed: Invalid partition name specified",
            "Invalid partition name specified: invalid partition specified: nope",
        ),
        (
            "salloc: error: Job submit/allocate failed: Requested time limit is invalid "
            "(missing or exceeds some limit)",
            "Requested time limit is invalid (missing or exceeds some limit)",
        ),
        (
            "salloc: error: Job submit/allocate failed: Invalid user id",
            "Invalid user id",
        ),
    ],
)
def test_salloc_refused(lines: str, reason: str) -> None:
    state = salloc(lines)
    assert (state.job_id, state.granted, state.revoked) == ("", False, False)
    assert state.reason == reason


def test_salloc_never_reached_slurmctld() -> None:
    state = salloc(
        "salloc: error: Unable to allocate resources: Unable to contact slurm controller\n"
        "salloc: error: Second thoughts"
    )
    assert state.refusal == ""
    assert "Unable to contact slurm controller; Second thoughts" in state.reason


def test_salloc_said_nothing() -> None:
    state = JobState()
    assert state.reason == "salloc ended without a reason"
    state.status = -11  # as with a small `ulimit -s`
    assert state.reason.startswith("salloc was killed by signal 11 (SIGSEGV)")
    assert state.ending.status != 0


def test_the_job_of_the_caller_has_ended() -> None:
    """A shell may outlive the job whose variables it has."""
    over = "Unable to confirm allocation for job 7: Invalid job id specified"
    state = srun(f"srun: error: {over}")
    question = "is SLURM_JOB_ID that of a job that has ended? then unset it"
    assert state.reason(1) == f"{over}: {question}"


@pytest.mark.parametrize(
    "lines",
    [
        # scancel JOB
        "salloc: Job allocation 3538 has been revoked.\n"
        "salloc: Job has been cancelled\n"
        "salloc: error: Job submit/allocate failed: Job/step already completing or completed",
        # SIGTERM to salloc
        "salloc: Job allocation 3538 has been revoked.\nsalloc: Job aborted due to signal",
    ],
)
def test_salloc_cancelled_while_pending(lines: str) -> None:
    state = salloc(PENDING + lines)
    assert state.revoked
    assert state.gone
    assert not state.granted
    assert "cancelled" in state.reason
    assert "3538" in state.reason


# What job_submit plugins tell the user (slurm.log_user), and SPANK plugins log, has the tool's
# prefix, and may have any words.
SITES = [
    "salloc: No time limit given: using the default of 1:00:00",
    "salloc: lua: your time limit was rounded up to the hour",
    "salloc: note: your job allocation 31060777 is still active",
    "salloc: Granted job allocation 31060777 to you yesterday",
    "salloc: note: Granted job allocation 31060777",
    "salloc: salloc: Granted job allocation 31060777",
    "salloc: error: Granted job allocation 31060777",
    "salloc: job 31060777 queued and waiting for resources since noon",
    "salloc: Your Job allocation 31060777 has been revoked.",
    "salloc: Job allocation 31060777 has been revoked.",
    "salloc: Job 31060777 has exceeded its time limit and its allocation has been revoked.",
    "salloc: Job has been cancelled yesterday",
    "salloc: Relinquishing job allocation 31060777",
    "salloc: Job submit/allocate failed: see https://wiki",
    "salloc: if you read Node failure on node7, call us",
    "salloc: Node failure on node7",
    "Granted job allocation 31060777",
    "srun: Granted job allocation 31060777",
]


@pytest.mark.parametrize("line", SITES)
@pytest.mark.parametrize("job", [GRANTED, PENDING])
def test_salloc_what_a_site_says_is_not_of_our_job(line: str, job: str) -> None:
    for text in (f"{line}\n{job}", f"{job}\n{line}"):
        state, alone = salloc(text), salloc(job)
        assert state.job_id == alone.job_id
        assert state.granted == alone.granted
        assert not state.revoked
        assert not state.gone
        assert state.ending.reason == "cancelled"
        assert not state.refusal


def test_salloc_a_site_that_says_slurms_own_sentence_says_it_before_slurm() -> None:
    state = salloc(f"salloc: Granted job allocation 5\n{PENDING}")
    assert (state.job_id, state.granted) == ("3538", False)
    state = salloc(f"salloc: Pending job allocation 5\n{GRANTED}")
    assert (state.job_id, state.granted) == ("3537", True)


def test_salloc_the_environment_of_what_it_runs_knows_better() -> None:
    state = salloc("salloc: Granted job allocation 5")
    state.feed("salloc: Job allocation 3537 has been revoked.")
    assert not state.revoked
    state.is_job("3537")
    assert state.revoked
    state.feed("salloc: Granted job allocation 6")
    assert (state.job_id, state.granted) == ("3537", True)


TOO_MUCH = """
salloc: error: Memory specification can not be satisfied
salloc: error: Job submit/allocate failed: Requested node configuration is not available
"""
TAKEN_AWAY = "salloc: Job allocation 31060001 has been revoked."


@pytest.mark.parametrize(
    "lines",
    [
        TOO_MUCH + TAKEN_AWAY,
        TAKEN_AWAY + TOO_MUCH,
        f"salloc: Pending job allocation 31060001\n{TAKEN_AWAY}{TOO_MUCH}",
    ],
)
def test_salloc_refused_is_not_cancelled(lines: str) -> None:
    """Slurm makes a job, finds that it can never run, and takes it away (22.05, 24.11, 26.05)."""
    state = salloc(lines)
    assert not state.withdrawn
    assert state.reason == (
        "Requested node configuration is not available: Memory specification can not be satisfied"
    )


@pytest.mark.parametrize(
    "job", ["job allocation 3537", "allocation for job 3537", "job allocation JobId=3537"]
)
@pytest.mark.parametrize("why", ["", " (connect failure)"])
def test_salloc_could_not_give_it_back_in_all_versions(job: str, why: str) -> None:
    state = salloc(
        f"{GRANTED}\nsalloc: Relinquishing job allocation 3537\n"
        f"salloc: error: Unable to clean up {job}: Unable to contact slurm controller{why}"
    )
    assert not state.gone


@pytest.mark.parametrize(
    "line",
    [
        "srun: quota: Slurm job 3539 has expired files",
        "srun: error: quota: Slurm job 3539 has expired",
        "srun: Force Terminated StepId=3539.0 is what you read when you are over your quota",
        "srun: error: site: forcing job termination",
        "srun: launching StepId=9.0 on host node1, 1 tasks: 0 (site)",
        "srun: site: Node node1, 1 tasks started",
        "srun: Received task exit notification for 1 task of StepId=9.0 (status=0x0100). (site)",
        "srun: Task launch for StepId=3539.0 failed on node node1: as you know",
        "salloc: error: Node failure on node1",
    ],
)
def test_srun_what_a_site_says_is_nothing_of_our_step(line: str) -> None:
    state = srun(f"{STARTED}{line}")
    assert (state.step_id, state.started, state.aborted) == ("3539.0", False, False)
    assert not state.launch_failed
    assert state.statuses == []


STARTED = """
srun: defined options
srun: -------------------- --------------------
srun: (null)              : node1
srun: jobid               : 3539
srun: job-name            : scrun
srun: nodes               : 1
srun: ntasks              : 1
srun: overlap             : set
srun: verbose             : 1
srun: -------------------- --------------------
srun: end of defined options
srun: jobid 3539: nodes(1):`node1', cpu counts: 1(x1)
srun: launch/slurm: launch_p_step_launch: CpuBindType=(null type)
srun: launching StepId=3539.0 on host node1, 1 tasks: 0
srun: route/default: init: route default plugin loaded
"""
RUNNING = STARTED + "srun: launch/slurm: _task_start: Node node1, 1 tasks started\n"
FINISH = "srun: launch/slurm: _task_finish: Received task exit notification for 1 task of StepId="


def finished(status: str) -> str:
    return f"{FINISH}3539.0 (status=0x{status}).\n"


def test_srun_launched() -> None:
    state = srun(STARTED)
    assert (state.step_id, state.started, state.aborted) == ("3539.0", False, False)
    assert state.complaints == []


def test_srun_running() -> None:
    state = srun(RUNNING)
    assert (state.step_id, state.started) == ("3539.0", True)
    assert state.statuses == []


@pytest.mark.parametrize(
    ("lines", "returned", "status"),
    [
        (finished("0000"), 0, 0),
        (finished("0700") + "srun: error: node1: task 0: Exited with exit code 7", 7, 7),
        (finished("ff00") + "srun: error: node1: task 0: Exited with exit code 255", 255, 255),
        (
            finished("0009")
            + "srun: error: node1: task 0: Killed\nsrun: Force Terminated StepId=3539.0",
            137,
            137,
        ),
        (finished("000a") + "srun: error: node1: task 0: User defined signal 1", 138, 138),
        (finished("000f") + "srun: error: node1: task 0: Terminated", 143, 143),
        (
            finished("008b") + "srun: error: node1: task 0: Segmentation fault (core dumped)",
            139,
            139,
        ),
        (finished("8900") + "srun: error: node1: task 0: Exited with exit code 137", 137, 137),
        # what srun returns is less exact than what it says
        (finished("0700"), 0, 7),
        # no notification: nothing but srun's status
        ("", 0, 0),
        ("", 3, 3),
        ("", -9, 137),
    ],
)
def test_step_that_ran(lines: str, returned: int, status: int) -> None:
    state = srun(RUNNING + lines)
    assert step_exit(state, returned) == Exit(status, launched=True)
    assert state.complaints == []


def test_step_of_several_tasks_has_the_highest_status() -> None:
    state = srun(RUNNING + finished("0300") + finished("0000") + finished("0009"))
    assert step_exit(state, 0) == Exit(137, launched=True)


TWO = """
srun: jobid 6760: nodes(2):`node[1-2]', cpu counts: 1(x2)
srun: launching StepId=6760.0 on host node1, 1 tasks: 0
srun: launching StepId=6760.0 on host node2, 1 tasks: 1
srun: route/default: init: route default plugin loaded
"""
ONE_STARTED = "srun: launch/slurm: _task_start: Node node2, 1 tasks started\n"
BOTH_STARTED = ONE_STARTED + "srun: launch/slurm: _task_start: Node node1, 1 tasks started\n"


def test_step_of_two_nodes_runs_when_both_do() -> None:
    assert not srun(TWO, 2).started
    assert not srun(TWO + ONE_STARTED, 2).started
    assert srun(TWO + BOTH_STARTED, 2).started


def test_step_of_two_tasks_on_a_node_runs_when_both_do() -> None:
    """As 23.02 and newer can have them; src/srun/launch.c says it without a plugin's name."""
    state = srun(
        "srun: launching StepId=7.0 on host n1, 2 tasks: [0-1]\nsrun: Node n1, 2 tasks started", 2
    )
    assert state.started
    assert state.running == {"n1": [0, 1]}


def test_a_node_that_started_nothing() -> None:
    assert not srun(TWO + ONE_STARTED + "srun: error: Node node1, 0 tasks started", 2).started


@pytest.mark.parametrize(
    ("lines", "running"),
    [
        ("", {"node1": [0], "node2": [0]}),
        ("srun: launch/slurm: _task_finish: node1: task 0: Completed", {"node2": [0]}),
        ("srun: error: node2: task 1: Exited with exit code 4", {"node1": [0]}),
        ("srun: error: node2: task 1: Killed", {"node1": [0]}),
        ("srun: error: node[1-2]: tasks 0-1: Exited with exit code 4", {}),
        ("srun: error: Some node: task unknown: x", {"node1": [0], "node2": [0]}),
    ],
)
def test_where_tasks_run(lines: str, running: dict[str, list[int]]) -> None:
    state = srun(TWO + BOTH_STARTED + lines, 2)
    assert state.running == running
    if "unknown" not in lines:
        assert state.complaints == []


def test_tasks_of_a_node_are_counted_from_0() -> None:
    state = srun(
        "srun: launching StepId=7.0 on host n1, 3 tasks: [0-2]\n"
        "srun: launching StepId=7.0 on host n2, 3 tasks: 3,[5-6]\n"
        "srun: error: n2: tasks 3,6: Exited with exit code 1",
        6,
    )
    assert state.running == {"n1": [0, 1, 2], "n2": [1]}


@pytest.mark.parametrize(
    ("statuses", "highest"),
    [(("0000", "0300"), 3), (("0900", "0009"), 137), (("ff00", "000f"), 255)],
)
def test_the_highest_of_two_nodes(statuses: tuple[str, str], highest: int) -> None:
    state = srun(TWO + BOTH_STARTED + "".join(finished(status) for status in statuses), 2)
    assert step_exit(state, 0) == Exit(highest, launched=True)


def test_two_tasks_in_one_notification() -> None:
    both = finished("0000").replace("for 1 task of", "for 2 tasks of")
    state = srun(TWO + BOTH_STARTED + both, 2)
    assert state.missing == 0
    assert step_exit(state, 0) == Exit(0, launched=True)


@pytest.mark.parametrize(("returned", "status"), [(0, 1), (1, 1), (9, 9), (-15, 1)])
def test_one_task_succeeded_and_the_other_was_lost(returned: int, status: int) -> None:
    state = srun(TWO + BOTH_STARTED + finished("0000") + "srun: error: Node failure on node2", 2)
    assert step_exit(state, returned) == Exit(status, launched=True)


def test_one_node_could_not_launch() -> None:
    """srun kills what the other one had begun."""
    state = srun(
        TWO
        + "srun: error: Task launch for StepId=6761.4 failed on node node1: Unspecified error\n"
        + "srun: error: Application launch failed: Unspecified error\n"
        + "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
        + ONE_STARTED
        + finished("0009")
        + "srun: error: node2: task 1: Killed",
        2,
    )
    assert step_exit(state, 137) == Exit(137, launched=False)
    assert "failed on node node1: Unspecified error" in state.complaints[0]
    assert len(state.complaints) == 2


def test_step_ended_with_its_job() -> None:
    state = srun(
        RUNNING
        + "srun: Complete StepId=3539.0+0 received\n"
        + "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
        + "slurmstepd-node1: error: *** STEP 3539.0 ON node1 CANCELLED AT 2026-11-21T04:29 ***\n"
        + finished("000f")
        + "srun: error: node1: task 0: Terminated"
    )
    assert state.aborted
    assert step_exit(state, 143) == Exit(143, launched=True)


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: Timed out waiting for job step to complete",
        "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.",
        "srun: forcing job termination",
        "srun: error: Node failure on node2",
        "slurmstepd-node1: error: *** STEP 3539.0 ON node1 CANCELLED AT 2026-11-21T04:29:15 ***",
    ],
)
def test_step_that_was_ended_from_outside_is_never_a_success(line: str) -> None:
    """srun returns 0 there (22.05)."""
    state = srun(RUNNING + line)
    assert state.aborted
    assert step_exit(state, 0) == Exit(1, launched=True)


def test_step_that_could_not_be_launched() -> None:
    state = srun(
        STARTED
        + "srun: error: Task launch for StepId=3539.0 failed on node node1: "
        + "No such file or directory\n"
        + "srun: error: Application launch failed: No such file or directory\n"
        + "srun: Job step aborted"
    )
    assert step_exit(state, 130) == Exit(130, launched=False)
    assert state.complaints == [
        "Task launch for StepId=3539.0 failed on node node1: No such file or directory",
        "Application launch failed: No such file or directory",
    ]


def test_a_task_that_could_not_be_launched_has_not_run() -> None:
    """The node could not put it into its cgroup; srun counts it as started and returns 0."""
    state = srun(
        "srun: launching StepId=31500205.0 on host node1, 1 tasks: 0\n"
        + "srun: error: task 0 launch failed: Slurmd could not execve job\n"
        + "srun: launch/slurm: _task_start: Node node1, 1 tasks started"
    )
    assert not state.started
    assert step_exit(state, 0) == Exit(1, launched=False)
    assert state.complaints == ["task 0 launch failed: Slurmd could not execve job"]


@pytest.mark.parametrize("returned", [0, 1, -15])
def test_step_that_never_ran_is_no_success(returned: int) -> None:
    assert step_exit(StepState(), returned) == Exit(1, launched=False)


@pytest.mark.parametrize("status", ["137f", "ffff", "fffffffe", "ffffffffffffffff"])
def test_statuses_that_are_none(status: str) -> None:
    """waitpid(2) has none for stopped processes here, and Slurm has NO_VAL for unknown."""
    ended = step_exit(srun(RUNNING + finished(status)), 0)
    assert 1 <= ended.status <= 255


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("executable file `nope` not found in $PATH: No such file or directory", 127),
        ('exec: "nope": executable file not found in $PATH', 127),
        ('exec: "/nope": stat /nope: no such file or directory', 127),
        ("open executable: Permission denied", 126),
        ('exec: "/etc/passwd": permission denied', 126),
        ("chdir `/nope`: No such file or directory", 127),
        ("chdir to `/nope`: No such file or directory", 127),
        ('chdir to cwd ("/nope") set in config.json failed: no such file or directory', 127),
        ("chdir `/bin/sh`: Not a directory", 126),
        ('chdir to cwd ("/root") set in config.json failed: permission denied', 126),
        ("make: chdir /nope: No such file or directory", None),
        ("sh: 1: nope: not found", None),
        ("cat: /x: No such file or directory", None),
        ("crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted", None),
        ("", None),
    ],
)
def test_program_failure(said: str, status: int | None) -> None:
    assert program_failure(said) == status


def test_the_runtimes_first_word_counts() -> None:
    state = StepState()
    assert state.runtime_status is None
    state.feed_stderr(b"\xff\xfe nothing of that kind")
    assert state.runtime_status is None
    state.feed_stderr(b"executable file `x` not found in $PATH: No such file or directory")
    state.feed_stderr(bytearray(b"open executable: Permission denied"))
    assert state.runtime_status == 127


WORDS = st.sampled_from(
    [
        "salloc: ", "srun: ", "error: ", "Granted job allocation ", "job ", "Job allocation ",
        "7", "99999999999999999999", "Job submit/allocate failed: ", "Node failure on ", "node1",
        "exceeded its time limit", "has been revoked", "launching StepId=", "7.0", " ", "\n",
        "1 tasks started", "task exit notification ", "(status=0x0700)", "(status=0x0009)",
        "task exit notification (status=0x137f)", "task exit notification (status=0xfffffffe)",
        "Job step aborted", ": task ", ": tasks [0-3]: ", " on host n, 2 tasks: [0-1]",
        "Task launch for", " failed on node",
        "Relinquishing job allocation", "٣", "\x00", "\udcff",
    ]
)  # fmt: skip
LINES = st.lists(st.one_of(st.text(), st.lists(WORDS).map("".join)), max_size=8)


@given(LINES)
def test_salloc_may_say_anything(lines: list[str]) -> None:
    state = JobState()
    for line in lines:
        state.feed(line)
    assert state.ending.status in range(1, 256)
    assert state.reason


@given(LINES, st.integers(-64, 255), st.integers(1, 3))
def test_srun_may_say_anything(lines: list[str], returned: int, tasks: int) -> None:
    state = StepState(tasks)
    for line in lines:
        state.feed(line)
    assert all(state.running.values())
    ended = step_exit(state, returned)
    assert 0 <= ended.status <= 255
    if not ended.launched:
        assert ended.status


@given(st.binary())
def test_a_runtime_may_say_anything(content: bytes) -> None:
    state = StepState()
    state.feed_stderr(content)
    assert state.runtime_status in (None, 126, 127)


# Out of memory. Said by 22.05 with task/cgroup and ConstrainRAMSpace, and with jobacct_gather
# and OverMemoryKill; tests/integration/slurm/test_endings.py has the second for real.

BY_KERNEL = (
    finished("00fd")
    + "srun: error: node1: task 0: Out Of Memory\n"
    + "slurmstepd-node1: error: Detected 1 oom-kill event(s) in StepId=3539.0. Some of your "
    + "processes may have been killed by the cgroup out-of-memory handler.\n"
)
OVER_MEMORY = GRANTED + "\nsalloc: Exceeded job memory limit\nsalloc: Exceeded job memory limit"
BY_SLURM = (
    "slurmstepd-node1: error: StepId=3539.0 exceeded memory limit (218046464 > 52428800), being "
    "killed\n"
    "srun: Complete StepId=3539.0+0 received\n"
    "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
    + finished("0009")
    + "srun: error: node1: task 0: Killed\n"
)


def end(lines: str, returned: int, salloc_said: str = "", tasks: int = 1) -> Ending:
    state = srun(lines, tasks)
    return ending_of_step(state, step_exit(state, returned), salloc(salloc_said))


@pytest.mark.parametrize(
    ("lines", "returned", "said"),
    [
        (RUNNING + BY_KERNEL, 1, GRANTED),
        (RUNNING + BY_KERNEL, 1, OVER_MEMORY),
        (RUNNING + BY_SLURM, 137, OVER_MEMORY),
    ],
)
def test_out_of_memory(lines: str, returned: int, said: str) -> None:
    ending = end(lines, returned, said)
    assert (ending.status, ending.reason) == (137, "out-of-memory")
    assert ending.text.startswith("job 3539: out of memory")


def test_one_of_two_tasks_is_out_of_memory() -> None:
    lines = TWO + BOTH_STARTED + finished("0000") + finished("00fd")
    assert end(lines, 1, tasks=2).reason == "out-of-memory"


def test_killed_for_another_reason() -> None:
    assert end(RUNNING + finished("0009"), 137, GRANTED) == exited(137)


@pytest.mark.parametrize("status", ["0000", "0700", "000f"])
def test_another_step_of_the_job_had_too_much_memory(status: str) -> None:
    """An exec's, perhaps; salloc does not say which one was killed."""
    assert end(RUNNING + finished(status), 0, OVER_MEMORY).reason == "exited"


def test_a_step_in_the_job_of_somebody_else() -> None:
    state = srun(RUNNING + BY_KERNEL)
    assert ending_of_step(state, step_exit(state, 1)).reason == "out-of-memory"
    state = srun(RUNNING + BY_SLURM)
    assert ending_of_step(state, step_exit(state, 137)) == exited(137)
