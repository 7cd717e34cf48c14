"""Runs the scripts of one container in their worker: opens contexts and calls functions.

One worker serves all contexts of a container, as long as a script may still be called. An idle
container has no worker, unless one of its scripts has a function for the end.

salloc and srun read the same plugstack.conf. Where they find lua.so, they call the scripts
themselves: salloc in the allocator context, srun in the local one. scrun then calls only
slurm_spank_init, to know the options to pass on. Calling the other functions would do everything
twice.
"""

import itertools
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence

import msgspec
import trio

from scrun.core.errors import SpankError
from scrun.core.typed import decode_as
from scrun.settings.file.load import Lua, Settings
from scrun.settings.slurm_conf import find_slurm_conf, read_slurm_conf
from scrun.settings.spank.plugstack import Option, StackScript
from scrun.supervisor.children.processes import ChildEnv
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.scripts.process import Worker, working
from scrun.supervisor.scripts.spank.items import ContextName, JobFacts, SpankItems, state

Native = frozenset[str]
"""Lines of plugstack.conf, as their file and number."""

_ENDS: Mapping[ContextName, Sequence[str]] = {
    "local": ("slurm_spank_exit",),
    "allocator": ("slurm_spank_exit",),
    "remote": ("slurm_spank_task_exit", "slurm_spank_exit"),
    "slurmd": ("slurm_spank_slurmd_exit",),
    "job_script": (),
}
"""The callbacks at the end of a context."""


class Variables:
    """The job's environment, as scripts see it and changed it (None: unset), and the control's."""

    def __init__(self, job: Mapping[str, str], control: Mapping[str, str] | None = None) -> None:
        self.job = dict(job)
        self.control = dict(control or {})
        self.changed: dict[str, str | None] = {}

    def change(self, kind: str, name: str, value: str | None) -> None:
        variables = self.control if kind == "control" else self.job
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
        if kind == "job":
            self.changed[name] = value


class LoadedScript(msgspec.Struct):
    """A script of a context, by its number; unknown are functions that nobody calls."""

    script: StackScript
    number: int
    functions: Sequence[str]
    options: dict[str, Option]
    unknown: Sequence[str] = ()


class Context:
    """The scripts in a context, with its environments."""

    def __init__(self, name: ContextName, variables: Variables) -> None:
        self.name = name
        self.members: list[LoadedScript] = []
        self.variables = variables

    @property
    def options(self) -> dict[str, tuple[LoadedScript, Option]]:
        found: dict[str, tuple[LoadedScript, Option]] = {}
        for member in self.members:
            for name, option in member.options.items():
                found.setdefault(name, (member, option))
        return found

    def expects(self, *functions: str) -> bool:
        """Return whether a script has a callback for the end of the context, or one of these."""
        awaited = (*_ENDS[self.name], *functions)
        return any(name in member.functions for member in self.members for name in awaited)


