"""Says what a container has used whose parent this process is (`[log] usage`)."""

import os
import select
import time
from contextlib import suppress

from scrun.cli.columns import usage_line
from scrun.model.usage import Usage, given


def reap(pid: int, began: float) -> int:
    """Wait for a container's process, say what it used since it `began`; return its exit code."""
    _, status, used = os.wait4(pid, 0)
    cpus, limit = given(os.environ, {})
    usage = Usage(
        user=used.ru_utime, system=used.ru_stime, memory=used.ru_maxrss << 10,
        memory_of="process", wall=time.monotonic() - began, cpus=cpus, limit=limit,
    )  # fmt: skip
    with suppress(OSError):  # nobody reads: the status matters more
        poller = select.poll()
        poller.register(2, select.POLLOUT)
        if poller.poll(0):
            os.write(2, f"scrun: {usage_line(usage)}\n".encode())
    return os.waitstatus_to_exitcode(status)
