"""What the figures of a bench, or the faults of a run, were seen on."""

import os
import platform
import subprocess

_COMMANDS = (
    ("Slurm", "salloc", "--version"),
    ("crun", "crun", "--version"),
    ("runc", "runc", "--version"),
    ("podman", "podman", "--version"),
)


def machine() -> list[tuple[str, str]]:
    """Return the machine and the versions of what takes part: names and texts."""
    with open("/proc/cpuinfo") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    with open("/proc/meminfo") as file:
        memory = int(file.readline().split()[1]) / 1048576
    found = [
        ("processors", f"{os.cpu_count()}, {models[0] if models else platform.machine()}"),
        ("memory", f"{memory:.0f} GiB"),
        ("kernel", platform.release()),
        ("Python", platform.python_version()),
    ]
    return found + [(name, text) for name, *command in _COMMANDS if (text := _version(command))]


def _version(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.partition("\n")[0].rpartition(" ")[2]
