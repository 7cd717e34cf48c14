"""Operations on a running container besides signals: exec and shell, pause, resume."""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import trio

from scrun.cli.copied import read_copied
from scrun.cli.parse import Parsed
from scrun.core.errors import StateError, UsageError
from scrun.core.place import place_of
from scrun.images.lookup import find_directory, find_program
from scrun.images.squashfs import file_of
from scrun.oci.config import Bundle, Process, read_config
from scrun.oci.document import read_file
from scrun.oci.lookup import Found, NotFound
from scrun.oci.process import (
    ExecOptions,
    checked,
    fitting_user,
    process_from_file,
    process_from_options,
)
from scrun.supervisor.children.terminal import give_a_size
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.container import Container
from scrun.supervisor.containers.live_session import LiveSession, NotRunnableError, Prepared
from scrun.supervisor.containers.stdio import Stdio
from scrun.supervisor.contracts.create_request import CommandLine
from scrun.supervisor.contracts.engine import Files, Job
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.threads import look

_SHELLS = ("bash", "zsh", "fish", "ash", "dash", "sh")


async def execute(container: Container, call: CommandLine, anchor: Anchor, stdio: Stdio) -> None:
    """Run one more program in a container; returns as soon as it runs.

    The anchor gets its status, and `stdio` are its descriptors; both are taken over.

    Raises:
        StateError: The container does not run.
        ScrunError: The program cannot be run.
    """
    try:
        copies = call.parsed.command == "cp"
        purpose = "cp" if copies else "exec"
        running = await container.running(purpose)
        check_goes_on(container, purpose)
        if copies:
            prepared = _copying(container, call, running.job)
        elif container.paused:
            raise StateError(
                f"container {container.id}: exec is not possible: it is paused; resume it"
            )
        else:
            prepared = await look(
                "the bundle", prepare, call, running.bundle, running.staged, stdio.terminal
            )
        await container.trail.runs("scrun cp" if copies else prepared.process["args"][0])
        if stdio.preserved and not running.job.hands_on:
            await container.tell_missed(stdio, ["--preserve-fds"])
        programs = container.programs
        in_step = not call.parsed.count("detach") and bool(
            place_of(call.pid, call.child_env.environment).step
        )
        parts = (running.journal, anchor, stdio, programs.deposit())
        session = LiveSession(call.pid, *parts, in_step=in_step)
        if not programs.begin(session, partial(session.run, running.job, prepared)):
            text = f"container {container.id}: {purpose} is not possible: it has ended"
            raise StateError(text)
    except BaseException:
        stdio.close()
        with trio.CancelScope(shield=True):
            await anchor.close()
        raise
    await session.settled.wait()
    if session.failure is not None:
        raise session.failure


def _copying(container: Container, call: CommandLine, job: Job) -> Prepared:
    """Return what copies files; raises StateError if its job does not."""
    if not job.copies_files:
        raise StateError(
            f"container {container.id}: cp needs a shim, which this container does not have: "
            'use tar with `scrun exec`, or set launch = "shim" in scrun.toml'
        )
    copied = read_copied(call.parsed.operands)
    return Prepared({}, True, Files(copied.direction, copied.path))


def check_goes_on(container: Container, purpose: str) -> None:
    """Raise StateError for what its node has to answer, which a suspended job would delay."""
    if container.suspended:
        raise StateError(
            f"container {container.id}: {purpose} is not possible: an administrator or the "
            "scheduler has suspended its job; wait until Slurm resumes it"
        )


async def pause(container: Container, *, resume: bool) -> None:
    """Pause or resume a container; StateError if it does not run, or is so already."""
    purpose = "resume" if resume else "pause"
    running = await container.running(purpose)
    check_goes_on(container, purpose)
    if container.paused is not resume:
        word = "is not paused" if resume else "is already paused"
        raise StateError(f"container {container.id} {word}")
    await running.job.pause(resume=resume)
    container.set_paused(not resume)


