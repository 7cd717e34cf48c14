"""The slurm.conf in use, put down in scrun.toml: engines pass no SLURM_CONF on. Pure."""

import json
import re
import tomllib

# What the first line adds tells how to get the text from before back, byte for byte.
_BEGIN = "# scrun install: begin"
_FILE, _BREAK = " of the file", ", line break before it included"
_END = "# scrun install: end\n"
_BLOCK = re.compile(
    rf"(?P<before>\n?)^{_BEGIN}(?P<kind>{_FILE}|{_BREAK}|)\n.*?^{_END}", re.MULTILINE | re.DOTALL
)
_TABLE = re.compile(r"^[ \t]*\[[ \t]*slurm[ \t]*\][ \t]*(#.*)?\n", re.MULTILINE)


def add(text: str | None, conf: str) -> str | None:
    """Return scrun.toml with the key `conf` in its section [slurm].

    Args:
        text: What there is now, without that key; None: no such file.
        conf: The slurm.conf, absolute.

    Returns:
        The text, or None when it is written in a way that nothing can be added to safely.
    """
    line = f"conf = {json.dumps(conf, ensure_ascii=False)}\n"
    text = None if text is None else remove(text)
    if text is None:
        return f"{_BEGIN}{_FILE}\n[slurm]\n{line}{_END}"
    if table := _TABLE.search(text):
        new = f"{text[: table.end()]}{_BEGIN}\n{line}{_END}{text[table.end() :]}"
    elif text and not text.endswith("\n"):
        new = f"{text}\n{_BEGIN}{_BREAK}\n[slurm]\n{line}{_END}"
    else:
        new = f"{text}{_BEGIN}\n[slurm]\n{line}{_END}"
    return new if _is_so(text, new, conf) else None


def remove(text: str) -> str | None:
    """Return scrun.toml without what `add` put there; None: without it there would be no file."""
    found = _BLOCK.search(text)
    if found is None:
        return text
    before = "" if found["kind"] == _BREAK else found["before"]
    rest = text[: found.start()] + before + text[found.end() :]
    return None if found["kind"] == _FILE and not rest.strip() else rest


def _is_so(text: str, new: str, conf: str) -> bool:
    """Tell whether the new text says what the old one does, and the slurm.conf besides."""
    try:
        wanted, found = tomllib.loads(text), tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        return False
    slurm = wanted.setdefault("slurm", {})
    if not isinstance(slurm, dict) or "conf" in slurm:
        return False
    slurm["conf"] = conf
    return wanted == found
