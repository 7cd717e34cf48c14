"""What a run was on, in a line."""

import os
import platform
import subprocess

_VERSIONS = (("slurmctld", "-V"), ("crun", "--version"), ("runc", "--version"), ("podman", "-v"))


def describe() -> str:
    """Return the machine and the versions of what takes part."""
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) / 1048576
    words = [f"{os.cpu_count()} processors", f"{memory:.0f} GiB", f"Linux {platform.release()}"]
    words.append(f"Python {platform.python_version()}")
    return ", ".join(words + [found for command in _VERSIONS if (found := _version(*command))])


def _version(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].replace(" version", "")
