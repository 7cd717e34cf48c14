"""python -m scrun.supervisor --root ROOT --name NAME [--idle-timeout S]: serve a group.

`scrun create` starts it with two more descriptors: one to report readiness on (`--ready`), and the
lock of the name, which it holds until then (`--lock`). Without them it stays in the foreground, so
that people can watch it.
"""

import gc
import os
import sys

_IN_VAIN = (
    *("ssl", "hmac"),  # of trio, and with them OpenSSL: 4.9 of the 22.7 MiB that it takes (PSS)
    *("bz2", "lzma"),  # of shutil, which looks only whether they are there
    "_colorize",  # of traceback since Python 3.13, and with it dataclasses since 3.14
    *("ipaddress", "locale", "textwrap", "tokenize"),
)
"""Modules that others import, and a supervisor does not use."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from scrun.supervisor.daemon.daemonize import Starter


def main(argv: list[str]) -> int:
    """Detach, listen, report readiness, serve."""
    # an isolated interpreter does not search the package's directory
    sys.path.insert(0, os.path.abspath(__file__).removesuffix("/scrun/supervisor/__main__.py"))
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    root, name = options["--root"], options["--name"]
    gc.disable()  # saves a tenth of the import time (measured: 109 and 100 ms)
    from scrun.supervisor.core.later import postpone

    postpone(*filter(sys.stdlib_module_names.__contains__, _IN_VAIN), packages=("idna",))
    from scrun.supervisor.daemon.daemonize import Starter, daemonize, leave_cgroup, remove_cgroup

    ready, lock = (int(options[key]) if key in options else None for key in ("--ready", "--lock"))
    starter = Starter(ready, lock)
    detached = starter.waits
    cgroup = ""
    try:
        if detached:
            daemonize(starter.fds)
            cgroup = leave_cgroup()
        from scrun.supervisor.daemon.server import serve
        from scrun.supervisor.log import supervisor_log

        supervisor_log.begin(root, name, detached=detached)
        gc.freeze()  # what exists now stays, so collections can skip it
        gc.enable()
        idle = float(options["--idle-timeout"]) if "--idle-timeout" in options else None
        serve(root, name, starter, idle)
    except Exception as error:
        if not detached:
            raise
        return _failed(error, root, starter)
    finally:
        if cgroup:
            remove_cgroup(cgroup)
    supervisor_log.end(root)
    return 0


def _failed(error: Exception, root: str, starter: "Starter") -> int:
    """Report why the supervisor ends: to its starter if that still waits, else in the log."""
    from scrun.core.errors import ScrunError, described, leaves
    from scrun.supervisor.log import supervisor_log

    if not (starter.waits and all(isinstance(leaf, ScrunError) for leaf in leaves(error))):
        supervisor_log.fault("the supervisor ends", error)
    supervisor_log.end(root)
    starter.tell(described(error))
    return 1


if __name__ == "__main__":
    status = main(sys.argv[1:])
    # conmon waits for our end, and the interpreter would take all modules apart, for 5 ms; logs
    # are written by now
    os._exit(status)
