"""What a container has used, for who has called `run`."""

from scrun.cli.columns import size
from scrun.model.usage import Usage


def usage_line(usage: Usage) -> str:
    """Return what a container has used of what it could have, in one line."""
    parts = [] if usage.wall is None else [f"{usage.wall:.1f} s"]
    if usage.cpu is not None:
        text = f"{usage.cpu:.1f} s of processor time"
        if usage.wall and usage.cpus:
            text += f" ({usage.cpu / usage.wall:.1f} of {usage.cpus:g} processors)"
        parts.append(text)
    if usage.memory is not None:
        text = f"{size(usage.memory)} of memory"
        if usage.limit:
            text += f" (of {size(usage.limit)})"
        parts.append(text)
    return f"used: {', '.join(parts)}"
