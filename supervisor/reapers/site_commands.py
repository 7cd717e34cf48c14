"""Runs a container with RunTimeCreate, RunTimeStart and RunTimeQuery, and exits with its status.

The program becomes the subreaper of the commands' orphans. So the container's first process is its
child, and it learns the exit status, for which oci.conf(5) has no command. If the runtime stays as
the parent, only the end can be known: by a pidfd of the process that RunTimeQuery names, or, if
that is in another PID namespace, by polling.

With a socket of the supervisor's, a line on it says that the container is created. Supervisors
answer with one to start it, as often as they like, and are told so in turn.

It imports little: each such container has one of these.
"""

import json
import os
import select
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FIRST_PAUSE = 0.01
_GROWS = 1.5
_LONGEST_PAUSE = 1.0  # as in Slurm
_WITH_PIDFD = 30.0  # the pid may belong to another process
_CREATING = 2.0
_ALIVE = ("creating", "created", "running", "paused")


def main(line: int, log: str, create: str, start: str, query: str) -> int:
    """Run the three shell commands; return the container's status, 128+n for a signal.

    Args:
        line: The descriptor of the socket; -1: there is none.
        log: The file for errors of `start` and `query`, in runc's format. Errors of `create` go to
                the container's standard error.
    """
    import ctypes

    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if line >= 0:
        os.set_inheritable(line, False)
    created = subprocess.run(["/bin/sh", "-c", create], check=False).returncode
    if created:
        return _shell_status(created)
    # before the start: a stopped container has no pid
    state = _created(query)
    if not state:
        return _fail(log, f"RunTimeQuery does not know the new container: {query}")
    pid = _pid(state)
    pidfd = _pidfd(pid)
    if line >= 0:
        # now the container may outlive the supervisor; if it is not to, its keepalive ends it
        prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
        _tell(line)
        if not _is_to_start(line, pidfd):
            return _how_it_ended(pid, pidfd, query)
    started = subprocess.run(
        ["/bin/sh", "-c", start],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if started.returncode:
        errors = started.stderr.decode(errors="replace").strip().splitlines()
        return _fail(log, errors[-1] if errors else f"RunTimeStart failed: {start}")
    if line >= 0:
        _tell(line)
        os.close(line)  # for a supervisor whose predecessor has read that
    return _how_it_ended(pid, pidfd, query)


def _tell(line: int) -> None:
    try:
        os.write(line, b"\n")
    except OSError:
        pass  # the supervisor has died, and nobody adopts the container


def _is_to_start(line: int, pidfd: int) -> bool:
    """Wait for the word to start it; False if it has ended before that."""
    waiting = select.poll()
    for fd in (line, pidfd):
        if fd >= 0:
            waiting.register(fd, select.POLLIN)
    if line not in {fd for fd, _ in waiting.poll()}:
        return False
    try:
        return bool(os.read(line, 1))
    except OSError:
        return False


def _how_it_ended(pid: int, pidfd: int, query: str) -> int:
    """Wait for its end; return its status, 0 if nobody knows it."""
    try:
        return _shell_status(os.waitstatus_to_exitcode(os.waitpid(pid or -2, 0)[1]))
    except OSError:  # not a child of this process
        _await_end(query, pidfd)
        return 0


def _created(query: str) -> dict[str, object]:
    """Poll until the runtime has created the container; return its state."""
    deadline, pause = time.monotonic() + _CREATING, _FIRST_PAUSE
    while True:
        state = _state(query)
        if (state and state.get("status") != "creating") or time.monotonic() > deadline:
            return state
        time.sleep(pause)
        pause *= _GROWS


def _await_end(query: str, pidfd: int) -> None:
    """Wait until the runtime reports that the container has ended.

    Args:
        pidfd: A pidfd of its first process, or -1.
    """
    pause = _FIRST_PAUSE if pidfd < 0 else _WITH_PIDFD
    while True:
        if pidfd < 0:
            time.sleep(pause)
        else:
            waiting = select.poll()
            waiting.register(pidfd, select.POLLIN)
            if waiting.poll(pause * 1000):
                os.close(pidfd)
                pidfd, pause = -1, _FIRST_PAUSE
        if _state(query).get("status") not in _ALIVE:
            return
        if pidfd < 0:
            pause = min(pause * _GROWS, _LONGEST_PAUSE)


def _pid(state: dict[str, object]) -> int:
    pid = state.get("pid")
    return pid if isinstance(pid, int) and 0 < pid < 1 << 31 else 0


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid) if pid else -1
    except OSError:  # of another PID namespace, or gone
        return -1


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status


def _fail(log: str, reason: str) -> int:
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
        file.write(json.dumps({"level": "error", "msg": reason}) + "\n")
    return 1


def _state(query: str) -> dict[str, object]:
    done = subprocess.run(
        ["/bin/sh", "-c", query],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    )
    try:
        state = json.loads(done.stdout)
    except (ValueError, RecursionError):
        return {}
    return state if isinstance(state, dict) else {}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:6]))
