"""Find and read a site's oci.conf(5), and apply its levels of messages."""

import functools
import os

import msgspec

from scrun.core.errors import SettingsError
from scrun.core.paths import Untrusted, read_trusted
from scrun.settings.file.load import Level, Log, Settings
from scrun.settings.oci_conf.parse import OciConf, parse_oci_conf
from scrun.settings.slurm_conf import find_slurm_conf, slurm_user


def beside(slurm_conf: str | None) -> str:
    """Return the path where Slurm looks for oci.conf: beside slurm.conf."""
    return os.path.join(os.path.dirname(slurm_conf) if slurm_conf else "/etc/slurm", "oci.conf")


def version_of(path: str) -> tuple[int, int, int] | None:
    """Return what tells versions of an oci.conf apart; None if there is none. Blocks."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def site_conf(path: str, slurm_conf: str | None) -> OciConf | None:
    """Read and parse an oci.conf; see `site_content`.

    Raises:
        SettingsError: It is invalid, or somebody else could have written it.
    """
    content = site_content(path, slurm_conf)
    return None if content is None else parse_site(content, path)


def site_content(path: str, slurm_conf: str | None) -> bytes | None:
    """Read an oci.conf; None if it cannot be read, which is usual on submit hosts.

    `slurm_conf` is the slurm.conf in use: files of its SlurmUser are trusted as root's are.

    Raises:
        SettingsError: Somebody else could have written it.
    """
    try:
        try:
            return read_trusted(path)
        except Untrusted:  # only now, because looking a name up may hang
            return read_trusted(path, slurm_user(slurm_conf))
    except Untrusted as error:
        raise SettingsError(f"{path}: {error.strerror}") from error
    except (OSError, ValueError):
        return None


def parse_site(content: bytes, path: str) -> OciConf:
    """Parse what `site_content` has read.

    Raises:
        SettingsError: It is invalid.
    """
    return parse_oci_conf(content.decode(errors="surrogateescape"), path)


def with_site_levels(settings: Settings) -> Settings:
    """Use the levels of messages in the site's oci.conf as defaults.

    Slurm's own scrun lets StdIODebug, FileDebug and SyslogDebug override its command line, which
    nobody expects.
    """
    conf = None if settings.engine == "local" else find_slurm_conf(settings)
    by_slurm = settings.engine == "slurm" or conf is not None
    path = beside(conf) if by_slurm else settings.local.oci_conf or ""
    try:
        status = os.stat(path)
        levels = _levels(path, conf, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError, SettingsError):  # reported when its commands are needed
        return settings
    log = settings.log
    usual = Log()
    found = {
        field: level
        for field, level in levels.items()
        if level is not None and getattr(log, field) == getattr(usual, field)
    }
    return msgspec.structs.replace(settings, log=msgspec.structs.replace(log, **found))


@functools.lru_cache(maxsize=8)
def _levels(path: str, slurm_conf: str | None, changed: int, size: int) -> dict[str, Level | None]:
    """Read the levels, once for each version of the file."""
    del changed, size
    conf = site_conf(path, slurm_conf) or OciConf()
    return {
        "file_level": conf.file_debug,
        "stderr_level": conf.std_io_debug,
        "syslog_level": conf.syslog_debug,
    }
