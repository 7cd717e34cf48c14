"""scrun install: register scrun as a runtime of podman or docker, or undo that.

With `docker-api` podman serves Docker's API, by its unit or as a process of its own.

Wire: nothing; the engines' own configuration is edited, and only what is needed of it. For a user
it is that of the user, for root and with `--system` the machine's:

* podman: a file of its own, `containers.conf.d/scrun.conf`; for docker-api `scrun-api.conf`, by
  which scrun is the default runtime, as a request of Docker's API cannot name one to podman;
* docker: `runtimes.scrun` in `daemon.json`; the file as it was is kept beside it, as
  `daemon.json.bak`; and for a user with a unit of rootless docker a drop-in of that;
* `scrun.toml`, if the slurm.conf in use is only named by SLURM_CONF or `-f`, which engines do not
  pass on: the key `conf` between two marks.

Errors: what cannot be read is not touched, nor is what somebody else named scrun. Nothing is
written before all is known to be possible.
"""

import difflib
import glob
import os
import pwd
import shutil
import sys
from collections.abc import Mapping

from scrun.cli.parse import Parsed
from scrun.core.errors import SettingsError, UsageError
from scrun.core.output import write
from scrun.core.paths import packages
from scrun.core.text import printable
from scrun.install import docker, files, launcher, needs, podman, service, settings
from scrun.install.files import Change
from scrun.oci.lookup import DEFAULT_PATH
from scrun.settings.file import load, sources
from scrun.settings.slurm_conf import PLACES, find_slurm_conf

ENGINES = ("podman", "docker")
API = "docker-api"
_ALL = (*ENGINES, API)
_DOCKER = "/etc/docker"


class InstallTarget:
    """For whom scrun is installed, and the files to change; `home_config` None: for all."""

    def __init__(self, home_config: str | None) -> None:
        self.home_config = home_config
        self.docker = f"{home_config}/docker" if home_config else _DOCKER
        self.podman = podman.drop_in(podman.directory(home_config))
        self.api = podman.drop_in(podman.directory(home_config), API)
        self.daemon = f"{self.docker}/daemon.json"
        self.unit = f"{home_config}/systemd/user/docker.service" if home_config else ""
        self.unit_drop_in = f"{self.unit}.d/scrun.conf"
        if home_config is None:
            self.settings = sources.SYSTEM_FILE
        else:
            home = pwd.getpwuid(os.getuid()).pw_dir
            self.settings = f"{home.rstrip('/')}/{sources.USER_FILE}"

    def base(self, path: str) -> str:
        """Return the lowest directory above a file that is never removed with it."""
        if self.home_config is None:
            ours = path in (self.podman, self.api)
            return os.path.dirname(os.path.dirname(path)) if ours else path
        return (
            self.home_config
            if path != self.settings
            else os.path.dirname(os.path.dirname(self.settings))
        )

    def drop_in(self, engine: str) -> str:
        return self.api if engine == API else self.podman

    def has(self, engine: str) -> bool:
        """Tell whether an engine's configuration names this scrun."""
        if engine != "docker":
            return podman.is_ours(files.read(self.drop_in(engine)) or "")
        text = files.read(self.daemon)
        return text is not None and launcher.is_ours(docker.entry(text, self.daemon) or "")


def run(parsed: Parsed) -> int:
    engine = parsed.operands[0]
    if engine not in _ALL:
        raise UsageError(f"unknown engine {engine!r}: use podman, docker or docker-api")
    if parsed.options.get("system") and os.geteuid() != 0:
        raise UsageError("install --system: only root may; leave it out to install for yourself")
    site = InstallTarget(None if os.geteuid() == 0 else home_config(os.environ))
    undo = bool(parsed.options.get("undo"))
    default = bool(parsed.options.get("default")) or engine == API
    path = service.socket_path(os.environ, os.geteuid()) if engine == API else ""
    changes = _undo(engine, site) if undo else _install(engine, site, default=default)
    notes: list[str] = []
    if not undo:
        conf_change, notes = _slurm_conf(parsed, site)
        changes += conf_change
        notes += _storage(engine, site)
        notes += _missing(engine, parsed)
    serves = bool(path) and (not undo or site.has(API))  # else somebody else began to
    if parsed.options.get("dry-run"):
        _say(*(line for change in changes for line in _shown(change)))
    else:
        if serves and undo:  # first: what fails can be tried again
            _serve(path, undo=True, changed=True)
        for change in changes:
            files.apply(change, site.base(change.path))
    changed = [change.path for change in changes if change.before != change.after]
    if not parsed.options.get("dry-run"):
        if serves and not undo:
            try:
                _serve(path, undo=False, changed=bool(changed))
            except (SettingsError, OSError):
                for change in changes:
                    files.apply(change.undone, site.base(change.path))
                raise
        _say(_outcome(engine, site, changed, undo=undo, default=default))
    elif not changed:
        _say("nothing would be written")
    _say(*notes)
    return 0


