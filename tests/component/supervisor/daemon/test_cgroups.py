"""The control groups of supervisors, in a tree of directories that behaves like theirs.

As in cgroup2, a directory that somebody is in cannot be removed: it is not empty here.
"""

import os
from pathlib import Path

from scrun.supervisor.daemon.daemonize import delegated, move_into_slice, remove_cgroup


def test_those_of_the_dead_are_removed_and_those_of_the_living_stay(tmp_path: Path) -> None:
    for name in ("supervisor-1", "supervisor-2", "supervisor-3", "else"):
        (tmp_path / name).mkdir()
    (tmp_path / "supervisor-2" / "cgroup.procs").write_text("2")
    ours = move_into_slice(str(tmp_path))
    assert ours == f"{tmp_path}/supervisor-{os.getpid()}"
    assert (Path(ours) / "cgroup.procs").read_text() == str(os.getpid())
    assert {*os.listdir(tmp_path)} == {"else", "supervisor-2", Path(ours).name}


def test_it_leaves_its_own_when_it_goes(tmp_path: Path) -> None:
    ours = Path(move_into_slice(str(tmp_path)))
    (ours / "cgroup.procs").unlink()  # which is no entry for rmdir there
    remove_cgroup(str(ours))
    assert not ours.exists()
    assert (tmp_path / "cgroup.procs").read_text() == str(os.getpid())


def test_where_it_may_not_nothing_happens(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert move_into_slice(str(tmp_path / "file")) == ""
    remove_cgroup(str(tmp_path / "missing"))


def test_a_user_s_service_is_found_from_within_podman_s_user_namespace() -> None:
    """There every user is called 0, so the uid says nothing (seen: podman 5.4, systemd 257)."""
    service = "/user.slice/user-1000.slice/user@1000.service"
    assert delegated(f"0::{service}/user.slice/libpod-conmon-1.scope\n") == service
    assert delegated(f"4:memory:/a\n0::{service}\n") == service


def test_a_session_a_service_of_the_system_and_older_cgroups_have_none() -> None:
    assert delegated("0::/user.slice/user-1000.slice/session-4.scope\n") == ""
    assert delegated("0::/system.slice/user@x.service\n1:name=systemd:/user@1.service\n") == ""
    assert delegated("") == ""
