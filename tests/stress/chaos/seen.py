"""What was seen of a container, and whether it is right. Pure."""

import enum
import re

import msgspec

from tests.stress.chaos.faults import (
    CREATED,
    CREATING,
    ENDING,
    HELD,
    STARTING,
    TRAPPED,
    WAITING,
)
from tests.stress.chaos.plan import Plan

# also what was typed once it had ended: Linux resets a terminal whose session is over
_OTHERS = re.compile(
    rb"(^((\d+|end)\r\n)*scrun: |slurmstepd(-[^ :]+)?: error: \*\*\* )[^\n]*\n?", re.MULTILINE
)
KILLED = (-9, -15, -2, 130)
"""How a command ends that somebody kills."""


class Kind(enum.Enum):
    """What kind of wrong something is; the columns of the report."""

    LEAK = "leak"
    STATUS = "status"
    LINES = "lines"
    HANG = "hang"
    WORDS = "words"


class Problem(msgspec.Struct, frozen=True):
    """Something that is not right.

    Attributes:
        kind: Which kind of wrong.
        text: What was expected, and seen.
    """

    kind: Kind
    text: str


class Answer(msgspec.Struct, frozen=True):
    """How a call of scrun ended: its exit status (negative for a signal), and what it said."""

    status: int
    out: str = ""
    err: str = ""


class Seen(msgspec.Struct):
    """What was seen of a container, filled in as it goes on.

    Attributes:
        create: How `create` ended.
        start: How `start` ended.
        anchor: The anchor's exit status.
        state: What `state` answered at the end: status, reason and exit status.
        waiting: The status that it told while the job was in the queue.
        kills: How each `kill` ended.
        deletes: How each `delete` ended.
        states: How each `state` ended.
        out: The container's standard output.
        expected: All that it would write.
        hit: Whether the fault hit anybody.
        hit_after: Whether that was after the container had been let go.
        hangs: What took too long.
        left: What is left after `delete`.
        executed: How `exec` ended.
        exec_lasts: Whether a program of `exec` outlives the supervisor.
        watched: How commands ended that were open beside it, and how they would undisturbed.
        broken: How many forwarded connections broke.
        wrong_answers: What came over one in the place of the right answer.
        missing: What its volume lacks of what it has written, or has besides.
        staged_out: How often the script's stage_out was called.
        bad_client: What a client that does not behave has brought about.
        lost: Whether its job, with all commands in it, was taken away.
        seconds: How long it took from the fault until all was undone.
    """

    create: Answer | None = None
    start: Answer | None = None
    anchor: int | None = None
    state: dict[str, str] | None = None
    waiting: str = ""
    kills: list[Answer] = []
    deletes: list[Answer] = []
    states: list[Answer] = []
    out: bytes = b""
    expected: bytes = b""
    own: frozenset[int] = frozenset()
    hit: bool = False
    hangs: list[str] = []
    left: list[str] = []
    executed: Answer | None = None
    exec_lasts: bool = True
    watched: list[tuple[str, Answer, Answer]] = []
    broken: int = 0
    wrong_answers: list[str] = []
    missing: list[str] = []
    staged_out: int = 0
    bad_client: str = ""
    lost: bool = False
    seconds: float = 0.0


def judge(plan: Plan, seen: Seen) -> list[Problem]:
    """Return what is wrong with a container."""
    found = [Problem(Kind.HANG, text) for text in seen.hangs]
    found += [Problem(Kind.LEAK, text) for text in seen.left]
    found += [Problem(Kind.LINES, f"what was asked: {text}") for text in seen.wrong_answers]
    if seen.missing:
        found.append(Problem(Kind.LINES, f"its volume: {', '.join(seen.missing)}"))
    if seen.bad_client:
        found.append(Problem(Kind.WORDS, seen.bad_client))
    if seen.hangs:  # the rest follows from it
        return found
    if seen.lost:
        return found + _of_a_lost_job(plan, seen)
    found += _of_calls(plan, seen)
    found += _of_the_end(plan, seen)
    found += _of_output(plan, seen)
    return found


