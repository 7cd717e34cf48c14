"""Staged bundles on the disk: what is written, copied and removed, and what never is."""

import json
import os
import socket
import stat
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scrun.core.errors import StagingError
from scrun.images.leases import lease_of
from scrun.oci.userns import BothIds, Ids, Range
from scrun.supervisor.contracts.staged import Staged, View
from scrun.supervisor.contracts.target import Mounting, Target
from scrun.supervisor.engines.local.target import local_target
from scrun.supervisor.staging import staged_bundle, survey
from scrun.supervisor.staging.commands import run
from scrun.supervisor.staging.overlaid import Overlays
from scrun.supervisor.staging.stage_out import stage_out
from scrun.supervisor.staging.staged_bundle import stage_in
from scrun.supervisor.staging.stored import Mounter
from scrun.supervisor.staging.transfer import Transfer
from scrun.supervisor.staging.volumes import bring_back
from tests.harness.bundle import snapshot
from tests.harness.places import mounted

TARGET = Target(
    elsewhere=True, uid=os.getuid(), gid=os.getgid(), rootless=True, link_rootfs=True, host_only=()
)


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    path = tmp_path / "bundle"
    (path / "rootfs" / "bin").mkdir(parents=True)
    return path


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "staged"
    yield path
    bring_back(str(path), Transfer())
    stage_out(str(path))
    assert not path.exists()
    assert not [*tmp_path.glob("~*")]


def bind(source: Path | str) -> dict[str, Any]:
    return {"destination": "/x", "type": "bind", "source": str(source), "options": ["rbind"]}


def config_of(*mounts: dict[str, Any], root: str = "rootfs") -> dict[str, Any]:
    return {
        "ociVersion": "1.0.2",
        "root": {"path": root},
        "mounts": list(mounts),
        "new": [1 << 63],
    }


def stage(bundle: Path, staged: Path, *mounts: dict[str, Any], **here: Any) -> Staged:
    target = Target(
        elsewhere=True,
        uid=os.getuid(),
        gid=os.getgid(),
        rootless=here.pop("rootless", True),
        link_rootfs=True,
        host_only=(str(bundle.parent / "only"),),
    )
    lease = lease_of(str(bundle.parent), "c")
    transfer = Transfer(lease, 1 << 20)
    return stage_in(
        config_of(*mounts), str(bundle), str(staged), target, transfer=transfer, **here
    )


def tmp_volumes(bundle: Path) -> list[Path]:
    return [*bundle.parent.glob("~volumes-*/*")]


def tmp_volume(bundle: Path) -> Path:
    [place] = tmp_volumes(bundle)
    return place


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_staged_bundle_has_a_config_and_a_link(bundle: Path, staged: Path) -> None:
    before = snapshot(bundle)
    result = stage(bundle, staged)
    rootfs = str(bundle / "rootfs")
    view = View(rootfs, str(staged), elsewhere=True)
    assert result == Staged(str(staged), rootfs, (), view=view, final=True)
    assert os.readlink(staged / "rootfs") == rootfs
    config = json.loads((staged / "config.json").read_bytes())
    assert config["root"] == {"path": rootfs}
    assert config["new"] == [1 << 63]
    assert permissions(staged) == 0o700
    assert permissions(staged / "config.json") == 0o600
    assert snapshot(bundle) == before


def test_a_root_file_system_behind_a_link_is_given_without_it(bundle: Path, staged: Path) -> None:
    # runc takes no root.path that is a link
    (bundle / "link").symlink_to("rootfs")
    result = stage_in(config_of(root="link"), str(bundle), str(staged), TARGET)
    assert result.rootfs == str(bundle / "rootfs")


@pytest.mark.covers(
    "limitation the bundle is not transferred to the nodes: it must be there already"
)
def test_files_are_copied_with_their_permissions(bundle: Path, staged: Path) -> None:
    source = bundle.parent / "only" / "a b"
    source.parent.mkdir()
    source.write_text("hosts")
    source.chmod(0o4755)
    stage(bundle, staged, bind(source))
    copied = tmp_volume(bundle) / "data" / "a b"
    assert copied.read_text() == "hosts"
    assert permissions(copied) == 0o4755
    config = json.loads((staged / "config.json").read_bytes())
    assert config["mounts"][0]["source"] == str(copied)


