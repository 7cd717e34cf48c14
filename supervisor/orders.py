"""What a `create` asks for: its request, read again here."""

import os
from collections.abc import Sequence

import msgspec

from scrun.cli.parse import Parsed, parse
from scrun.errors import UsageError
from scrun.settings.load import Settings, load, merge
from supervisor.processes import Setting

_OF_CRUN = {"warning": "info"}
_LOUDER = ("info", "verbose", "debug", "debug2", "debug3", "debug4", "debug5")


class Order(msgspec.Struct, frozen=True):
    """A request for a container.

    Attributes:
        id: The container's id.
        pid: The anchor's pid.
        bundle: The bundle's directory, absolute.
        config_file: What to read instead of its config.json, absolute, or None.
        directory: The caller's working directory.
        setting: The caller's environment and umask.
        settings: The settings that hold for it.
        has_console: Whether a terminal was made and its master sent to the engine.
    """

    id: str
    pid: int
    bundle: str
    config_file: str | None
    directory: str
    setting: Setting
    settings: Settings
    has_console: bool


def read_order(fields: Sequence[bytes]) -> Order:
    """Read the fields of a request `create` (see `scrun.wire`). Reads the settings files.

    Raises:
        UsageError: The request makes no sense.
        SettingsError: The settings do not.
    """
    try:
        pid, umask, directory, count = fields[:4]
        number = 4 + int(count)
        words = [os.fsdecode(word) for word in fields[4:number]]
        pairs = (os.fsdecode(entry).partition("=") for entry in fields[number:])
        environment = {name: value for name, _, value in pairs if name}
        caller = Setting(environment, int(umask, 8))
        anchor = int(pid)
    except (ValueError, IndexError) as error:
        raise UsageError(
            "a request that was not understood; is another scrun installed?"
        ) from error
    parsed = parse(words)
    here = os.fsdecode(directory)
    config_file = parsed.text("config")
    return Order(
        id=parsed.id or "",
        pid=anchor,
        bundle=os.path.normpath(os.path.join(here, parsed.text("bundle") or ".")),
        config_file=os.path.join(here, config_file) if config_file else None,
        directory=here,
        setting=caller,
        settings=_settings(parsed, environment, here),
        has_console=parsed.text("console-socket") is not None,
    )


def _settings(parsed: Parsed, environment: dict[str, str], here: str) -> Settings:
    config_file = parsed.text("config-file")
    settings = load(environment, os.path.join(here, config_file) if config_file else None)
    options: dict[str, str] = {}
    if engine := parsed.text("engine"):
        options["engine"] = engine
    if conf := parsed.text("slurm-conf"):
        options["slurm.conf"] = os.path.join(here, conf)
    louder = parsed.count("verbose")
    if parsed.options.get("debug"):
        options["log.level"] = "debug"
    elif louder:
        options["log.level"] = _LOUDER[min(louder, len(_LOUDER) - 1)]
    elif log_level := parsed.text("log-level"):
        options["log.level"] = _OF_CRUN.get(log_level, log_level)
    return merge(settings, options=options, env=environment)