def _of_a_lost_job(plan: Plan, seen: Seen) -> list[Problem]:
    """Judge a container whose job was taken away, with all that was called there.

    Nobody is left who could have heard its status. But it is no success, and it can be deleted.
    """
    found = []
    if not (seen.hit and plan.fault.target == "place"):
        found.append(Problem(Kind.HANG, "the job has ended in which it was called"))
    if seen.anchor == 0:
        found.append(Problem(Kind.STATUS, "status 0, although its job was taken away"))
    if seen.deletes and seen.deletes[-1].status != 0:
        found.append(Problem(Kind.LEAK, f"delete: {seen.deletes[-1]}"))
    found += [
        Problem(Kind.WORDS, f"not one line: {answer.err!r}")
        for answer in (*seen.deletes, *seen.kills, *seen.states)
        if answer.status > 0 and not _one_line(answer.err)
    ]
    if plan.kind != "terminal" and not seen.expected.startswith(_said(seen.out)):
        text = _around(seen.out, seen.expected)
        found.append(Problem(Kind.LINES, f"not what the container wrote: {text}"))
    return found


def _said(out: bytes) -> bytes:
    """Return what the container has said, without what scrun and Slurm say there at its end."""
    return _OTHERS.sub(b"", out)  # it ends its line with \r\n, which a terminal may make \r\r\n


def _may(plan: Plan, seen: Seen) -> frozenset[int]:
    """Return the statuses with which the container may end."""
    if not seen.hit or _is_adopted(plan, seen):
        return seen.own | (_odd(plan) if seen.hit else frozenset())
    # here the engine has the container's own process, and what ends that from outside kills it
    killed = {137} if plan.has_own_process and plan.fault.ends else frozenset[int]()
    starting = "supervisor" in plan.fault.name and plan.moment is STARTING
    if killed and (starting or plan.fault.point):
        killed = {137, 1}  # `start` is ended half-way, and the runtime's process within with it
    return _may_with_anchor(plan, seen) | killed


def _is_adopted(plan: Plan, seen: Seen) -> bool:
    """Tell whether another supervisor has to have adopted it, so that nothing shows."""
    return seen.hit and plan.fault.is_adopted and plan.moment not in (None, CREATING)


def _may_with_anchor(plan: Plan, seen: Seen) -> frozenset[int]:
    fault = plan.fault
    if seen.start is not None and seen.start.status:
        return fault.ends | seen.own | _odd(plan) | {137}  # what could not be started is killed
    if _never_ran(plan, seen):
        return fault.ends - {TRAPPED}
    if fault.ends and fault.surely and plan.moment in HELD and not fault.outage:
        return fault.ends | ({137} if plan.kind == "stubborn" else set())
    return fault.ends | seen.own | _odd(plan)


def _never_ran(plan: Plan, seen: Seen) -> bool:
    """Tell whether it was ended for sure while its job was in the queue."""
    fault = plan.fault
    surely = bool(fault.ends) and fault.surely and not fault.outage
    return seen.hit and plan.moment is WAITING and surely and not _is_adopted(plan, seen)


def _odd(plan: Plan) -> frozenset[int]:
    """Return the statuses of moments of a few milliseconds (docs/reference/reliability.md)."""
    if plan.fault.target == "anchor" and plan.moment is CREATING:
        return frozenset({-2, -15})  # it has no traps yet, and perhaps no pid namespace
    if plan.kind == "stubborn":
        return frozenset({137})  # what does not hear TERM or INT is killed
    if plan.fault.name == "runtime-int" and plan.kind == "terminal" and plan.moment is ENDING:
        return frozenset({0})  # runc's, when its container has ended already
    return frozenset()


def _one_line(text: str) -> bool:
    return text.startswith("scrun: ") and text.count("\n") == 1