def test_directories_are_copied_without_following_links(bundle: Path, staged: Path) -> None:
    source = bundle.parent / "only" / "d"
    (source / "below" / "empty").mkdir(parents=True)
    (source / "below" / "file").write_text("text")
    (source / "up").symlink_to("../../..")
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
        (source / "below").chmod(0o500)
        result = stage(bundle, staged, bind(source))
    copied = tmp_volume(bundle) / "data"
    assert sorted(os.listdir(copied)) == ["below", "fifo", "up"]
    assert os.readlink(copied / "up") == "../../.."
    assert (copied / "below" / "file").read_text() == "text"
    assert permissions(copied / "below") == 0o500
    assert len(result.notes) == 1
    assert result.missed == ("sockets, devices and mounts in /x (socket)",)


def test_large_directories_are_refused(bundle: Path, staged: Path) -> None:
    source = bundle.parent / "only" / "large"
    source.mkdir(parents=True)
    with open(source / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.write(b"x" * (2 << 20))
    with pytest.raises(StagingError, match="more than 1 MiB"):
        stage(bundle, staged, bind(source))
    assert not staged.exists()
    assert not tmp_volumes(bundle)


def test_a_file_that_becomes_a_fifo_is_never_read(
    bundle: Path, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = bundle.parent / "only" / "file"
    source.parent.mkdir()
    source.write_text("x")
    surveyed = survey.survey

    def exchange(*arguments: Any, **more: Any) -> Any:
        found = surveyed(*arguments, **more)
        source.unlink()
        os.mkfifo(source)
        return found

    monkeypatch.setattr(staged_bundle, "survey", exchange)
    stage(bundle, staged, bind(source))
    assert stat.S_ISFIFO((tmp_volume(bundle) / "data" / "file").lstat().st_mode)


def test_a_failure_leaves_nothing(bundle: Path, staged: Path) -> None:
    with pytest.raises(StagingError, match=r"mounts\[0\]\.source: .*/gone does not exist"):
        stage(bundle, staged, bind(bundle.parent / "only" / "gone"))
    assert not staged.exists()


def test_a_missing_root_file_system_is_named(bundle: Path, staged: Path) -> None:
    with pytest.raises(StagingError, match="absent"):
        stage_in(config_of(root="absent"), str(bundle), str(staged), TARGET)
    assert not staged.exists()


def test_a_directory_with_something_in_it_is_refused(bundle: Path, tmp_path: Path) -> None:
    for directory in (bundle, tmp_path):
        before = snapshot(directory)
        with pytest.raises(StagingError, match="is not empty"):
            stage(bundle, directory)
        assert snapshot(directory) == before


def test_stage_out_follows_no_link(bundle: Path, staged: Path) -> None:
    outside = bundle.parent / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    stage(bundle, staged)
    for place_ in (staged / "files", staged / "files" / "deep"):
        place_.mkdir()
        (place_ / "link").symlink_to(outside)
    (staged / "files" / "deep" / "file").write_text("")
    (staged / "files" / "deep").chmod(0o000)
    stage_out(str(staged))
    assert not staged.exists()
    assert (outside / "kept").exists()
    assert (bundle / "rootfs" / "bin").exists()
    stage_out(str(staged))


def test_stage_out_of_a_link_is_refused(bundle: Path, staged: Path, tmp_path: Path) -> None:
    stage(bundle, staged)
    (tmp_path / "link").symlink_to(staged)
    with pytest.raises(StagingError, match="cleaning"):
        stage_out(str(tmp_path / "link"))
    assert (staged / "config.json").exists()


def test_stage_out_leaves_what_others_put_there(bundle: Path, staged: Path) -> None:
    stage(bundle, staged)
    (staged / "other").write_text("")
    stage_out(str(staged))
    assert os.listdir(staged) == ["other"]
    (staged / "other").unlink()


@pytest.mark.covers("security a staged bundle in scratch")
def test_who_is_mapped_may_pass_through_the_directory(bundle: Path, staged: Path) -> None:
    config = config_of()
    config["linux"] = {"uidMappings": [{"containerID": 0, "hostID": 100000, "size": 65536}]}
    target = Target(elsewhere=True, uid=0, gid=0, rootless=False)
    stage_in(config, str(bundle), str(staged), target)
    assert permissions(staged) == 0o711


@pytest.mark.by_root
def test_a_root_file_system_that_the_user_cannot_reach_is_copied(
    bundle: Path, staged: Path
) -> None:
    (bundle / "rootfs" / "bin" / "file").write_text("x")
    (bundle / "rootfs" / "bin").chmod(0o500)
    os.chown(bundle, 100000, 100000)
    bundle.chmod(0o700)
    result = stage(bundle, staged)
    assert result.rootfs == str(staged / "rootfs")
    assert (staged / "rootfs" / "bin" / "file").read_text() == "x"
    assert "copied 1 MiB" in result.notes[0]
    assert "not reachable for the job's user" in result.notes[0]


@pytest.mark.covers(
    "limitation the bundle is not transferred to the nodes: it must be there already"
)
@pytest.mark.by_root
def test_a_root_file_system_of_this_mount_namespace_is_copied(bundle: Path, staged: Path) -> None:
    with mounted(bundle / "rootfs"):
        (bundle / "rootfs" / "-f").write_text("x")
        commands: list[Sequence[str]] = []

        def execute(command: Sequence[str]) -> None:
            commands.append(command)
            run(command)

        result = stage(bundle, staged, rootless=False, execute=execute)
        assert "is on tmpfs, mounted only on this machine" in result.notes[0]
        assert (staged / "rootfs" / "-f").read_text() == "x"
        assert [command[0] for command in commands] == ["cp"]
        local = Target(elsewhere=False, uid=0, gid=0, rootless=False)
        there = stage_in(config_of(), str(bundle), f"{staged}-local", local)
        assert there.rootfs == str(bundle / "rootfs")
        stage_out(f"{staged}-local")


@pytest.mark.by_root
def test_what_an_engine_bound_for_the_bundle_is_used_where_it_is(
    bundle: Path, staged: Path
) -> None:
    # as containerd's shim does with the root file system, and buildah with the volumes too
    snapshot, volume = bundle.parent / "snapshot", bundle.parent / "volume"
    for source, point in ((snapshot, bundle / "rootfs"), (volume, bundle / "mnt")):
        source.mkdir()
        (source / "file").write_text("x")
        point.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", source, point], check=True)
    try:
        result = stage(bundle, staged, bind(bundle / "mnt" / "file"), rootless=False)
    finally:
        for point in (bundle / "rootfs", bundle / "mnt"):
            subprocess.run(["umount", point], check=True)
    assert result.rootfs == str(snapshot)
    assert os.readlink(staged / "rootfs") == str(snapshot)
    config = json.loads((staged / "config.json").read_bytes())
    assert config["mounts"][0]["source"] == str(volume / "file")
    assert result.notes == ()


def test_a_copy_that_fails_says_why() -> None:
    with pytest.raises(StagingError, match=r"copying the root file system failed: cp: .*gone"):
        run(["cp", "-a", "--", "/gone", "/dev/null/x"])


def test_mounts_are_found_by_their_longest_place() -> None:
    lines = [
        "20 1 0:1 / / rw - ext4 /dev/a rw",
        "21 20 0:2 / /a\\040b rw shared:1 master:2 - tmpfs t rw",
        "22 21 0:3 / /a\\040b rw - overlay o rw",
        "23 20 0:4 / /ab rw - xfs x rw",
    ]
    mounts = [survey.parse_mount(line) for line in lines]
    assert survey.mount_of("/a b/c", mounts).point == "/a b"
    assert survey.mount_of("/a b", mounts).private
    assert survey.mount_of("/a", mounts).kind == "ext4"
    assert survey.mount_of("/ab/c", mounts).kind == "xfs"
    assert not survey.MountPoint("/", "overlay").private


MOUNTS = [
    survey.parse_mount(line)
    for line in (
        "20 1 8:1 / / rw - ext4 /dev/a rw",
        "21 20 8:1 /bundle/mnt /bundle/mnt rw - ext4 /dev/a rw",
        "22 21 8:1 /data /bundle/mnt/bound rw - ext4 /dev/a rw",
        "23 20 8:2 / /bundle/device rw - xfs /dev/b rw",
        "24 20 8:3 /lost /bundle/lost rw - xfs /dev/c rw",
        "25 20 0:9 / /bundle/nfs rw - nfs4 server:/x rw",
        "26 20 0:9 / /home rw - nfs4 server:/x rw",
        "27 20 8:4 / /images/one rw - xfs /dev/d rw",
        "28 20 8:1 /data /volumes/bound/_data rw - ext4 /dev/a rw",
        "29 20 0:9 /set /volumes/shared/_data rw - nfs4 server:/x rw",
        "30 20 0:10 / /volumes/server/_data rw - nfs4 server:/y rw",
    )
]


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("/bundle/config", "/bundle/config"),
        ("/bundle/mnt/bound/a", "/data/a"),
        ("/bundle/mnt/a", "/bundle/mnt/a"),
        ("/bundle/device/a", None),
        ("/bundle/lost/a", None),
        ("/bundle/nfs/a", "/bundle/nfs/a"),
        ("/home/a", "/home/a"),
        ("/images/one", None),
        ("/volumes/bound/_data/a", "/data/a"),
        ("/volumes/shared/_data", "/bundle/nfs/set"),
        ("/volumes/server/_data", None),
        ("/volumes/plain/_data", "/volumes/plain/_data"),
        ("/", "/"),
    ],
)
def test_what_was_mounted_for_a_container_is_looked_for_elsewhere(
    path: str, there: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "samefile", lambda *_: True)
    assert survey.on_the_nodes(path, "/bundle", "/images/one", MOUNTS) == there


