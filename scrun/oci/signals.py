"""Parse and name signals.

``RTMIN+n`` and ``RTMAX-n`` count from the C library's SIGRTMIN and SIGRTMAX, as in
kill(1), crun and runc.
"""

from scrun.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STOP_SIGNAL = "org.opencontainers.image.stopSignal"

# signals with two names: the one that signal(7) lists first
_PREFERRED = {"IOT": "ABRT", "CLD": "CHLD", "POLL": "IO"}

_CRASHES = ("ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP")


def parse_signal(text: str) -> int:
    """Return the number of a signal: ``TERM``, ``SIGTERM``, ``sigterm``, ``RTMIN+3``, ``15``."""
    number = _number(text) if text.isascii() else -1
    if not 0 <= number <= 64:
        raise UsageError(
            f"unknown signal {text!r}: use a name such as TERM or RTMIN+1, or a number, 0 to 64"
        )
    return number


def stop_signal(annotations: "Mapping[str, str]") -> int:
    """Return the signal with which an engine stops a container, from podman's annotation; or 0."""
    try:
        return parse_signal(annotations.get(STOP_SIGNAL, ""))
    except UsageError:
        return 0


def signal_name(number: int) -> str:
    """Return a signal's name without SIG, or its number as text when it has none."""
    known = _known()
    first, last = known["RTMIN"], known["RTMAX"]
    if first < number < last:
        return f"RTMIN+{number - first}"
    for name, value in known.items():
        if value == number:
            return _PREFERRED.get(name, name)
    return str(number)


def its_end(status: int) -> str:
    """Say how a program ended, by its return code, -n for signal n: `ended with 3`."""
    if status >= 0:
        return f"ended with {status}"
    name = signal_name(-status)
    text = f"was killed by signal {-status} (SIG{name})"
    if name in _CRASHES:
        return f"{text}: it has crashed; try again, and tell who installed it"
    return f"{text}: is there no memory left?" if name == "KILL" else text


def _number(text: str) -> int:
    """Return the number of a signal in ASCII text; -1 if it is not a signal."""
    if text.isdigit():
        return int(text) if len(text) <= 3 else -1
    known = _known()
    name = text.upper().removeprefix("SIG")
    base, sign, offset = name[:5], name[5:6], name[6:]
    if (base, sign) in (("RTMIN", "+"), ("RTMAX", "-")) and offset.isdigit() and len(offset) <= 2:
        number = known[base] + int(sign + offset)
        return number if known["RTMIN"] <= number <= known["RTMAX"] else -1
    return known.get(name, -1)


def _known() -> dict[str, int]:
    """Return this machine's signals by name; ``_signal`` is ``signal`` without enum."""
    import _signal  # typeshed has only signal

    constants: dict[str, int] = vars(_signal)
    # isalnum: the module also has constants such as SIG_BLOCK
    return {
        name[3:]: value
        for name, value in constants.items()
        if name.startswith("SIG") and name[3:].isalnum()
    }