def _storage(engine: str, site: InstallTarget) -> list[str]:
    """Return a note if podman's storage driver makes its containers slow on a cluster."""
    if engine == "docker":
        return []
    driver = podman.storage(os.environ, site.home_config, home(os.environ)).driver
    if driver in podman.WITHOUT_COPIES:
        return []
    return [f"note: podman's storage driver is {driver}: {podman.STORAGE}"]


def _missing(engine: str, parsed: Parsed) -> list[str]:
    """Return notes on what the engine's containers need and this machine has not."""
    try:
        found = load.load(os.environ, parsed.text("config-file"))
    except SettingsError:
        return []  # doctor says why
    chosen = parsed.text("engine") or found.engine
    if chosen == "auto":
        known = parsed.text("slurm-conf") or find_slurm_conf(found)
        chosen = "slurm" if known and (found.slurm.bin or _which("salloc")) else "local"
    uid = os.geteuid()
    lacking = needs.missing(
        ["podman" if engine == API else engine],
        _which,
        here=chosen == "local" and found.local.oci_conf is None,
        slurm=chosen == "slurm" and not found.slurm.bin,
        rootless=uid != 0,
    )
    notes = []
    if lacking:
        remedy = needs.remedy(lacking, _which, root=uid == 0)
        notes.append(f"note: not installed: {needs.names(lacking)}; {remedy}")
    user = pwd.getpwuid(uid).pw_name
    ids = (needs.count_ids(_text(path), user, uid) for path in ("/etc/subuid", "/etc/subgid"))
    few = min(ids) < needs.WANTED_IDS
    if uid and few and not needs.ids_come_from_elsewhere(_text("/etc/nsswitch.conf")):
        remedy = needs.ids_remedy(user)
        notes.append(f"note: {user} has too few subordinate ids; as root: {remedy}")
    return notes


def _text(path: str) -> str | None:
    try:
        return files.read(path)
    except SettingsError:
        return None


def _which(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), DEFAULT_PATH)))


def home_config(env: Mapping[str, str]) -> str:
    """Return the user's configuration directory, as podman and rootless docker find it."""
    given = env.get("XDG_CONFIG_HOME", "")
    if given.startswith("/"):
        return given.rstrip("/") or "/"
    return home(env) + "/.config"


def home(env: Mapping[str, str]) -> str:
    """Return the user's home, as podman finds it."""
    return (env.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir).rstrip("/")


def _install(engine: str, site: InstallTarget, *, default: bool) -> list[Change]:
    program = launcher.find(sys.argv[0], os.environ.get("PATH"))
    if site.home_config is None:
        launcher.check_for_all(program, os.path.join(packages(), "scrun", "__init__.py"))
    if engine != "docker":
        return [_install_podman(engine, site, program, default=default)]
    before = files.read(site.daemon)
    there = docker.entry(before, site.daemon) if before is not None else None
    if there is not None and there != program and not launcher.is_ours(there):
        raise SettingsError(
            f"{site.daemon}: runtimes.scrun is {there or 'an entry'!r}, not this scrun; "
            "rename or remove it"
        )
    after = docker.add(before, program, site.daemon, default=default)
    return [Change(site.daemon, before, after, keeps=there is None), *_outside(site, program)]


def _outside(site: InstallTarget, program: str) -> list[Change]:
    """Have rootless docker's unit leave a process outside of its network."""
    unit = files.read(site.unit) if site.unit else None
    if unit is None:
        return []
    others = sorted(glob.glob(f"{glob.escape(site.unit)}.d/*.conf"))  # as systemd reads them
    more = [files.read(path) or "" for path in others if path != site.unit_drop_in]
    if (after := docker.drop_in("\n".join([unit, *more]), program)) is None:
        return []
    before = files.read(site.unit_drop_in)
    if before is not None and not docker.is_drop_in(before):
        raise SettingsError(f"{site.unit_drop_in}: was not written by scrun; move or rename it")
    return [Change(site.unit_drop_in, before, after)]


def _serve(path: str, *, undo: bool, changed: bool) -> None:
    """Begin or end to serve the API at a socket; one that has begun reads no settings again."""
    uid = os.geteuid()
    if service.has_manager(os.environ, uid):
        service.by_unit("disable" if undo else "enable", uid)
        return
    if undo or changed:
        service.stop(path)
    if not undo and service.answers(path):
        if (program := _which("podman")) is None:
            raise SettingsError("podman: is not installed; install it, and call this once more")
        service.start(program, path)


def _install_podman(engine: str, site: InstallTarget, program: str, *, default: bool) -> Change:
    own = site.drop_in(engine)
    before = files.read(own)
    if before is not None and not podman.is_ours(before):
        raise SettingsError(f"{own}: was not written by scrun; move or rename it")
    ours = (site.podman, site.api)
    others = [path for path in podman.files({}, site.home_config) if path not in ours]
    merged = podman.merged(others)
    for named in podman.programs(merged):
        if named != program and os.path.lexists(named) and not launcher.is_ours(named):
            raise SettingsError(
                f"{merged['scrun named by']}: names another program scrun, {named}; rename or "
                "remove that"
            )
    return Change(own, before, podman.text(program, default=default, name=engine))


