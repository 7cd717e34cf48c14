"""Contexts of scripts: the scripts loaded in one, and the environments that they change."""

from collections.abc import Mapping, Sequence

import msgspec

from scrun.settings.spank.plugin_options import Option
from scrun.settings.spank.plugstack import StackScript
from scrun.supervisor.scripts.spank.items import ContextName

_ENDS: Mapping[ContextName, Sequence[str]] = {
    "local": ("slurm_spank_exit",),
    "allocator": ("slurm_spank_exit",),
    "remote": ("slurm_spank_task_exit", "slurm_spank_exit"),
    "slurmd": ("slurm_spank_slurmd_exit",),
    "job_script": (),
}
"""The callbacks at the end of a context."""


class Variables:
    """The environments that scripts change.

    Attributes:
        job: The job's environment, as the scripts of this context see it.
        control: The job control environment.
        changed: The changes to the job's environment; None for a variable that was unset.
    """

    def __init__(self, job: Mapping[str, str], control: Mapping[str, str] | None = None) -> None:
        self.job = dict(job)
        self.control = dict(control or {})
        self.changed: dict[str, str | None] = {}

    def change(self, kind: str, name: str, value: str | None) -> None:
        """Set a variable in one of the two environments, or unset it."""
        variables = self.control if kind == "control" else self.job
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
        if kind == "job":
            self.changed[name] = value


class LoadedScript(msgspec.Struct):
    """A script, loaded in a context.

    Attributes:
        number: Its number in the worker.
        unknown: Functions that are named like callbacks, and are never called.
        options: The options that it registered, by name.
    """

    script: StackScript
    number: int
    functions: Sequence[str]
    options: dict[str, Option]
    unknown: Sequence[str] = ()


class Context:
    """The scripts in a context.

    Attributes:
        variables: The environments.
    """

    def __init__(self, name: ContextName, variables: Variables) -> None:
        self.name = name
        self.members: list[LoadedScript] = []
        self.variables = variables

    @property
    def options(self) -> dict[str, tuple[LoadedScript, Option]]:
        """The registered options, by name; the first script with a name gets it."""
        found: dict[str, tuple[LoadedScript, Option]] = {}
        for member in self.members:
            for name, option in member.options.items():
                found.setdefault(name, (member, option))
        return found

    def expects(self, *functions: str) -> bool:
        """Return whether a script has a callback for the end of the context, or one of these."""
        awaited = (*_ENDS[self.name], *functions)
        return any(name in member.functions for member in self.members for name in awaited)