@pytest.mark.parametrize("path", ["/", "/usr", "/bundle/config"])
def test_the_machines_own_root_was_made_for_no_container(path: str) -> None:
    """`"root": {"path": "/"}` had the whole machine copied."""
    assert survey.on_the_nodes(path, "/bundle", "/", MOUNTS) == path


def test_a_root_file_system_that_is_too_large_is_not_copied(
    bundle: Path, staged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        staged_bundle, "_rootfs_for_nodes", lambda *_: (str(bundle / "rootfs"), "is far")
    )
    (bundle / "rootfs" / "large").write_bytes(b"x" * (2 << 20))
    with pytest.raises(StagingError, match=r"is far, and has more than 1 MiB to copy.*copy_size"):
        stage(bundle, staged)
    assert not staged.exists()


def test_this_machine_is_described_as_it_is() -> None:
    target = local_target(uid=os.geteuid(), gid=os.getegid())
    status = Path("/proc/self/status").read_text()
    permitted = int(status.split("CapPrm:\t")[1].split()[0], 16)
    if os.geteuid() == 0:
        assert target.capabilities is not None
        assert ("CAP_SYS_RESOURCE" in target.capabilities) == bool(permitted >> 24 & 1)
        assert ("CAP_CHOWN" in target.capabilities) == bool(permitted & 1)
    user = local_target(uid=1000, gid=1000)
    assert (user.rootless, user.cgroups, user.capabilities) == (True, False, None)
    assert user.rlimits is not None
    assert set(user.rlimits) >= {"RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_NPROC"}
    assert min(user.rlimits.values()) >= 0


