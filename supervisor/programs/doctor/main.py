"""The program: runs all checks concurrently, and prints their findings in a fixed order."""

import os
import signal
import sys

import trio

from scrun.cli.parse import Parsed
from scrun.core.errors import ScrunError, described
from scrun.core.output import write
from scrun.supervisor.plugins.registry import plugins
from scrun.supervisor.programs.doctor import (
    capacity,
    cluster,
    containers,
    engine_api,
    job_trial,
    machine,
)
from scrun.supervisor.programs.doctor.call import Check, DoctorCall, examine
from scrun.supervisor.programs.doctor.findings import (
    Finding,
    Report,
    fail,
    json_text,
    ok,
    text_line,
    warn,
)

CHECKS = (*machine.BASICS, *cluster.CHECKS, *machine.CONTAINERS, *capacity.CHECKS)


def run(parsed: Parsed, argv: list[str]) -> int:
    """Check everything; return the exit status: 1 if something failed."""
    del parsed
    return trio.run(_main, argv)


async def _main(argv: list[str]) -> int:
    async with plugins() as loaded:
        return await _check(await examine(argv, loaded))


async def _check(call: DoctorCall) -> int:
    """Run the checks and print their findings, until all are done or a signal arrives."""
    checks = [*CHECKS, *_trials(call)]
    report = Report(name for check in checks for name in check.names)
    status = 0
    async with trio.open_nursery() as nursery:

        async def obey() -> None:
            nonlocal status
            with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as got:
                async for number in got:
                    status = 128 + number
                    nursery.cancel_scope.cancel()

        nursery.start_soon(obey)
        for check in checks:
            nursery.start_soon(_examine, check, call, report)
        failed = await _print(report, as_json=call.parsed.text("format") == "json")
        status = int(failed)
        nursery.cancel_scope.cancel()
    return status


def _trials(call: DoctorCall) -> tuple[Check, ...]:
    if not call.by_slurm:
        return (containers.BY_HAND, *containers.CHECKS, *engine_api.CHECKS)
    no_job = call.parsed.options.get("no-job")
    return (containers.BY_HAND, *(() if no_job else job_trial.CHECKS), *engine_api.CHECKS)


async def _examine(check: Check, call: DoctorCall, report: Report) -> None:
    """Run one check; any exception becomes the finding of its first item without one."""
    rest = warn("not tried", "correct the failures above")
    problem = None
    with trio.move_on_after(check.deadline) as scope:
        try:
            if why := check.spared(call):
                rest = ok(why)
            else:
                await check.run(
                    call, lambda name, found: report.put(name or check.names[0], found)
                )
        except* (ScrunError, OSError) as group:
            problem = Finding(check.status, described(group), check.remedy)
        except* Exception as group:
            problem = fail(described(group), "correct that first")
    if scope.cancelled_caught:
        problem = fail(
            f"no answer within {check.deadline:g} s",
            "check whether a file system or a daemon hangs",
        )
    for name in report.missing(check.names):
        report.put(name, problem or rest)
        problem = None


async def _print(report: Report, *, as_json: bool) -> bool:
    """Print the findings in order; return whether one of them is `fail`."""
    colour = not as_json and _coloured()
    findings = {}
    async for name, finding in report:
        findings[name] = finding
        if not as_json:
            _write(text_line(name, finding, colour=colour))
    if as_json:
        _write(json_text(findings))
    return any(finding.status == "fail" for finding in findings.values())


def _coloured() -> bool:
    """Return whether to use colour (no-color.org: not if NO_COLOR is set)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
    return not plain and sys.stdout is not None and os.isatty(1)


def _write(line: str) -> None:
    write(f"{line}\n".encode(errors="backslashreplace"))
