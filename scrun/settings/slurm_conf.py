"""Find and read Slurm's configuration.

`logical_lines` and `pairs` parse the syntax that slurm.conf, oci.conf and other files share, as
Slurm's `parse_config.c` does: `#` without a backslash begins a comment, a backslash at the end of
a line continues it, any other backslash escapes the next character, and a value is quoted or has
no white space.
"""

import os
import pwd
import re
from collections.abc import Collection, Iterator

from scrun.core.errors import BundleError, SettingsError, why
from scrun.core.paths import of_path, read_trusted, replaceable
from scrun.oci.document import read_file
from scrun.settings.file.load import Settings

PLACES = (
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/run/slurm/conf/slurm.conf",  # where slurmd keeps what it fetched ("configless")
)

# Lines that describe one of many objects; their other pairs are not settings of the cluster.
_LISTS = frozenset(
    ("nodename", "nodeset", "partitionname", "frontendname", "downnodes", "switchname")
)
_PAIR = re.compile(r'\s*([A-Za-z0-9_.]+)\s*[-*+/]?=\s*(?:"([^"]*)"|(\S+))(?=\s|$)')
_INCLUDE = re.compile(r"\s*include\s+(\S+)\s*$", re.IGNORECASE)
_DEPTH = 10
_FILES = 1000


def find_slurm_conf(settings: Settings, places: tuple[str, ...] = PLACES) -> str | None:
    """Find the slurm.conf to use.

    One named by `-f`, SLURM_CONF or the settings file comes first, in this order; `merge` has put
    it into `settings`. It is not checked, so that Slurm's tools report a wrong one, instead of
    using another cluster silently. Else the usual places are tried.
    """
    if settings.slurm.conf is not None:
        return settings.slurm.conf
    return next((path for path in places if os.path.isfile(path)), None)


def read_slurm_conf(path: str) -> dict[str, str]:
    """Read a slurm.conf with its includes, without nodes: the last of each lower-case name."""
    found: dict[str, str] = {}
    _collect(path, os.path.dirname(path), found, _DEPTH, [])
    return found


def slurm_user(conf: str | None) -> tuple[int, ...]:
    """Return the SlurmUser of a slurm.conf, whose files are trusted as root's are.

    slurmctld runs as that user and decides as whom jobs run, so it can do all that root can.
    Looking the name up may hang: call this in a thread.
    """
    try:
        name = read_slurm_conf(conf).get("slurmuser", "root") if conf else "root"
        return (int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid,)
    except (SettingsError, KeyError):  # Slurm's tools report it
        return ()


def check_trusted(path: str, trusted: Collection[int]) -> None:
    """Refuse a script that somebody else could have written; its reader checks it again."""
    try:
        reason = replaceable(path, trusted)
    except OSError:
        return  # its reader reports it
    if reason:
        raise SettingsError(of_path(path, reason))


def read_trusted_conf(path: str, trusted: Collection[int]) -> str:
    """Read a configuration file that decides what runs; `trusted` as in `scrun.core.paths`."""
    try:
        return read_trusted(path, trusted).decode(errors="surrogateescape")
    except OSError as error:
        raise SettingsError(f"{path}: {why(error)}") from error
    except ValueError as error:  # NUL or a lone surrogate
        raise SettingsError(f"{path!r}: is not a file name: {error}") from error


def read_conf(path: str) -> str:
    """Read a configuration file; bytes that are not UTF-8 are preserved (surrogateescape)."""
    try:
        return read_file(path).decode(errors="surrogateescape")
    except BundleError as error:
        raise SettingsError(str(error)) from error


def pairs(line: str) -> tuple[list[tuple[str, str]], str]:
    """Split a logical line into its pairs, and the rest that is not a pair."""
    found = []
    position = 0
    while match := _PAIR.match(line, position):
        found.append((match[1], match[2] if match[2] is not None else match[3]))
        position = match.end()
    return found, line[position:].strip()


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Join continued lines, drop comments, resolve backslashes; each with its line number."""
    line, first = "", 0
    for number, physical in enumerate(text.split("\n"), 1):
        first = first or number
        content = _strip_comment(physical)
        stripped = content.rstrip()
        if (len(stripped) - len(stripped.rstrip("\\"))) % 2:
            line += stripped[:-1]
            continue
        yield first, re.sub(r"\\(.?)", r"\1", line + content)
        line, first = "", 0
    if line:
        yield first, re.sub(r"\\(.?)", r"\1", line)


def _strip_comment(line: str) -> str:
    marks = (found for found in re.finditer(r"\\.|#", line) if found[0] == "#")
    mark = next(marks, None)
    return line[: mark.start()] if mark else line


def _collect(
    path: str, directory: str, found: dict[str, str], depth: int, read: list[str]
) -> None:
    """Read a file and those that it includes; `read` are the files read so far."""
    if depth == 0:
        raise SettingsError(f"{path}: included more than {_DEPTH} levels deep")
    if len(read) == _FILES:  # one that includes itself ten times would be read 10**10 times
        raise SettingsError(f"{path}: more than {_FILES} files are included")
    read.append(path)
    for _, line in logical_lines(read_conf(path)):
        if include := _INCLUDE.match(line):
            inner = include[1].replace("%c", found.get("clustername", ""))
            _collect(os.path.join(directory, inner), directory, found, depth - 1, read)
            continue
        settings, _ = pairs(line)
        if settings and settings[0][0].lower() not in _LISTS:
            found.update((key.lower(), value) for key, value in settings)
