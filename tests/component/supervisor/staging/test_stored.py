"""Layers that the node does not see: it mounts squashfs images of them, which the store has."""

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from scrun.images.leases import lease_of, locked
from scrun.images.store import Store, shrink
from scrun.supervisor.contracts.target import Mounting
from scrun.supervisor.staging import copies
from scrun.supervisor.staging.digests import contents
from scrun.supervisor.staging.stage_out import stage_out
from tests.harness.bundle import snapshot
from tests.harness.layers import Image, everything, filled, listing, odd
from tests.harness.places import mounted
from tests.harness.wait import wait_until


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Image]:
    one = Image(tmp_path, monkeypatch)
    one.with_store = True
    one.recorded()
    one.by_shim()
    before = len(os.listdir("/proc/self/fd"))
    yield one
    stage_out(str(one.staged))
    assert not one.staged.exists()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not left(one)


def left(image: Image) -> list[str]:
    """What is left of copies that were not finished."""
    folder = image.images / "tmp"
    return os.listdir(folder) if folder.exists() else []


def made(image: Image) -> list[Path]:
    assert not [*image.images.glob("layer-*/rootfs")]
    return sorted(image.images.glob("layer-*/rootfs.sqfs"))


CHANGES = "rm -r usr/share; mkdir usr/share; echo x >etc/passwd; rm bin/ash; echo y >etc/new"


@pytest.mark.parametrize("rootless", [True, False])
def test_a_second_container_copies_nothing(image: Image, *, rootless: bool) -> None:
    image.rootless = rootless
    os.mknod((image.layers[1] / "motd"), stat.S_IFCHR)
    (image.layers[0] / "etc").mkdir()
    (image.layers[0] / "etc/own").write_text("own")
    image.unseen()
    first = image.staged_as("squashfs")
    assert first.notes == (
        f"root: the node mounts squashfs images of the layers of {image.rootfs}; changes come back"
        " at the end",
        "root: the images are mounted by overlay",
    )
    assert sorted(image.copied) == ["above", "below"]
    assert image.said[-1] == "image: 1.0 of 2.0 GiB"
    assert len([one for one in image.mountings if one.roots]) == 2
    stage_out(str(image.staged))
    image.copied.clear()
    image.mountings.clear()
    assert image.stage().image == "squashfs"
    assert image.copied == []
    assert len([one for one in image.mountings if one.roots]) == 1
    expected = image.rootfs.with_name("expected")
    subprocess.run(["cp", "-a", image.rootfs, expected], check=True)
    subprocess.run(["/bin/sh", "-ec", CHANGES], cwd=expected, check=True)
    image.run(f"test ! -e motd; test $(cat etc/own) = own; {CHANGES}")
    image.end(first)
    assert listing(image.rootfs) == listing(expected)


def test_layers_that_the_node_sees_are_not_copied(image: Image) -> None:
    image.mounted()
    assert image.stage().image == "layers"
    assert not image.images.exists()


def test_only_what_the_node_does_not_see_is_copied(image: Image) -> None:
    """As with images in a store that all machines share, and others on a local disk."""
    image.mounted()
    image.hidden(image.layers[1])
    assert image.stage().image == "squashfs"
    assert image.copied == ["above"]


def test_images_share_layers(image: Image) -> None:
    image.unseen()
    assert image.stage().image == "squashfs"
    stage_out(str(image.staged))
    image.copied.clear()
    image.layers.insert(1, image.store / "third" / "diff")
    (image.layers[1] / "etc").mkdir(parents=True)
    (image.layers[1] / "etc/third").write_text("third")
    shutil.rmtree(image.store.parent / "overlay-layers")
    image.layers[1:] = image.layers[2:] + image.layers[1:2]  # numbers are digests here
    image.recorded()
    image.layers[1:] = image.layers[3:] + image.layers[1:3]
    shutil.rmtree(image.rootfs)
    shutil.rmtree(image.store.parents[1] / "work")
    image.mounted()
    assert image.stage().image == "squashfs"
    assert image.copied == ["third"]
    image.run("test $(cat etc/third) = third")


def test_a_store_that_the_node_does_not_see(image: Image) -> None:
    """Nothing is copied there in vain, if it can have none sent."""
    image.mounter = None
    image.images.mkdir()
    image.mounted()
    image.hidden(image.store, image.images)
    staged = image.staged_as("copy")
    assert f"nor is the store of images, {image.images}" in staged.notes[0]
    assert image.copied == []


