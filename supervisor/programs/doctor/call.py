"""A call of doctor: its environment, and the settings and the engine that follow from it."""

import inspect
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from scrun.cli.parse import Parsed, parse, record_root, typed_settings
from scrun.core.errors import ScrunError, described
from scrun.oci.signals import its_end
from scrun.settings.file.load import Settings, merge
from scrun.settings.oci_conf.commands import program_of
from scrun.settings.oci_conf.parse import OciConf, beside, parse_oci_conf
from scrun.settings.slurm.versions import SlurmVersion, parse_version
from scrun.settings.slurm_conf import find_slurm_conf, read_conf
from scrun.supervisor.children.processes import SYSTEM_PATH, ChildEnv, child
from scrun.supervisor.children.pumps import messages
from scrun.supervisor.contracts.create_request import own_create_request
from scrun.supervisor.contracts.engine import Engine
from scrun.supervisor.core.names import learn
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.engines.slurm.engine import SlurmEngine
from scrun.supervisor.engines.slurm.tools import Tools, find_tools
from scrun.supervisor.plugins.choose import Engines
from scrun.supervisor.plugins.registry import Plugins
from scrun.supervisor.programs.doctor.findings import Finding, Status

Reporter = Callable[[str, Finding], None]
"""Takes the name of an item, and what was found of it; "" is the check's only item."""


class DoctorCall(msgspec.Struct, frozen=True):
    """A call of doctor; the settings are defaults where the files are wrong.

    `errors` say why there are no "settings", "root" or "engine". Only Slurm has `tools`; `conf` is
    the slurm.conf in use, if any.
    """

    parsed: Parsed
    child_env: ChildEnv
    directory: str
    settings: Settings
    root: str
    root_is_new: bool
    engine: Engine | None
    tools: Tools | None
    conf: str | None
    errors: Mapping[str, str]

    @property
    def environment(self) -> Mapping[str, str]:
        return self.child_env.environment

    @property
    def oci_conf(self) -> str:
        return beside(self.conf)

    @property
    def by_slurm(self) -> bool:
        """Whether containers run, or should run, in Slurm jobs."""
        return isinstance(self.engine, SlurmEngine) or self.settings.engine == "slurm"

    def which(self, name: str) -> str | None:
        path = os.pathsep.join(filter(None, (self.environment.get("PATH"), SYSTEM_PATH)))
        return shutil.which(name, path=path)

    def slurm_tool(self, name: str) -> str | None:
        if self.settings.slurm.bin:
            return shutil.which(name, path=self.settings.slurm.bin)
        return self.which(name)

    def missing(self, conf: OciConf) -> dict[str, str]:
        """Return the programs of an oci.conf that are not on this machine, once, by key."""
        found: dict[str, str] = {}
        for key, pattern in conf.commands.items():
            name = program_of(pattern)
            if name and name not in found.values() and self.which(name) is None:
                found[key] = name
        return found

    async def lacks_conf(self) -> bool:
        """Return whether the slurm.conf in use cannot be read.

        Without it Slurm's commands, also with `--version`, try for a minute (measured with 22.05).
        """
        conf = self.conf
        return conf is not None and not await in_thread(os.access, conf, os.R_OK, abandon=True)

    @property
    def slurm_setting(self) -> ChildEnv:
        return self.tools.child_env(self.child_env) if self.tools else self.child_env


class Check(msgspec.Struct, frozen=True):
    """A row of the table of checks.

    `run` reports the items of these names. A missing one is reported as its exception, with the
    `status` and `remedy`, or as not tried. The deadline is in seconds; `spared` returns why there
    is nothing to check, or "".
    """

    names: tuple[str, ...]
    run: Callable[[DoctorCall, Reporter], Awaitable[None]]
    deadline: float = 15.0
    spared: Callable[[DoctorCall], str] = lambda _: ""
    status: Status = "fail"
    remedy: str = "correct that first"


def one(
    judge: Callable[[DoctorCall], Finding | Awaitable[Finding]],
) -> Callable[[DoctorCall, Reporter], Awaitable[None]]:
    """Report one item; a function that blocks runs in a thread that may be abandoned."""

    async def run(call: DoctorCall, report: Reporter) -> None:
        is_async = inspect.iscoroutinefunction(judge)
        found = judge(call) if is_async else await in_thread(judge, call, abandon=True)
        report("", found if isinstance(found, Finding) else await found)

    return run


def without_slurm(call: DoctorCall) -> str:
    """Spare what only Slurm needs."""
    return "" if call.by_slurm else "not needed"


class Done(msgspec.Struct, frozen=True):
    """A command that has ended: its status, or a signal's negative number, and its output."""

    status: int
    lines: tuple[str, ...]

    @property
    def said(self) -> list[str]:
        """The lines that are not blank, or the status."""
        lines = [line.strip() for line in self.lines]
        return [*filter(None, lines)] or [f"it {its_end(self.status)}"]


async def run_tool(argv: Sequence[str], child_env: ChildEnv, *, directory: str = "/") -> Done:
    """Run a command that prints little; cancelling this ends the command."""
    lines: list[str] = []
    async with (
        messages(lines.append) as output,
        child(
            argv, child_env, stdout=output, stderr=output, grace=0.5, directory=directory
        ) as running,
    ):
        status = await running.wait()
    return Done(status, tuple(lines))


def read_oci_conf(path: str) -> OciConf:
    return parse_oci_conf(read_conf(path), path)


async def slurm_version(call: DoctorCall) -> SlurmVersion | None:
    """Ask Slurm for its version; None without Slurm's commands or a readable slurm.conf."""
    salloc = call.slurm_tool("salloc")
    if salloc is None or await call.lacks_conf():
        return None
    done = await run_tool([salloc, "--version"], call.slurm_setting)
    return parse_version("\n".join(done.lines))


async def examine(argv: list[str], plugins: Plugins) -> DoctorCall:
    """Collect what the checks need; the plugins have to exist while the engine is used."""
    os.umask(umask := os.umask(0o077))
    await in_thread(learn, abandon=True)
    environment = dict(os.environ)
    parsed, here = parse(argv), os.getcwd()
    errors: dict[str, str] = {}
    root, engine, tools = "", None, None
    settings = Settings()
    with _noted(errors, "settings"):
        settings = merge(settings, options=typed_settings(parsed, here), env=environment)
    errors.clear()
    with _noted(errors, "settings"):  # as `create` reads them
        settings = own_create_request(argv, "doctor").settings
    with _noted(errors, "root"):
        root = record_root(parsed)
    is_new = bool(root) and not await in_thread(os.path.lexists, root, abandon=True)
    conf = find_slurm_conf(settings)
    with _noted(errors, "engine"):
        engine = await Engines(root or "/", plugins).choose(settings, environment)
        if isinstance(engine, SlurmEngine):
            tools = find_tools(settings.slurm.bin, conf, environment)
    child_env = ChildEnv(environment, umask)
    return DoctorCall(parsed, child_env, here, settings, root, is_new, engine, tools, conf, errors)


@contextmanager
def _noted(errors: dict[str, str], what: str) -> Iterator[None]:
    try:
        yield
    except (ScrunError, OSError) as error:
        errors[what] = described(error)
