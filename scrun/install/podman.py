"""podman's containers.conf: its files, their runtimes, and the file that scrun adds.

See containers.conf(5) and containers-config(5). Measured with podman 4.3.1: it reads the
directories `containers.conf.d`, merges `[engine.runtimes]` key by key, and as root reads no file
in a home. No other setting is needed: staging removes podman's limits from config.json where they
do not apply, and its network where it does not exist.
"""

import glob
import json
import os
import string
import tomllib
from collections.abc import Mapping, Sequence

import msgspec

from scrun.core.errors import SettingsError, why

NAME = "scrun"
_FILES = {"podman": "scrun.conf", "docker-api": "scrun-api.conf"}
_WRITTEN = "# Written by `scrun install"
_SYSTEM = "/etc/containers"
_VENDOR = "/usr/share/containers"
_DRIVER, _GRAPHROOT = "overlay", "/var/lib/containers/storage"  # podman's own choice
WITHOUT_COPIES = ("overlay", "vfs")
"""The storage drivers whose root file systems the nodes of a cluster can use, if they see them."""
STORAGE = (
    'a container\'s root file system is copied at each start on Slurm; set driver = "overlay" in '
    "storage.conf"
)
"""The effect of other drivers, and the remedy."""


def drop_in(directory: str, name: str = "podman") -> str:
    """Return the file that `scrun install NAME` adds below a directory such as /etc/containers."""
    return f"{directory}/containers.conf.d/{_FILES[name]}"


def directory(home_config: str | None) -> str:
    """Return the directory of podman's files; without `home_config` that for all users."""
    return _SYSTEM if home_config is None else f"{home_config}/containers"


def text(program: str, *, default: bool = False, name: str = "podman") -> str:
    """Return the text of the file that `scrun install NAME` adds."""
    mark = f"{_WRITTEN} {name}`; `scrun install {name} --undo` removes it.\n"
    engine = f'[engine]\nruntime = "{NAME}"\n\n' if default else ""
    # JSON's strings are valid in TOML; `launcher.find` refuses control characters
    return (
        f"{mark}{engine}[engine.runtimes]\n{NAME} = [{json.dumps(program, ensure_ascii=False)}]\n"
    )


def is_ours(content: str) -> bool:
    """Tell whether scrun has written the file."""
    return content.startswith(_WRITTEN)


class Storage(msgspec.Struct, frozen=True):
    """podman's storage of images and containers; its directory may not exist."""

    driver: str
    graphroot: str


def storage(env: Mapping[str, str], home_config: str | None, home: str) -> Storage:
    """Return podman's storage, according to containers-storage.conf(5).

    Without `home_config` that of root's podman.
    """
    own = [env.get("CONTAINERS_STORAGE_CONF", "")]
    own += [f"{home_config}/containers/storage.conf"] if home_config else []
    everybodys = [f"{_SYSTEM}/storage.conf", f"{_VENDOR}/storage.conf"]
    path = next((path for path in [*own, *everybodys] if path and os.path.isfile(path)), None)
    found = _table(path, "storage") if path else {}
    table = found if isinstance(found, dict) else {}

    def text(key: str) -> str:
        value = table.get(key)
        return value if isinstance(value, str) else ""

    driver = env.get("STORAGE_DRIVER") or text("driver") or _DRIVER
    if home_config is None:
        return Storage(driver, text("graphroot") or _GRAPHROOT)
    # an ordinary user's podman ignores graphroot in a file for all users
    graphroot = text("graphroot") if path in own else text("rootless_storage_path")
    known = {"HOME": home, "USER": os.path.basename(home), "UID": str(os.geteuid())}
    graphroot = string.Template(graphroot).safe_substitute({**known, **env})
    data = env.get("XDG_DATA_HOME") or f"{home}/.local/share"
    return Storage(driver, graphroot or f"{data}/containers/storage")


def _table(path: str, section: str) -> object:
    """Return a section of a file; an empty table where there is none."""
    try:
        with open(path, "rb") as file:
            table: object = tomllib.load(file).get(section, {})
    except OSError as error:
        raise SettingsError(f"{path}: {why(error)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not TOML: {error}") from error
    return table


def files(
    env: Mapping[str, str],
    home_config: str | None,
    vendor: str = _VENDOR,
    system: str = _SYSTEM,
) -> list[str]:
    """List the files that podman reads; later ones take precedence."""
    if env.get("CONTAINERS_CONF"):
        found = [env["CONTAINERS_CONF"]]
    else:
        found = []
        for parent in (vendor, system, *([f"{home_config}/containers"] if home_config else ())):
            found.append(f"{parent}/containers.conf")
            found += sorted(glob.glob(f"{glob.escape(parent)}/containers.conf.d/*.conf"))
    if env.get("CONTAINERS_CONF_OVERRIDE"):
        found.append(env["CONTAINERS_CONF_OVERRIDE"])
    return [path for path in found if os.path.isfile(path)]


def merged(paths: Sequence[str]) -> dict[str, object]:
    """Read the section [engine] of these files, merged as by podman.

    Its `runtimes` is an object of lists, and `runtimes.scrun` is in it with the file that named it
    under the key `scrun named by`.
    """
    engine: dict[str, object] = {}
    runtimes: dict[str, object] = {}
    for path in paths:
        table = _table(path, "engine")
        if not isinstance(table, dict):
            raise SettingsError(f"{path}: engine: not a table")
        named = table.pop("runtimes", {})
        engine.update(table)
        if isinstance(named, dict):
            runtimes.update(named)
            if NAME in named:
                engine["scrun named by"] = path
    return {**engine, "runtimes": runtimes}


def programs(engine: Mapping[str, object]) -> list[str]:
    """Return the programs that podman tries for `--runtime scrun`, from what `merged` read."""
    runtimes = engine.get("runtimes")
    named = runtimes.get(NAME) if isinstance(runtimes, dict) else None
    return [path for path in named if isinstance(path, str)] if isinstance(named, list) else []
