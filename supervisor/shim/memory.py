"""What the kernel has killed in our control group for want of memory."""

_ROOT = "/sys/fs/cgroup"


class Memory:
    """The kernel's count, and how much of it has been told."""

    def __init__(self) -> None:
        """Begin to count from now on."""
        self._file = _file()
        self._told = self._kills()

    def was_short(self) -> bool:
        """Tell whether anything was killed since the last call."""
        before, self._told = self._told, self._kills()
        return self._told > before

    def _kills(self) -> int:
        try:
            with open(self._file) as file:
                return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
        except (OSError, StopIteration):  # the site limits no memory by control groups
            return 0


def _file() -> str:
    """Return the file that counts, for either version of control groups."""
    found = ""
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if "memory" in controllers.split(","):
                return _ROOT + "/memory" + path + "/memory.oom_control"
            if not controllers:
                found = _ROOT + path + "/memory.events"
    return found