class Scripts:
    """The scripts of one container; the command line's options have arguments, or are True."""

    def __init__(
        self,
        source: str,
        scripts: Sequence[StackScript],
        settings: Lua,
        timeout: float,
        child_env: ChildEnv,
        directory: str,
        journal: Journal,
        nursery: trio.Nursery,
        facts: JobFacts,
    ) -> None:
        """A function may take `timeout` seconds; `source` is the plugstack.conf."""
        self.given: dict[str, str | bool] = {}
        self.facts = facts
        self._source = source
        self._scripts = scripts
        self._settings = settings
        self._timeout = timeout
        self._child_env = child_env
        self._directory = directory
        self._journal = journal
        self._nursery = nursery
        self._contexts: list[Context] = []
        self._worker: Worker | None = None
        self._enough = trio.Event()

    async def open(self, name: ContextName, variables: Variables) -> Context:
        """Load a context's scripts; one that fails is left out, without failonerror."""
        context = Context(name, variables)
        settings = self._settings
        paths = [script.path for script in self._scripts]
        numbers = str(settings.memory << 20), str(settings.output_limit << 20)
        trusted = ",".join(sorted({str(uid) for one in self._scripts for uid in one.trusted}))
        answers = await self._ask(
            self._source, "open", name, settings.version, *numbers, self.facts.version, trusted,
            *paths, until=b"opened",
        )  # fmt: skip
        self._contexts.append(context)
        for number, (script, answer) in enumerate(zip(self._scripts, answers, strict=True), 1):
            loaded = decode_as(answer, _Loaded)
            if not loaded.error:
                options = {option.name: option for option in loaded.options}
                member = LoadedScript(script, number, loaded.functions, options, loaded.unknown)
                context.members.append(member)
                for function in loaded.unknown:
                    text = f"{script.path}: {function}: no such callback, so it is never called"
                    self._journal.write("info", text)
                continue
            if loaded.trace.strip():
                self._journal.write("debug", loaded.trace)
            failure = f"{script.path}: {loaded.error}"
            if script.line.fails_on_error:
                self._failed(script, failure)
            else:
                self._journal.write("error", f"{failure}; it is left out")
        return context

    async def close(self, context: Context) -> None:
        if context in self._contexts:
            self._contexts.remove(context)
            if self._worker is not None:
                await self._worker.tell("close", context.name)

    def end_if_idle(self, *expected: str) -> None:
        """End the worker if no open context has a function left, or in `expected`, to call."""
        if not any(context.expects(*expected) for context in self._contexts):
            self.end()

    async def call(
        self, context: Context, callback: str, chosen: Callable[[LoadedScript], bool] | None = None
    ) -> None:
        """Call a function of all or chosen scripts, by line; a required one has to succeed."""
        members = [
            member
            for member in context.members
            if callback in member.functions and (chosen is None or chosen(member))
        ]
        for _, line in itertools.groupby(members, key=lambda member: member.script.line.where):
            failures = []
            for member in line:
                state = self._state(context, callback, member)
                request = ("call", context.name, str(member.number), callback, _json(state))
                if reason := await self._call(context, member, callback, *request):
                    failures.append((member.script, reason))
            for script, reason in failures:
                self._failed(script, reason)

    async def call_back(self, context: Context, name: str, value: str | None) -> None:
        member, option = context.options[name]
        if not option.function:
            return
        kind, argument = ("", "") if value is None else ("1", value)
        remote = "1" if context.name == "remote" else ""
        request = (
            "back", context.name, str(member.number), option.function, str(option.val), kind,
            argument, remote, _json(self._state(context, "", member)),
        )  # fmt: skip
        shown = f"--{name}" if value is None else f"--{name}={value}"
        if reason := await self._call(context, member, f"{option.function} of {shown}", *request):
            raise SpankError(reason)

    def _state(self, context: Context, callback: str, member: LoadedScript) -> SpankItems:
        variables = context.variables
        return state(
            context.name,
            callback,
            self.facts,
            arguments=member.script.line.arguments,
            job=variables.job,
            control=variables.control,
            given=self.given,
        )

    async def _call(
        self, context: Context, member: LoadedScript, function: str, *request: str | bytes
    ) -> str:
        path = member.script.path
        try:
            answer = await self._ask(path, *request, until=b"called")
        except SpankError as error:  # the worker has ended, and all contexts with it
            return str(error)
        failed, reason, trace, *changes = (os.fsdecode(field) for field in answer)
        for change in changes:
            self._change(context, member, change)
        assert self._worker is not None
        if reason:
            self._worker.trace(trace)
            text = f"{path}: {function}: {reason}"
            if member.script.line.fails_on_error:
                return text
            self._journal.write("error", text)
        if not failed:
            return ""
        last_error = self._worker.last_error
        return f"{path}: {function} returned {failed}" + (f": {last_error}" if last_error else "")

    def _change(self, context: Context, member: LoadedScript, change: str) -> None:
        if change.startswith("option"):
            option = decode_as(change.removeprefix("option"), Option)
            member.options[option.name] = option
            return
        kind = "control" if change.startswith("control") else "job"
        rest = change.removeprefix(kind)
        name, _, value = rest[1:].partition("=")
        context.variables.change(kind, name, value if rest[0] == "+" else None)

    def _failed(self, script: StackScript, reason: str) -> None:
        if script.line.required:
            raise SpankError(f"{reason} (required by {script.line.where})")
        self._journal.write("error", f"{reason} (ignored: optional in {script.line.where})")

    async def _ask(self, subject: str, *request: str | bytes, until: bytes) -> list[bytes]:
        done = False
        try:
            worker = self._worker or await self._start()
            worker.subject, worker.label = subject, os.path.basename(subject)
            worker.last_error = ""
            with trio.move_on_after(self._timeout):
                answer = await worker.ask(*request, until=until)
                done = True
        finally:
            if not done:
                self.end()
        if not done:
            raise SpankError(f"{subject}: took longer than {self._timeout:g} s")
        return answer

    async def _start(self) -> Worker:
        self._enough = trio.Event()
        self._worker = await self._nursery.start(self._keep, self._enough)
        return self._worker

    async def _keep(
        self,
        enough: trio.Event,
        *,
        task_status: trio.TaskStatus[Worker] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the worker until `enough` is set, whatever is cancelled meanwhile."""
        with trio.CancelScope(shield=True):
            async with working(
                self._source, SpankError, self._settings, self._child_env, self._directory,
                self._journal,
            ) as worker:  # fmt: skip
                task_status.started(worker)
                await enough.wait()

    def end(self) -> None:
        self._enough.set()
        self._worker = None
        for context in self._contexts:
            context.members.clear()
        self._contexts.clear()


class _Loaded(msgspec.Struct):
    error: str = ""
    trace: str = ""
    functions: list[str] = []
    unknown: list[str] = []
    options: list[Option] = []


def _json(state: SpankItems) -> bytes:
    # json and not msgspec: a variable need not be UTF-8
    return json.dumps(msgspec.to_builtins(state)).encode()


_USUAL = (
    "/usr/lib64/slurm",
    "/usr/lib/slurm",
    "/usr/lib/slurm-wlm",
    "/usr/local/lib/slurm",
    "/usr/lib/x86_64-linux-gnu/slurm-wlm",
    "/usr/lib/aarch64-linux-gnu/slurm-wlm",
)


def loaded_by_slurm(scripts: Sequence[StackScript], settings: Settings) -> Native:
    """Return the lines that Slurm's tools on this machine load. Call this in a thread."""
    conf = find_slurm_conf(settings)
    path = read_slurm_conf(conf).get("plugindir", "") if conf else ""
    directories = [entry for entry in path.split(":") if entry] or _directories(settings)
    lines = {script.line.where: script.line.plugin for script in scripts}
    return frozenset(
        where
        for where, plugin in lines.items()
        if any(os.path.exists(os.path.join(directory, plugin)) for directory in directories)
    )


def _directories(settings: Settings) -> list[str]:
    """Return the usual plugin directories: beside Slurm's tools, and those of packages."""
    salloc = shutil.which("salloc", path=settings.slurm.bin or None)
    if salloc is None:
        return [*_USUAL]
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(salloc)))
    return [os.path.join(prefix, library, "slurm") for library in ("lib", "lib64")] + [*_USUAL]