def _undo(engine: str, site: InstallTarget) -> list[Change]:
    changes = []
    if engine != "docker":
        before = files.read(site.drop_in(engine))
        if before is not None and podman.is_ours(before):
            changes.append(Change(site.drop_in(engine), before, None))
    elif site.has("docker"):
        before = files.read(site.daemon)
        assert before is not None
        backup = files.read(site.daemon + files.BACKUP)
        after = docker.remove(before, backup, site.daemon)
        changes.append(Change(site.daemon, before, after))
        if backup is not None and after == backup:
            changes.append(Change(site.daemon + files.BACKUP, backup, None))
        started = files.read(site.unit_drop_in) if site.unit else None
        if started is not None and docker.is_drop_in(started):
            changes.append(Change(site.unit_drop_in, started, None))
    text = files.read(site.settings)
    others = (other for other in _ALL if other != engine)
    if text is not None and not any(map(site.has, others)):  # which may need it still
        changes.append(Change(site.settings, text, settings.remove(text)))
    return changes


def _slurm_conf(parsed: Parsed, site: InstallTarget) -> tuple[list[Change], list[str]]:
    """Put the slurm.conf in use into scrun.toml, if only this call's environment or `-f` names it.

    Returns the changes, and notes for the user.
    """
    conf = parsed.text("slurm-conf") or os.environ.get("SLURM_CONF")
    if not conf:
        return [], []
    conf = os.path.abspath(conf)
    text = files.read(site.settings)
    clean = None if text is None else settings.remove(text)
    there = _named(site, clean)
    if there == conf or (there is None and conf == next(filter(os.path.isfile, PLACES), None)):
        return [Change(site.settings, text, clean)] if clean != text else [], []
    if there is not None:
        return [], [f"note: engines will use {there}, which scrun.toml names, and not {conf}"]
    after = settings.add(text, conf)
    if after is None:
        return [], [
            f'note: engines do not pass SLURM_CONF on: put conf = "{conf}" into the section '
            f"[slurm] of {site.settings}"
        ]
    return [Change(site.settings, text, after)], []


def _named(site: InstallTarget, own: str | None) -> str | None:
    """Return the slurm.conf that the settings files name; `own` is the text of the user's file."""
    for path in dict.fromkeys((site.settings, sources.SYSTEM_FILE)):
        text = own if path == site.settings else files.read(path)
        table = load.parse(text.encode(), path) if text is not None else {}
        slurm = table.get("slurm")
        if isinstance(slurm, dict) and isinstance(slurm.get("conf"), str):
            return str(slurm["conf"])
    return None


def _outcome(
    engine: str, site: InstallTarget, changed: list[str], *, undo: bool, default: bool
) -> str:
    done = ", ".join(changed)
    if engine == API and (changed or not undo):
        return _outcome_of_api(done, undo=undo)
    user = "" if site.home_config is None else "--user "
    # measured with 20.10: a reload of dockerd adds new runtimes, and removes none
    reload, restart = (f"systemctl {user}{word} docker" for word in ("reload", "restart"))
    if site.unit_drop_in in changed:
        reload = restart = f"systemctl --user daemon-reload, {restart}"
    elif site.unit and not os.path.exists(site.unit):
        reload = "scrun outside dockerd-rootless.sh"
    if undo and not changed:
        return f"{engine} does not know scrun: nothing to undo"
    if undo:
        further = f"; next: {restart}" if engine == "docker" else ""
        return f"{engine} no longer knows scrun (changed: {done}){further}"
    runtime = "" if default else "--runtime scrun "
    # podman takes the option before `run`, docker after it
    words = f"podman {runtime}run" if engine == "podman" else f"docker run {runtime}".rstrip()
    try_it = f"{words} --network host IMAGE"
    if not changed:
        return f"{engine} knows scrun already; try: {try_it}"
    if engine == "docker" and site.daemon in changed:
        return f"docker will know scrun (changed: {done}); next: {reload}, then: {try_it}"
    return f"{engine} knows scrun (changed: {done}); try: {try_it}"


def _outcome_of_api(done: str, *, undo: bool) -> str:
    changed = f" (changed: {done})" if done else ""
    if undo:
        return f"podman no longer serves Docker's API{changed}"
    there = service.url(service.socket_path(os.environ, os.geteuid()))
    return f"podman serves Docker's API by scrun{changed}; next: export DOCKER_HOST={there}"


def _shown(change: Change) -> list[str]:
    return list(
        difflib.unified_diff(
            (change.before or "").splitlines(),
            (change.after or "").splitlines(),
            "/dev/null" if change.before is None else change.path,
            "/dev/null" if change.after is None else change.path,
            lineterm="",
        )
    )


def _say(*lines: str) -> None:
    for line in lines:
        text = "\t".join(map(printable, line.split("\t")))  # files that are shown may have them
        write(f"{text}\n".encode(errors="backslashreplace"))
