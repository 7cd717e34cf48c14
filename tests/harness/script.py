"""The scrun.lua of the manual page."""

from tests import CHECKOUT


def manual(form: str) -> str:
    """The manual page's example, as it is or rewritten for Slurm 26.05's functions."""
    text = (CHECKOUT / "tests" / "data" / "scrun.1.lua").read_text()
    if form == "require":
        return text
    text = text.replace("local json = require 'json'\n", "")
    return text.replace("json.decode(", "slurm.from_json(").replace(
        "json.encode(", "slurm.to_json("
    )