@pytest.mark.parametrize("made", ["directory", "link"])
def test_a_directory_of_somebody_else_is_refused(bundle: Path, tmp_path: Path, made: str) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 20002, 20002)
    place_for_us = theirs
    if made == "link":
        place_for_us = tmp_path / "link"
        place_for_us.symlink_to(theirs)
    with pytest.raises(StagingError, match=": belongs to uid 20002"):
        stage_in(config_of(), str(bundle), str(place_for_us), TARGET)
    assert not list(theirs.iterdir())


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("group", [0, 70000])
def test_a_directory_that_root_of_a_container_cannot_enter(
    bundle: Path, tmp_path: Path, group: int, copied: bool
) -> None:
    """Its rights end where a group is not mapped: such a container has one user."""
    closed = tmp_path / "closed"
    closed.mkdir()
    os.chown(closed, 0, group)
    closed.chmod(0o750)
    rows = ((0, 1, 1000), (1000, 0, 1), (1001, 1001, 64535))
    keep_id = [dict(zip(("containerID", "hostID", "size"), row, strict=True)) for row in rows]
    config = {**config_of(), "linux": dict.fromkeys(("uidMappings", "gidMappings"), keep_id)}
    lent = Ids(1000, (Range(0, 1000, 1), Range(1, 165536, 65536)), lent=True)
    target = msgspec.structs.replace(TARGET, ids=BothIds(lent, lent), nests=True)
    if copied:  # the user cannot reach it
        os.chown(bundle, 100000, 100000)
        bundle.chmod(0o700)
    mounted: list[Mounting] = []

    def mount(mounting: Mounting) -> str:
        mounted.append(mounting)
        return ""

    mounter = Mounter(mount, lambda *_: None, lambda: None)
    overlays = Overlays(lambda _: [""], "", wanted=False, mounter=mounter)
    result = stage_in(config, str(bundle), str(closed / "staged"), target, overlays=overlays)
    said = f"the container has one user: {closed}/staged is below a directory that its user 0"
    assert [said in note for note in result.notes] == [True] * (group > 0) + [False] * copied
    assert [one.users for one in mounted] == [True] * (group == 0)
    assert permissions(closed / "staged") == (0o700 if group else 0o711)
    stage_out(str(closed / "staged"))