def test_a_layer_that_no_record_has(image: Image) -> None:
    shutil.rmtree(image.store.parent / "overlay-layers")
    (image.layers[2] / "usr/large").write_bytes(bytes(2 << 20))
    image.unseen()
    staged = image.staged_as("copy")
    assert f"no record has a digest of {image.layers[2]}" in staged.notes[0]


def test_small_layers_need_no_record(image: Image) -> None:
    """Such as docker's second layer of a container."""
    shutil.rmtree(image.store.parent / "overlay-layers")
    image.unseen()
    assert image.stage().image == "layers"
    assert image.copied == []
    assert not image.images.exists()
    image.run("test $(cat etc/hosts) = etc/hosts")


def test_what_a_container_wrote_before(image: Image) -> None:
    """Its own layer has no digest; it is copied however large it is."""
    (image.layers[0] / "etc").mkdir()
    (image.layers[0] / "etc/large").write_bytes(bytes(3 << 20))
    image.unseen()
    assert image.stage().image == "squashfs"
    image.run("test $(stat -c %s etc/large) = 3145728")


def test_records_of_docker(image: Image) -> None:
    shutil.rmtree(image.store.parent / "overlay-layers")
    folder = image.store.parent / "image" / "overlay" / "layerdb" / "sha256"
    for number, path in enumerate(image.layers[1:]):
        (folder / f"{number:064x}").mkdir(parents=True)
        for name, text in {
            "cache-id": path.parent.name,
            "diff": f"sha256:{number:064x}",
            "size": "123",
        }.items():
            (folder / f"{number:064x}" / name).write_text(text)
    (folder / "half").mkdir()
    found = contents([str(layer) for layer in image.layers])
    assert found[0] is None
    assert [one and (one.digest[-1], one.size) for one in found[1:]] == [("0", 123), ("1", 123)]


RECORDS = {
    "no JSON": "x",
    "another form": "{}",
    "no digest": json.dumps([{"id": "above", "diff-digest": "sha256:../x"}]),
}


@pytest.mark.parametrize("case", RECORDS)
def test_records_that_are_not_understood(image: Image, case: str) -> None:
    (image.store.parent / "overlay-layers/layers.json").write_text(RECORDS[case])
    assert contents([str(layer) for layer in image.layers]) == [None] * 3


def test_records_that_others_could_write(image: Image) -> None:
    """They could pass files of theirs off as those of any image."""
    (image.store.parent / "overlay-layers/layers.json").chmod(0o666)
    assert contents([str(layer) for layer in image.layers]) == [None] * 3


def test_layers_with_other_owners_are_other_layers(image: Image) -> None:
    path = image.store.parent / "overlay-layers/layers.json"
    layers = json.loads(path.read_text())
    before = contents([str(layer) for layer in image.layers])
    layers[0]["uidmap"] = [{"container_id": 0, "host_id": 1000, "size": 1}]
    path.write_text(json.dumps(layers))
    after = contents([str(layer) for layer in image.layers])
    assert before[1] != after[1]
    assert before[2] == after[2]


# Marks


def test_fuse_overlayfs(image: Image) -> None:
    """Its marks are names, and attributes of its own; what is mounted is in podman's record."""
    above = image.layers[1]
    (above / "etc").mkdir()
    (above / "etc/.wh.passwd").touch()
    (above / ".wh.motd").touch()
    (above / "usr").mkdir()
    os.setxattr(above / "usr", "user.fuseoverlayfs.opaque", b"y")
    (above / "empty").mkdir()
    (above / "empty/.wh..wh..opq").touch()
    (above / "empty/new").touch()
    (image.layers[2] / "empty/old").touch()
    image.by_fuse("rm etc/passwd motd; rm -r usr/share; rm empty/old; touch empty/new")
    staged = image.staged_as("squashfs")
    image.run(
        "test ! -e etc/passwd; test -e etc/hosts; test ! -e motd; test ! -e usr/share; "
        "test -e empty/new; test ! -e empty/old; test ! -e etc/.wh.passwd; rm etc/hosts"
    )
    image.end(staged)
    assert not (image.rootfs / "etc/hosts").exists()


