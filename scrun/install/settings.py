"""Write the slurm.conf in use into scrun.toml, because engines pass no SLURM_CONF on. Pure."""

import json
import re
import tomllib

# The end of the first line tells how to restore the previous text exactly.
_BEGIN = "# scrun install: begin"
_FILE, _BREAK = " of the file", ", line break before it included"
_END = "# scrun install: end\n"
_BLOCK = re.compile(
    rf"(?P<before>\n?)^{_BEGIN}(?P<kind>{_FILE}|{_BREAK}|)\n.*?^{_END}", re.MULTILINE | re.DOTALL
)
_TABLE = re.compile(r"^[ \t]*\[[ \t]*slurm[ \t]*\][ \t]*(#.*)?\n", re.MULTILINE)


def add(text: str | None, conf: str) -> str | None:
    """Return scrun.toml with the key `conf` in [slurm], which lacks it; None if not safely."""
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
    """Return scrun.toml without the lines of `add`; None if there was no file before `add`."""
    found = _BLOCK.search(text)
    if found is None:
        return text
    before = "" if found["kind"] == _BREAK else found["before"]
    rest = text[: found.start()] + before + text[found.end() :]
    return None if found["kind"] == _FILE and not rest.strip() else rest


def _is_so(text: str, new: str, conf: str) -> bool:
    """Tell whether the new text has the settings of the old one, plus the slurm.conf."""
    try:
        wanted, found = tomllib.loads(text), tomllib.loads(new)
    except tomllib.TOMLDecodeError:
        return False
    slurm = wanted.setdefault("slurm", {})
    if not isinstance(slurm, dict) or "conf" in slurm:
        return False
    slurm["conf"] = conf
    return wanted == found