def _too_early(answer: Answer) -> bool:
    """Tell whether SIGINT found an interpreter that had not begun with anything of ours yet."""
    interrupted = any(line.startswith("KeyboardInterrupt") for line in answer.err.splitlines())
    return interrupted and not answer.err.startswith("Traceback")


_BEFORE_ITS_FIRST_LINE = "line 0, in <module>\nKeyboardInterrupt\n"


def _refusal(plan: Plan, seen: Seen, what: str, answer: Answer) -> list[Problem]:
    """Judge a call that did not succeed."""
    if seen.hit and plan.fault.name == "runtime-int" and _BEFORE_ITS_FIRST_LINE in answer.err:
        return []  # a reaper, likewise
    hits_client = (plan.fault.target == "client" or plan.fault.action == "hang") and seen.hit
    if hits_client and (answer.status in KILLED or _too_early(answer)):
        return []
    # what crun or runc has to say it says itself, and perhaps with a warning before it
    by_runtime = plan.engine == "local" and "Traceback" not in answer.err and answer.err
    if answer.status != 1 or not (_one_line(answer.err) or by_runtime):
        text = f"{what} ended with {answer.status}: {answer.err!r}"
        return [Problem(Kind.WORDS, f"not one line and 1: {text}")]
    if not seen.hit or not plan.fault.refuses or _is_adopted(plan, seen):
        return [Problem(Kind.WORDS, f"{what} was refused: {answer.err!r}")]
    return []


def _of_calls(plan: Plan, seen: Seen) -> list[Problem]:
    found: list[Problem] = []
    for what, answer in (("create", seen.create), ("start", seen.start)):
        if answer is not None and answer.status != 0:
            found += _refusal(plan, seen, what, answer)
    found += _of_sessions(plan, seen)
    harmed = seen.hit and (plan.fault.target in ("exec", "runtime") or _is_harmed(plan, seen))
    if seen.executed not in (None, Answer(5, "executed\n")) and not harmed:
        found.append(Problem(Kind.STATUS, f"exec: {seen.executed}"))
    *first, last = seen.deletes or [Answer(0)]
    if last.status != 0:
        found.append(Problem(Kind.LEAK, f"delete: {last}"))
    for what, answers in (("delete", first), ("kill", seen.kills), ("state", seen.states)):
        for answer in answers:
            # it was killed, and asks again
            done = what == "kill" and _is_adopted(plan, seen) and "is stopped" in answer.err
            if answer.status and not done:
                found += _refusal(plan, seen, what, answer)
    return found


def _is_harmed(plan: Plan, seen: Seen) -> bool:
    """Tell whether a program of `exec` may have ended because of the fault."""
    return seen.hit and bool(plan.fault.ends) and not (_is_adopted(plan, seen) and seen.exec_lasts)


def _of_sessions(plan: Plan, seen: Seen) -> list[Problem]:
    """Judge the commands that were open beside the container."""
    found = []
    by_fault = seen.hit and plan.fault.target == "forward" and plan.fault.action != "STOP"
    if seen.broken and not (by_fault or (seen.hit and plan.fault.ends)):
        found.append(Problem(Kind.LINES, f"{seen.broken} forwarded connections broke"))
    for what, answer, right in seen.watched:
        if _is_harmed(plan, seen) and not (_is_adopted(plan, seen) and what != "exec"):
            continue
        if by_fault and what == "forward" and answer.status in KILLED:
            continue
        if what == "forward" and answer.status == 1:  # another one works, or that is a hang
            found += _refusal(plan, seen, what, answer)
            continue
        if (answer.status, answer.err) != (right.status, right.err):
            text = f"{what}: {answer.status} {answer.err!r} instead of {right.status}"
            found.append(Problem(Kind.STATUS, text))
        # what waits for its job says so there
        out = _said(answer.out.encode()).decode() if what == "logs" else answer.out
        if out != right.out:
            text = f"{len(out)} of {len(right.out)} bytes of {what}: "
            text += f"{out[-60:]!r} instead of {right.out[-60:]!r}"
            found.append(Problem(Kind.LINES, text))
    return found


