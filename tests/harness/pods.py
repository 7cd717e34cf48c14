"""Members of a pod of podman's."""

from tests.harness.overlays import STAYS
from tests.harness.podman import RUN, Podman
from tests.harness.wait import wait_until

LIMITS = RUN[3:]
"""Of podman's `run`, without the network: that is the pod's."""


def member(podman: Podman, name: str, script: str = STAYS, *options: str) -> str:
    """Begin one of its containers, and wait until it has said something."""
    run = ("run", *LIMITS, "--pod", "pod", "--detach", "--name", name, *options)
    podman.must(*run, "busybox", "sh", "-c", script)
    wait_until(f"{name} says something", lambda: podman.must("logs", name))
    return name


def in_member(podman: Podman, name: str, script: str) -> str:
    """Run a script in a container; return what it said."""
    return podman.must("exec", name, "/bin/sh", "-c", script).strip()
