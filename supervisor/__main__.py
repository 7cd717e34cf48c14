"""python -m supervisor --root ROOT --name NAME [--idle-timeout S]: serve a group.

`scrun create` starts it, with two descriptors more: where to tell that it listens (`--ready`), and
the lock of the name, which it holds until then (`--lock`). People do so to watch one: without them
it stays in the foreground.
"""

import gc
import os
import sys


def main(argv: list[str]) -> int:
    """Detach, listen, tell that we do, serve."""
    # where the package is, which an isolated interpreter does not look in
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    options = dict(zip(argv[::2], argv[1::2], strict=True))
    root, name = options["--root"], options["--name"]
    ready = int(options["--ready"]) if "--ready" in options else None
    lock = int(options["--lock"]) if "--lock" in options else None
    gc.disable()  # a tenth of the time that the imports take (measured: 109 and 100 ms)
    from supervisor.daemonize import daemonize, leave_cgroup

    if ready is not None:
        daemonize([fd for fd in (ready, lock) if fd is not None])
        leave_cgroup()
    try:
        from supervisor.run import serve

        gc.freeze()  # what is there now stays, so no collection need look at it
        gc.enable()
        idle = float(options["--idle-timeout"]) if "--idle-timeout" in options else None
        serve(root, name, ready, lock, idle)
    except Exception as error:
        if ready is None:
            raise
        try:
            from scrun.errors import described

            os.write(ready, described(error).encode(errors="replace"))
        except OSError:
            pass  # it was told that we were ready: this is a later fault
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
