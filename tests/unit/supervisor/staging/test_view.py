"""What of a container's files is shown to engines on this machine."""

from typing import Any

import pytest

from scrun.supervisor.contracts.staged import ShownMount, View
from scrun.supervisor.staging.mounts import view_of

BIND = ["rbind", "rw"]


def mount(destination: str, source: str = "", *options: str, kind: str = "bind") -> dict[str, Any]:
    return {"destination": destination, "type": kind, "source": source, "options": [*options]}


@pytest.mark.parametrize(
    ("mounts", "places"),
    [
        ([], []),
        ([mount("/data", "/home/u/data", *BIND)], [ShownMount("/data", "/home/u/data")]),
        ([mount("/data", "/home/u/data", "ro")], [ShownMount("/data", "/home/u/data", True)]),
        ([mount("data/", "files/1", *BIND)], [ShownMount("/data", "/b/files/1")]),
        ([mount("/../etc/x", "/h/x", *BIND)], [ShownMount("/etc/x", "/h/x")]),
        # what every machine has of its own, and what only the node makes
        ([mount("/t", "/tmp", *BIND)], [ShownMount("/t", "/tmp", own=True)]),
        ([mount("/h", "/etc/hosts", *BIND)], [ShownMount("/h", "/etc/hosts", own=True)]),
        ([mount("/n", "/dev/null", *BIND)], [ShownMount("/n", "/dev/null", own=True)]),
        ([mount("/scratch", "tmpfs", kind="tmpfs")], [ShownMount("/scratch")]),
        ([mount("/t", "/tmp/mine", *BIND)], [ShownMount("/t", "/tmp/mine")]),
        # below something that is not here nothing is
        (
            [
                mount("/dev", "tmpfs", kind="tmpfs"),
                mount("/dev/shm", "/home/u/shm", *BIND),
                mount("/device", "/home/u/device", *BIND),
            ],
            [ShownMount("/dev"), ShownMount("/device", "/home/u/device")],
        ),
        # the processes are the anchor's
        ([mount("/proc", "proc", kind="proc"), mount("/proc/sys", "/h/sys", *BIND)], []),
    ],
)
def test_mounts(mounts: list[dict[str, Any]], places: list[ShownMount]) -> None:
    found = view_of({"mounts": mounts}, "/b/rootfs", "/b", elsewhere=True)
    assert found == View("/b/rootfs", "/b", True, False, tuple(places))


def test_on_this_machine_its_own_places_are_the_containers() -> None:
    config = {"root": {"readonly": True}, "mounts": [mount("/t", "/tmp", *BIND)]}
    found = view_of(config, "/r", "/b", elsewhere=False)
    assert found == View("/r", "/b", False, True, (ShownMount("/t", "/tmp"),))