def _of_the_end(plan: Plan, seen: Seen) -> list[Problem]:
    if seen.create is None or seen.create.status != 0:
        return []
    if seen.anchor is None:
        return [Problem(Kind.STATUS, "the anchor's status is not known")]
    found = []
    may = _may(plan, seen)
    if seen.anchor not in may:
        few = len(may) < 10
        wanted = f"not {sorted(may)}" if few else "which is none of a failure"
        found.append(Problem(Kind.STATUS, f"status {seen.anchor}, {wanted}"))
    if seen.state is not None:
        found += _of_state(plan, seen, seen.state)
    # without a process there is no running it, which the status and the log tell
    unable = plan.fault.target in ("worker", "command") or plan.fault.action == "limited"
    # and what has not been staged need not be brought back
    while_it_waits = plan.waits and plan.moment in (CREATING, CREATED, STARTING, WAITING)
    unable |= while_it_waits and seen.hit and not _is_adopted(plan, seen)
    scripted = plan.kind == "script" and not unable
    if scripted and not seen.staged_out:
        found.append(Problem(Kind.LINES, "stage_out was not called"))
    has_run = b"up" in map(bytes.strip, seen.out.splitlines()) or seen.staged_out
    if _never_ran(plan, seen) and has_run:
        found.append(Problem(Kind.LINES, f"it has run without its job: {seen.out!r}"))
    harmless = not (seen.hit and plan.fault.ends) or _is_adopted(plan, seen)
    if seen.waiting not in ("", "running") and harmless:
        found.append(Problem(Kind.STATUS, f"while its job waits, state says {seen.waiting}"))
    return found


def _of_state(plan: Plan, seen: Seen, state: dict[str, str]) -> list[Problem]:
    by_fault = "anchor" in (plan.fault.target, *plan.fault.beside)
    if by_fault and seen.anchor is not None and seen.anchor < 0:
        return []  # whoever is its parent knows of its death first
    if state["status"] != "stopped":
        return [Problem(Kind.STATUS, f"state says {state}, the anchor ended with {seen.anchor}")]
    if "pending" in state:
        return [Problem(Kind.STATUS, f"it has ended, and waits for {state['pending']} still")]
    recorded = state.get("exit_status")
    by_death = "supervisor" in plan.fault.name or plan.fault.point
    if recorded is None and seen.hit and by_death and not _is_adopted(plan, seen):
        return []  # nobody was there to write it down: the engine is told first
    if recorded != str(seen.anchor):
        return [Problem(Kind.STATUS, f"state says {state}, the anchor ended with {seen.anchor}")]
    return []


def _of_output(plan: Plan, seen: Seen) -> list[Problem]:
    out, wanted = seen.out, seen.expected
    if plan.kind == "terminal":
        out = out.replace(b"\r", b"")
        lost = not all(line in out for line in wanted.splitlines())
        strange = False
    else:
        out = _said(out)
        lost = out != wanted
        strange = not wanted.startswith(out)
    if strange:
        return [Problem(Kind.LINES, f"not what the container wrote: {_around(seen.out, wanted)}")]
    adopted = _is_adopted(plan, seen)
    by_fault = plan.fault.ends if seen.hit and not adopted else frozenset()
    if plan.fault.target == "srun":  # what it had not printed yet is lost with it
        by_fault = seen.own if by_fault else by_fault
    never_began = seen.hit and seen.start is not None and seen.start.status not in (0, *KILLED)
    regular = seen.anchor is not None and seen.anchor in seen.own - by_fault and not never_began
    if lost and regular:
        return [Problem(Kind.LINES, f"{len(out)} of {len(wanted)} bytes: {_around(out, wanted)}")]
    return []


def _around(out: bytes, wanted: bytes) -> str:
    return f"{out[-200:]!r} instead of {wanted[-60:]!r}"