def test_marks_that_the_node_would_not_read(image: Image) -> None:
    """Of root's engine, for a container with rights in a user namespace only."""
    image.rootless = False
    (image.layers[1] / "usr").mkdir()
    os.setxattr(image.layers[1] / "usr", "trusted.overlay.opaque", b"y")
    image.mounted()
    image.rootless = True
    assert image.stage().image == "squashfs"
    image.run("test ! -e usr/share; test -e etc/passwd")


def test_metacopy(image: Image) -> None:
    """Layers of images have no files without content; a container's own layer may."""
    image.rootless = False
    image.more_options = ",metacopy=on"
    image.mounted()
    assert image.stage().image == "squashfs"
    stage_out(str(image.staged))
    (image.layers[0] / "etc").mkdir()
    (image.layers[0] / "etc/passwd").write_bytes(bytes(10))
    os.setxattr(image.layers[0] / "etc/passwd", "trusted.overlay.metacopy", b"")
    staged = image.staged_as("copy")
    assert "trusted.overlay.metacopy" in staged.notes[0]


# One user


def test_files_of_others_belong_to_the_only_user(image: Image) -> None:
    lower = image.layers[2]
    os.chown(lower / "etc/passwd", 33, 33)
    (lower / "etc/passwd").chmod(0o600)
    os.chown(lower / "bin/sh", 33, 33)
    (lower / "bin/sh").chmod(0o4755)
    os.chown(lower / "empty", 33, 33)
    (lower / "empty").chmod(0o700)
    (lower / "empty/not").write_text("not")
    image.unseen()
    staged = image.staged_as("squashfs")
    image.run(
        "test $(stat -c %u:%a bin/sh) = 0:755; cat empty/not; echo x >>etc/passwd; rm empty/not"
    )
    image.end(staged)
    changed = (image.rootfs / "etc/passwd").stat()
    assert (changed.st_uid, stat.S_IMODE(changed.st_mode)) == (33, 0o600)
    assert not (image.rootfs / "empty/not").exists()
    assert (lower / "empty/not").exists()


# What goes wrong


def test_a_full_store(image: Image, tmp_path: Path) -> None:
    """The container gets a copy, as it would without a store; half a copy does not stay."""
    (image.layers[2] / "usr/large").write_bytes(os.urandom(4 << 20))
    image.unseen()
    with mounted(image.images, "-o", "size=2m"):
        staged = image.staged_as("copy")
        assert "No space left on device" in staged.notes[0], staged.notes
        assert not left(image)


def test_room_is_made_in_a_full_store(image: Image, tmp_path: Path) -> None:
    """What no container uses goes, even if the store may be larger."""
    (image.layers[2] / "usr/large").write_bytes(os.urandom(3 << 20))
    image.unseen()
    with mounted(image.images, "-o", "size=5m"):
        store = Store(str(image.images))
        old = store.make("old", lambda folder, _: filled(folder, 3 << 20))
        assert image.stage().image == "squashfs"
        assert store.find(old.key) is None


def test_the_limit_of_the_store(image: Image) -> None:
    """What containers use stays; of the rest the longest unused goes first."""
    store = Store(str(image.images))
    for number in range(5):
        entry = store.make(f"old{number}", lambda folder, _: filled(folder, 1 << 20))
        os.utime(Path(entry.directory) / "scrun-image.json", (number, number))
    image.limit = 4 << 20
    image.unseen()
    assert image.stage().image == "squashfs"
    left = [entry.key for entry in store.entries()]
    assert len([key for key in left if key.startswith("layer-")]) == 2
    assert [key for key in left if key.startswith("old")] == ["old2", "old3", "old4"]


def test_a_site_s_store(image: Image, tmp_path: Path) -> None:
    """Its copies are used, and nothing is written."""
    image.unseen()
    assert image.stage().image == "squashfs"
    stage_out(str(image.staged))
    site = tmp_path / "site"
    image.images.rename(site)
    shutil.rmtree(site / "leases")
    image.copied.clear()
    image.also = [str(tmp_path / "none"), str(site)]
    assert image.stage().image == "squashfs"
    assert (image.copied, image.images.exists()) == ([], False)
    stage_out(str(image.staged))
    next(site.glob("layer-*")).chmod(0o777)  # others could replace it
    assert image.stage().image == "squashfs"
    assert len(image.copied) == 1


