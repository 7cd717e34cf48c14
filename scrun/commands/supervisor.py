"""scrun supervisor: list the supervisors, stop them, or have successors take over from them.

`stop` is SIGINT, and a second one after `--time`; SIGTERM would leave the containers to a
successor. `restart` has each give its name away (`aside`, see `supervisor.daemon.succession`) and
starts its successor, which takes its containers over as soon as nothing is lost by that. A newer
scrun does the same with the next container. What no successor can take over stays with the old
one, which goes on until the last of those has ended.

Wire: `aside FORCE`, answered with the containers that stay and why, as JSON; `succeed`, and
`succeed 1`, answered when the successor has what it can get.
"""

import json
import signal
from collections.abc import Iterator, Sequence
from datetime import datetime

from scrun.cli.columns import listed
from scrun.cli.parse import Parsed, record_root
from scrun.client.launch import launch
from scrun.client.supervisor_name import supervisor_name
from scrun.client.supervisors import Supervisor, chosen, supervisors
from scrun.core.errors import StateError, UsageError
from scrun.core.output import say
from scrun.core.paths import COMMON
from scrun.core.ready import ready
from scrun.core.supervisors import is_newer, parts, successor_of
from scrun.core.times import seconds_of
from scrun.core.version import VERSION
from scrun.protocol import wire

HEAD = ("PID", "VERSION", "CONTAINERS", "MEMORY", "SINCE", "NAME")
_OPTIONS = {"list": ("format",), "stop": ("all", "time"), "restart": ("force",)}
_ENDS = 10.0
_TAKES_OVER = 30.0
_WAIT = b"1"


def run(parsed: Parsed) -> int:
    action, *words = parsed.operands
    actions = {"list": _list, "stop": _stop, "restart": _restart}
    if action not in actions:
        known = ", ".join(actions)
        raise UsageError(f"unknown action {action!r}: use {known}: see 'scrun supervisor --help'")
    for other, options in _OPTIONS.items():
        for option in options:
            if other != action and parsed.options.get(option):
                raise UsageError(f"supervisor {action}: --{option} is for {other}")
    found = supervisors(record_root(parsed))
    return actions[action](parsed, found, chosen(found, words) if words else [])


def _list(parsed: Parsed, found: Sequence[Supervisor], named: Sequence[Supervisor]) -> int:
    ones = named or found
    text = listed(parsed, ones, name=lambda one: one.name, row=_row, head=HEAD, cells=_cells)
    say(text.encode("utf-8", "replace"))
    return 0


def _row(one: Supervisor) -> dict[str, object]:
    return {
        "name": one.name,
        "version": one.version,
        "pid": one.pid or None,
        "containers": list(one.containers),
        "memory": one.memory,
        "since": None if one.since is None else _moment(one.since).isoformat(timespec="seconds"),
    }


def _cells(one: Supervisor) -> tuple[str, ...]:
    return (
        str(one.pid or ""),
        one.version,
        str(len(one.containers)),
        "" if one.memory is None else f"{one.memory / (1 << 20):.1f}M",
        "" if one.since is None else _moment(one.since).strftime("%Y-%m-%dT%H:%M:%S"),
        one.name,
    )


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds).astimezone()


def _stop(parsed: Parsed, found: Sequence[Supervisor], named: Sequence[Supervisor]) -> int:
    if bool(named) == bool(parsed.count("all")):
        raise UsageError("supervisor stop ends containers: name supervisors, or say --all")
    text = parsed.text("time")
    patience = None if text is None else _seconds(text)
    for one in named or found:
        if not one.pid:
            raise StateError(f"{one} is in another PID namespace: stop it from there")
    watched = [*_watched(named or found)]
    for _, pidfd in watched:
        _signal(pidfd)
    for one, pidfd in watched:
        if not _ends(pidfd, patience):
            _signal(pidfd)
            if not _ends(pidfd, _ENDS):
                raise StateError(f"{one} does not end; find out why: `scrun logs --supervisor`")
    return 0


def _seconds(text: str) -> float:
    seconds = float(text) if text.isdecimal() else seconds_of(text)
    if seconds is None:
        raise UsageError(f"--time {text}: is not a duration; use seconds, 90s or 5m")
    return seconds


def _watched(ones: Sequence[Supervisor]) -> Iterator[tuple[Supervisor, int]]:
    """Yield those that have not ended since they were found; descriptors, -1 if out of sight."""
    for one in ones:
        try:
            yield one, one.pidfd() if one.pid else -1
        except ProcessLookupError:
            continue


def _signal(pidfd: int) -> None:
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGINT)
    except ProcessLookupError:
        pass


def _ends(pidfd: int, seconds: float | None) -> bool:
    return bool(ready([pidfd], seconds=seconds)[0])


def _restart(parsed: Parsed, found: Sequence[Supervisor], named: Sequence[Supervisor]) -> int:
    here = parts(supervisor_name("user", parsed))[0].removeprefix("@user")
    ours = [one for one in found if parts(one.name)[0].endswith(here)]
    for one in named or ours:
        _check_takes_over(one, here)
    force = b"1" if parsed.count("force") else b""
    for one, pidfd in _watched(named or ours):
        _replace(one, pidfd, force)
    return 0


def _check_takes_over(one: Supervisor, here: str) -> None:
    """Refuse what this scrun cannot succeed, before anything is touched."""
    if is_newer(one.version):
        raise StateError(
            f"{one} belongs to scrun {one.version}, and this is {VERSION}: use the newer scrun"
        )
    if not parts(one.name)[0].endswith(here):
        raise StateError(
            f"{one} is in other namespaces, where its successor has to be: for podman's, use "
            "`podman unshare scrun supervisor restart`"
        )


def _replace(one: Supervisor, pidfd: int, force: bytes) -> None:
    status, answer = wire.ask(one.root, one.name, [b"aside", force])
    if status:
        raise StateError(
            f"{one} (scrun {one.version}) cannot be replaced: {answer.decode(errors='replace')}; "
            "it ends with its last container"
        )
    name = successor_of(one.name)
    sock = launch(one.root, name, lingers=name.startswith(COMMON))
    sock.close()
    wire.ask(one.root, name, [b"succeed"])
    staying: dict[str, str] = json.loads(answer)
    if not staying or force:
        if pidfd >= 0 and not _ends(pidfd, _TAKES_OVER):
            raise StateError(f"{one} is still at work: it hands over when that is done")
        wire.ask(one.root, name, [b"succeed", _WAIT])
        return
    lines = [f"{one} goes on until it can leave these containers:"]
    lines += [f"  {container}: {why}" for container, why in sorted(staying.items())]
    say("".join(f"{line}\n" for line in lines).encode("utf-8", "replace"))
