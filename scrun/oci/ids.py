"""Check container ids.

The runtime specification leaves their form to the runtime; this is runc's
(libcontainer/factory_linux.go, validateID), with the length of a directory's name.
"""

from scrun.core.errors import UsageError

_ALLOWED = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+.-"
_LONGEST = 255  # NAME_MAX: the id becomes a directory


def check_id(text: str) -> str:
    """Return an id if it is valid, so that nothing else ever becomes part of a path."""
    if not text:
        raise UsageError("invalid container id: it is empty")
    if len(text) > _LONGEST:
        raise UsageError(
            f"invalid container id of {len(text)} characters: at most {_LONGEST} are possible"
        )
    # strip() removes allowed characters from both ends: if any are left, some are not allowed
    if text.strip(_ALLOWED) or text in (".", ".."):
        raise UsageError(
            f"invalid container id {text!r}: use letters, digits and _ + . -, not . or .. alone"
        )
    return text


def is_id(text: str) -> bool:
    """Tell an id from other names in a root directory, which begin with `@`."""
    try:
        check_id(text)
    except UsageError:
        return False
    return True