def test_a_store_that_cannot_be_written(image: Image) -> None:
    """What is there is used as long as nothing has to be written."""
    image.unseen()
    with mounted(image.images, "-o", "ro"):
        staged = image.staged_as("copy")
        assert "Read-only file system" in staged.notes[0]


def test_a_store_of_somebody_else(image: Image) -> None:
    image.unseen()
    image.images.mkdir()
    os.chown(image.images, 33, 33)
    staged = image.staged_as("copy")
    assert "belongs to uid 33" in staged.notes[0]


def test_a_layer_is_removed_meanwhile(image: Image) -> None:
    image.unseen()
    mounter = image.mounter
    assert mounter is not None

    def removes(mounting: Mounting) -> str:
        try:
            return mounter.mount(mounting)
        finally:
            shutil.rmtree(image.layers[2], ignore_errors=True)

    image.mounter = msgspec.structs.replace(mounter, mount=removes)
    staged = image.staged_as("copy")
    assert "cannot be packed: No such file or directory" in staged.notes[0]
    assert len(made(image)) == 1


def test_a_copy_that_is_removed_below_a_container(image: Image) -> None:
    """Somebody removes the store by hand: what the container wrote comes back anyway."""
    image.unseen()
    staged = image.stage()
    image.run(f"echo x >etc/new; rm -r {image.images}; ls >/dev/null")
    image.end(staged)
    assert (image.rootfs / "etc/new").read_text() == "x\n"
    stage_out(str(image.staged))
    image.copied.clear()
    assert image.stage().image == "squashfs"
    assert "below" in image.copied


def test_leased_copies_stay(image: Image) -> None:
    image.unseen()
    assert image.stage().image == "squashfs"
    store = Store(str(image.images))
    for entry in store.entries():
        assert store.remove(entry.key), "it is used"
    assert len(made(image)) == 2


def test_many_layers(image: Image) -> None:
    """The second attempt has the short names of the first."""
    image.staged = image.staged.with_name("c" * 100)
    for number in range(40):
        layer = image.store / f"layer{number}" / "diff"
        (layer / "usr").mkdir(parents=True)
        (layer / "usr" / str(number)).write_text("x")
        image.layers.insert(1, layer)
    image.mounter = None
    shutil.rmtree(image.store.parent / "overlay-layers")
    image.unseen()
    image.staged_as("layers")
    image.run("test $(ls usr | wc -l) = 41")


def test_two_at_once_make_one_copy(image: Image, tmp_path: Path) -> None:
    """Each in a directory of its own, for the same image."""
    image.unseen()
    images = [image.another(f"staged{number}") for number in range(8)]
    threads = [threading.Thread(target=one.stage) for one in images]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    copied = [name for one in images for name in one.copied]
    assert sorted(copied) == ["above", "below"]
    assert len(made(image)) == 2
    for one in images:
        stage_out(str(one.staged))


def test_who_waits_sees_how_far_it_is(image: Image) -> None:
    image.unseen()
    store = Store(str(image.images))
    assert image.another("first").stage().image == "squashfs"
    key = next(entry.key for entry in store.entries())
    store.remove(key)
    for lease in store.users(key):
        store.give_back(key, lease)
    assert not store.remove(key)
    with locked(str(image.images / "locks" / key)) as lock:
        lock.say("0.5 of 2.0 GiB")
        thread = threading.Thread(target=image.stage)
        thread.start()
        wait_until("it waits", lambda: "image: 0.5 of 2.0 GiB" in image.said)
        assert image.copied == []
        ended = image.another("ended")
        ended.ended = True
        with pytest.raises(KeyboardInterrupt):  # it does not wait any longer
            ended.stage()
        assert not ended.staged.exists()
    thread.join()
    assert len(image.copied) == 1
    stage_out(str(image.staged.with_name("first")))


@pytest.mark.parametrize("seed", range(3))
def test_a_copy_that_is_killed(image: Image, seed: int, tmp_path: Path) -> None:
    """At a random moment, with all that works for it: nothing is left, and nothing broken used."""
    for number in range(300):
        (image.layers[2] / "usr" / str(number)).write_text("x" * number)
    image.mounted()
    before = snapshot(image.layers[2])
    whole = listing(image.layers[2])
    if not (pid := os.fork()):
        os.setsid()
        image.stage()
        signal.pause()
    time.sleep(random.Random(seed).uniform(0.1, 0.8))
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    shutil.rmtree(image.staged, ignore_errors=True)
    image.hidden(image.store)
    assert image.stage().image == "squashfs"
    assert not left(image)
    assert snapshot(image.layers[2]) == before
    trees = [tmp_path / f"tree-{number}" for number in range(2)]
    for packed, tree in zip(made(image), trees, strict=True):
        subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-d", tree, packed], check=True)
    assert whole in map(listing, trees)