def prepare(call: CommandLine, bundle: Bundle, staged: Staged, terminal: int | None) -> Prepared:
    """Read and check the request. Reads the user's files, which may hang.

    `terminal` is a descriptor of the program's terminal, if it gets one.

    Raises:
        UsageError: The command is missing or malformed.
        BundleError: The file of `--process` is wrong, or the program does not exist.
        StateError: The container has no such user.
    """
    parsed = call.parsed
    running = _as_it_runs(bundle, staged)
    if path := parsed.text("process"):
        name = os.path.join(call.directory, path)
        process, typed = process_from_file(read_file(name), name)
        process["terminal"] = terminal is not None
    else:
        options = _exec_options(parsed, bundle, staged, terminal=terminal is not None)
        process = process_from_options(options, running.get("process") or {})
        typed = checked(process, f"{parsed.command} {parsed.id}")
    kept = {limit["type"] for limit in (running.get("process") or {}).get("rlimits") or []}
    if limits := process.get("rlimits"):
        process["rlimits"] = [limit for limit in limits if limit["type"] in kept]
    for unwanted in ("rlimits", "apparmorProfile", "selinuxLabel", "oomScoreAdj"):
        if unwanted not in (running.get("process") or {}):
            process.pop(unwanted, None)  # staging removed it: the node does not support it
    fitting_user(process, running)
    if terminal is not None:
        if typed.console_size:
            give_a_size(terminal, typed.console_size)
        columns, rows = os.get_terminal_size(terminal)
        process["consoleSize"] = {"height": rows, "width": columns}
    if staged.overlaid:  # only its node knows what is there by now
        return Prepared(process, False)
    looking_at = _looking_at(bundle, staged, typed)
    program, directory = find_program(looking_at), find_directory(looking_at)
    for found in (directory, program):
        if isinstance(found, NotFound):
            raise NotRunnableError(found.message, found.exit_status)
    return Prepared(process, isinstance(program, Found) and isinstance(directory, str))


def _as_it_runs(bundle: Bundle, staged: Staged) -> Mapping[str, Any]:
    """Return the config.json that the container runs with.

    If a script staged the bundle where only the nodes see it, returns the submitted one.
    """
    name = os.path.join(staged.bundle, "config.json")
    if not os.path.exists(name):
        return bundle.raw
    return read_config(name)[0]


def _looking_at(bundle: Bundle, staged: Staged, process: Process) -> Bundle:
    config = msgspec.structs.replace(bundle.config, process=process)
    rootfs = staged.rootfs if os.path.isdir(staged.rootfs) else bundle.rootfs
    return msgspec.structs.replace(bundle, config=config, rootfs=rootfs)


def _exec_options(
    parsed: Parsed, bundle: Bundle, staged: Staged, *, terminal: bool
) -> ExecOptions:
    words = parsed.operands
    if parsed.command == "shell" and (not words or words[0].startswith("-")):
        words = [_best_shell(bundle, staged), *words]
    if not words:
        raise UsageError("exec needs a command, or --process FILE: see 'scrun exec --help'")
    return ExecOptions(
        args=words,
        env=parsed.texts("env"),
        cwd=parsed.text("cwd"),
        user=parsed.text("user"),
        groups=parsed.texts("additional-gids"),
        capabilities=parsed.texts("cap"),
        no_new_privileges=bool(parsed.count("no-new-privs")),
        terminal=terminal,
    )


def _best_shell(bundle: Bundle, staged: Staged) -> str:
    """Return the name of the most comfortable shell in a container; or NotRunnableError."""
    if file_of(bundle.rootfs):
        return _SHELLS[-1]
    for name in _SHELLS:
        process = msgspec.structs.replace(bundle.config.process, args=[name])
        if isinstance(find_program(_looking_at(bundle, staged, process)), Found):
            return name
    raise NotRunnableError(
        f"no shell found in the container ({', '.join(_SHELLS)}): name a program, or use exec", 127
    )