# What the container has for itself


def test_its_own_layer_has_all_that_layers_can_have(image: Image, tmp_path: Path) -> None:
    image.rootless = False
    own = image.layers[0]
    odd(own)
    image.unseen()
    assert image.stage().image == "squashfs"
    copied = image.staged / "overlay/mine/0"
    assert everything(copied) == everything(own)
    assert (copied / "sparse").stat().st_blocks == 0


def test_names_of_one_file_in_its_own_layer(image: Image) -> None:
    """A name outside of the layer, and one that somebody has linked to, do not count."""
    own = image.layers[0]
    for name in ("first", "folder/second", "folder/inner/third"):
        (own / name).parent.mkdir(exist_ok=True)
        if name == "first":
            (own / name).write_bytes(bytes(1 << 20))
        else:
            os.link(own / "first", own / name)
    (own / "outside").write_text("x")
    os.link(own / "outside", image.store.parent / "outside")
    image.unseen()
    assert image.stage().image == "squashfs"
    copied = image.staged / "overlay/mine/0"
    names = ("first", "folder/second", "folder/inner/third")
    assert len({(copied / name).stat().st_ino for name in names}) == 1
    assert (copied / "first").stat().st_nlink == 3
    assert (copied / "outside").stat().st_nlink == 1


def test_too_many_names_to_remember(image: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are files of their own; nothing of their content is lost."""
    monkeypatch.setattr(copies, "_LINKED", 1)
    own = image.layers[0]
    for name in "abc":
        (own / name).write_text(name)
        os.link(own / name, own / f"{name}2")
    image.unseen()
    assert image.stage().image == "squashfs"
    copied = image.staged / "overlay/mine/0"
    for name in "abc":
        assert (copied / name).read_text() == (copied / f"{name}2").read_text() == name


def test_its_own_layer_for_one_user(image: Image) -> None:
    own = image.layers[0]
    odd(own)
    (own / "opaque").rmdir()
    image.unseen()
    assert image.stage().image == "squashfs"
    copied = image.staged / "overlay/mine/0"
    assert {path.lstat().st_uid for path in copied.rglob("*")} == {os.geteuid()}
    assert stat.S_IMODE((copied / "setuid").stat().st_mode) == 0o711


def test_a_deep_layer_of_its_own(image: Image) -> None:
    (image.layers[0] / "/".join("d" * 299)).mkdir(parents=True)
    image.unseen()
    other = image.another("other")
    assert other.stage().image == "squashfs"
    stage_out(str(other.staged))
    (image.layers[0] / "/".join("d" * 300)).mkdir()
    staged = image.staged_as("copy")
    assert "have more than 300 directories within each other" in staged.notes[0]


def test_nobody_waits_for_a_copy_of_its_own_layer(image: Image) -> None:
    (image.layers[0] / "large").write_bytes(bytes(3 << 20))
    image.unseen()
    image.ended = True
    with pytest.raises(KeyboardInterrupt):
        image.stage()
    assert not image.staged.exists()


# What nodes need for images


def test_without_a_shim_the_root_file_system_is_copied(image: Image) -> None:
    image.mounter = None
    image.unseen()
    staged = image.staged_as("copy")
    assert "cannot be squashfs images: only a shim mounts images" in staged.notes[0]
    assert not image.images.exists()


def test_directories_of_an_older_version_are_left_alone(image: Image) -> None:
    """Its containers may use them; when they do not, they go as the longest unused."""
    store = Store(str(image.images))
    layer = store.make("layer-0123", lambda folder, _: filled(folder, 1 << 20))
    lease = lease_of(str(image.images.parent), "older")
    store.lease(layer.key, lease)
    image.limit = 1 << 20
    image.unseen()
    assert image.stage().image == "squashfs"
    assert store.find(layer.key) is not None
    stage_out(str(image.staged))
    store.give_back(layer.key, lease)
    shrink(store, image.limit)
    assert store.find(layer.key) is None
