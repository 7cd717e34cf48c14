"""Root file systems on an overlay, which engines' stores have by default.

The nodes mount the same layers, or get copies.
"""

import contextlib
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster
from tests.harness.adoption import kill_all_supervisors
from tests.harness.containerd import IMAGE, Containerd
from tests.harness.daemons import Daemon
from tests.harness.docker import Docker
from tests.harness.image import owned_by_root
from tests.harness.places import mounted as small_disk
from tests.harness.podman import RUN, Podman, given, podman_of, rootless_podman
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.users import User, ordinary, root
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until, wait_while

LARGE = 40
STAYS = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"
MOUNTED = "root: the node mounts the layers of "
STORED = "root: the node mounts copies of the layers of "
COPIED = "root: copied "
FILES = 'format = "files"\n'
"""Of [images]: the copies are directories, as test_squashfs.py has the others."""
LOG = Path("l/log")


def way(record: Path) -> str:
    """What `state` says of a container's root file system."""
    annotations: dict[str, str] = json.loads((record / "state.json").read_text())["annotations"]
    return annotations["org.scrun.image"]


@pytest.fixture(scope="module", params=["mount", "copy"])
def overlay(request: pytest.FixtureRequest) -> Iterator[Podman]:
    with rootless_podman(storage="overlay", settings=own(request.param)) as podman:
        yield podman
        wait_while("jobs", lambda: cluster.jobs(podman.site.user), 15)


@pytest.fixture
def mounted() -> Iterator[Podman]:
    """podman, whose containers' log is in a file."""
    site = Site("slurm", ordinary())
    settings = f'[log]\nfile = "{site.base / LOG}"\n'
    try:
        with Podman(site, settings, storage="overlay") as podman:
            yield podman
    finally:
        site.close()


def own(how: str) -> str:
    return f'[staging]\noverlay = "{how}"\n'


def said(podman: Podman) -> str:
    """What the log says about root file systems."""
    lines = (podman.site.base / LOG).read_text().splitlines()
    return "\n".join(line for line in lines if "root: " in line)


def begin(podman: Podman, *options: str, script: str = STAYS, image: str = "busybox") -> str:
    words = (*RUN, "--detach", *options, image, "sh", "-c", script)
    container = podman.must(*words).strip()
    wait_until("it is up", lambda: podman.must("logs", container).startswith("up\n"))
    return container


def changes(podman: Podman, name: str) -> set[str]:
    """What podman says of a container, without what Slurm makes to mount the step's directory."""
    spool = os.environ["SLURM_CLUSTER_DIR"]  # from 26.05 on it is mounted there
    lines = {line for line in podman.must("diff", name).splitlines() if spool not in line}
    return lines - set(slurm_version().made_in_root)


def test_what_a_container_writes_is_there_afterwards(overlay: Podman) -> None:
    script = "echo changed >/made; rm /bin/tac; chmod 600 /etc/passwd; mkdir /d; ln -s /x /d/l"
    overlay.must(*RUN, "--name", "one", "busybox", "sh", "-c", script)
    own = {"A /made", "D /bin/tac", "C /bin", "C /etc/passwd", "C /etc", "A /d", "A /d/l"}
    assert changes(overlay, "one") == own
    overlay.must("rm", "one")


def test_it_is_there_when_it_starts_again(overlay: Podman) -> None:
    script = "echo x >>/count; echo x >>/etc/count; cat /count /etc/count | wc -l"
    overlay.must(*RUN, "--name", "one", "busybox", "sh", "-c", script)
    overlay.must("start", "--attach", "one")
    assert overlay.must("logs", "one").split() == ["2", "4"]
    overlay.must("rm", "one")


def test_a_container_that_is_killed_keeps_what_it_wrote(overlay: Podman) -> None:
    script = "echo kept >/etc/made; echo up; exec sleep 600"
    overlay.must(*RUN, "--detach", "--name", "one", "busybox", "sh", "-c", script)
    (record,) = (overlay.site.base / "x" / "scrun").glob("[0-9a-f]*")
    how = "layers" if 'overlay = "mount"' in overlay.settings else "copy"
    assert way(record) == how
    overlay.must("stop", "--time", "0", "one")
    overlay.must("start", "one")
    assert overlay.must("exec", "one", "cat", "/etc/made") == "kept\n"
    overlay.must("rm", "--force", "--time", "0", "one")


@pytest.mark.parametrize("also", ["true", "rm /bin/tac"])
def test_what_does_not_fit_is_kept(also: str) -> None:
    """Where something is removed as well, it is tried: nobody knows before."""
    site = Site("slurm", ordinary())
    log = f'[log]\nfile = "{site.base / LOG}"\n'
    with small_disk(site.base / "s", "-o", "size=40m"):
        site.user.give(site.base / "s")
        with Podman(site, log, storage="overlay") as podman:
            script = f"{also}; echo small >/etc/small; dd if=/dev/zero of=/etc/big bs=1M count=60"
            done = podman.run(*RUN, "--name", "one", "busybox", "sh", "-c", script)
            assert done.returncode == 125
            text = (site.base / LOG).read_text()
            [place] = {*re.findall(r"they are kept in (\S+): remove it if", text)}
            assert ("they need 6" in text) is (also == "true")
            assert ("No space left" in text) is (also != "true")
            [kept] = Path(place).iterdir()
            assert (kept / "etc" / "small").read_text() == "small\n"
            assert (kept / "etc" / "big").stat().st_size == 60 << 20
            if also == "true":
                assert changes(podman, "one") <= {"C /etc"}  # podman's own
            podman.must("rm", "one")
            assert podman.must(*RUN, "--rm", "busybox", "echo", "on") == "on\n"
            shutil.rmtree(place)
    site.close()


@pytest.mark.by_shim
def test_what_does_not_fit_is_kept_by_a_successor() -> None:
    site = Site("slurm", ordinary())
    log = f'[log]\nfile = "{site.base / LOG}"\n'
    with small_disk(site.base / "s", "-o", "size=40m"):
        site.user.give(site.base / "s")
        with Podman(site, log, storage="overlay") as podman:
            big = "dd if=/dev/zero of=/etc/big bs=1M count=60 2>/dev/null"
            container = begin(podman, script=f"{big}; {STAYS}")
            kill_all_supervisors(site)
            podman.must("kill", "--signal", "TERM", container)
            podman.must("wait", container)
            text = (site.base / LOG).read_text()
            [place] = {*re.findall(r"they are kept in (\S+): remove it if", text)}
            [kept] = Path(place).iterdir()
            assert (kept / "etc" / "big").stat().st_size == 60 << 20
            podman.must("rm", container)
            shutil.rmtree(place)
    site.close()


def test_build(overlay: Podman) -> None:
    path = given(
        overlay,
        "b/Containerfile",
        "FROM busybox\nRUN echo first >/one\nRUN cat /one >/two; rm /one\n",
    )
    options = ("--isolation", "oci", "--network", "host", "--tag", "built")
    limits = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096")
    overlay.must("build", *options, *limits, "--file", str(path), str(path.parent))
    script = "cat /two; test -e /one || echo gone"
    assert overlay.must(*RUN, "--rm", "built", "sh", "-c", script) == "first\ngone\n"


# The layers


CHANGES = """
mkdir /opt /opt/a; echo new >/opt/a/new; echo more >>/etc/passwd; rm /bin/tac
mv /etc/group /etc/moved; chmod 4711 /bin/busybox; ln /etc/moved /etc/linked; ln -s /x /etc/link
rm -rf /data/old; mkdir /data/old; echo b >/data/old/b; chown 33:44 /data/mine
mv /data/from /data/to; touch -d 2001-02-03 /data/to/f; chmod 1777 /data
"""
IMAGE_FILE = """FROM busybox
RUN mkdir -p /data/old/x /data/from /home && echo a >/data/old/a && echo f >/data/from/f
RUN echo mine >/data/mine; chmod 600 /data/mine; rm -r /data/old/x; echo c >/data/old/c
"""


def build(podman: Podman) -> None:
    given(podman, "b/Containerfile", IMAGE_FILE)
    options = ("--isolation", "oci", "--network", "host", *RUN[3:], "--tag", "layers")
    podman.must("build", *options, str(podman.site.base / "b"))


def files(podman: Podman, container: str) -> list[str]:
    """All that is in a container: names, modes, owners, targets and sizes."""
    tar = podman.site.base / f"{container}.tar"
    podman.must("export", "--output", str(tar), container)
    listing = run_program(["tar", "--list", "--verbose", "--numeric-owner", "--file", str(tar)])
    kept = []
    for line in listing.stdout.splitlines():
        mode, owner, size, _, _, name = line.split(maxsplit=5)
        if not name.startswith(("run/", "var/run", "etc/hosts", "etc/resolv", "etc/hostname")):
            kept.append(f"{mode} {owner} {size} {name}".replace(" link to ", " -> "))
    return sorted(kept)


def as_with_runc(podman: Podman, script: str = CHANGES) -> None:
    """Make the same changes with scrun and with runc, and compare what is there afterwards."""
    podman.must(*RUN, "--name", "ours", "layers", "sh", "-c", script)
    command = podman.command[: podman.command.index("--runtime")]
    runc = [*podman.prefix, *command, "--runtime", "runc"]
    words = ("--name", "theirs", "--pids-limit", "0", "layers", "sh", "-c", script)
    done = run_program([*runc, *RUN, *words], env=podman.environment, cwd=podman.site.base)
    assert done.returncode == 0, done.stderr
    assert changes(podman, "ours") == changes(podman, "theirs")
    ours, theirs = (files(podman, name) for name in ("ours", "theirs"))
    assert ours == theirs


def test_afterwards_all_is_as_with_another_runtime(mounted: Podman) -> None:
    build(mounted)
    as_with_runc(mounted)
    assert COPIED not in said(mounted)
    assert MOUNTED in said(mounted)


def test_nothing_is_copied_for_the_next_one(mounted: Podman) -> None:
    mounted.must(*RUN, "--rm", "busybox", "sh", "-c", "echo x >/etc/x")
    mounted.must(*RUN, "--rm", "busybox", "sh", "-c", "test ! -e /etc/x")
    assert said(mounted).count(MOUNTED) == 2
    assert COPIED not in said(mounted)


def test_a_program_that_the_container_has_made(mounted: Podman) -> None:
    script = f"cp /bin/busybox /etc/cat; mkdir /own; cp /bin/busybox /own/echo; {STAYS}"
    container = begin(mounted, script=script)
    assert mounted.must("exec", container, "/etc/cat", "/etc/passwd").startswith("root")
    assert mounted.must("exec", container, "/own/echo", "a") == "a\n"
    assert mounted.run("exec", container, "/own/none").returncode == 127


@pytest.mark.covers("podman cp, mount, unmount")
def test_cp_of_a_running_container_is_refused(mounted: Podman) -> None:
    """The files are on the node only; before the start and after the end they are here."""
    container = mounted.must("create", *RUN[1:], "busybox", "sh", "-c", STAYS).strip()
    path = given(mounted, "file", "given\n")
    mounted.must("cp", str(path), f"{container}:/etc/before")
    mounted.must("start", container)
    wait_until("it is up", lambda: mounted.must("logs", container).startswith("up\n"))
    assert mounted.must("exec", container, "cat", "/etc/before") == "given\n"
    assert mounted.run("cp", f"{container}:/etc/passwd", "-").returncode
    assert mounted.run("cp", str(path), f"{container}:/etc/during").returncode
    mounted.must("stop", "--time", "5", container)
    assert mounted.must("cp", f"{container}:/etc/before", "-")


def of_others(podman: Podman) -> None:
    """Import an image with files of user 33, some for that user alone."""
    archive = podman.site.base / "others.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(podman.site.rootfs, ".", filter=owned_by_root)
        for name, mode, folder in OF_OTHERS:
            member = tarfile.TarInfo(f"./{name}")
            member.mode, member.uid, member.gid = mode, 33, 33
            member.type = tarfile.DIRTYPE if folder else tarfile.REGTYPE
            member.size = 0 if folder else 2
            tar.addfile(member, None if folder else io.BytesIO(b"x\n"))
    podman.site.user.give(archive)
    podman.must("import", str(archive), "others")


OF_OTHERS = (
    ("etc/secret", 0o600, False),
    ("srv", 0o700, True),
    ("srv/f", 0o644, False),
    ("etc/d", 0o700, True),
    ("etc/d/d", 0o700, True),
    ("etc/d/d/f", 0o600, False),
    ("etc/open", 0o755, True),
    ("etc/open/f", 0o644, False),
)


@pytest.mark.parametrize("how", ["mount", "copy"])
def test_one_user(how: str) -> None:
    """Files of others are the only user's own, as in a copy."""
    site = Site("slurm", ordinary())
    settings = f'[log]\nfile = "{site.base / LOG}"\n{own(how)}id_map = "single"\n'
    try:
        with Podman(site, settings, storage="overlay") as podman:
            of_others(podman)
            script = (
                "cat /etc/secret /srv/f /etc/d/d/f /etc/open/f; echo y >>/etc/secret; "
                "rm /srv/f /etc/open/f; mv /etc/d/d/f /etc/d/moved; echo z >/etc/open/new"
            )
            said_there = podman.must(*RUN, "--name", "one", "others", "sh", "-c", script)
            assert said_there == "x\n" * 4
            assert (MOUNTED if how == "mount" else COPIED) in said(podman)
            assert changes(podman, "one") == {
                "C /etc", "C /etc/secret", "C /srv", "D /srv/f", "C /etc/open", "D /etc/open/f",
                "C /etc/d", "C /etc/d/d", "D /etc/d/d/f", "A /etc/d/moved", "A /etc/open/new",
            }  # fmt: skip
            podman.must("start", "--attach", "one")
    finally:
        site.close()


# Several tasks


TASKS = ("--env", "SCRUN_JOB_NUM_NODES=2", "--env", "SCRUN_NTASKS=2")
# slurmstepd of 22.05 does not tell a container which task it is
EACH = "me=${SLURM_PROCID:-7}; echo $me >>/etc/made; echo >/srv/$me; cat /etc/made"


def launch(record: Path) -> str:
    annotations: dict[str, str] = json.loads((record / "state.json").read_text())["annotations"]
    return annotations["org.scrun.launch"]


def test_each_task_writes_for_itself(mounted: Podman) -> None:
    """What comes back is in the order of the tasks; srun --container's have one copy."""
    words = ("--detach", "--name", "one", *TASKS, "busybox", "sh", "-c")
    mounted.must(*RUN, *words, f"mkdir -p /srv; {EACH}; exec sleep 600")
    wait_until("both are up", lambda: len(mounted.must("logs", "one").split()) >= 2)
    (record,) = (mounted.site.base / "x" / "scrun").glob("[0-9a-f]*")
    by_shim = launch(record) == "shim"
    assert way(record) == ("layers" if by_shim else "copy"), said(mounted)
    mounted.must("stop", "--time", "1", "one")
    if not by_shim:
        assert "two overlays cannot write to one directory" in said(mounted)
        return
    assert sorted(mounted.must("logs", "one").split()) == ["0", "1"]
    assert {"A /srv/0", "A /srv/1", "A /etc/made", "C /etc"} <= changes(mounted, "one")
    assert COPIED not in said(mounted)


def test_several_tasks_read_the_same(mounted: Podman) -> None:
    script = "touch /etc/x 2>/dev/null || echo yes"
    options = ("--rm", "--read-only", *TASKS)
    assert mounted.must(*RUN, *options, "busybox", "sh", "-c", script) == "yes\nyes\n"
    assert MOUNTED in said(mounted)
    assert COPIED not in said(mounted)


# Layers that the nodes do not see

HIDDEN = 'mount --bind "$0" "$1" && shift && exec "$@"'


@contextlib.contextmanager
def hidden_store(
    settings: str = "",
    user: User | None = None,
    storage: str = "overlay",
    images_in: str = "images",
) -> Iterator[Podman]:
    """podman, whose storage is a mount in its own mount namespace.

    Args:
        settings: More of scrun.toml.
        user: Whose it is.
        storage: podman's driver.
        images_in: Where the store of images is; below `s` the nodes do not see it, either.
    """
    site = Site("slurm", user or ordinary())
    hidden, store = site.base / "hidden", site.base / "s"
    for folder in (hidden, store):
        folder.mkdir()
        site.user.give(folder)
    before = ("unshare", "--mount", "sh", "-c", HIDDEN, str(hidden), str(store))
    images = f'[images]\nstore = "{site.base}/{images_in}"\n'
    log = f'[log]\nfile = "{site.base / LOG}"\n'
    try:
        with Podman(site, log + images + settings, before, storage) as podman:
            yield podman
            # files of subordinate ids
            podman.run("unshare", "rm", "-rf", f"{site.base}/{images_in}")
    finally:
        site.close()


def keys(podman: Podman) -> set[str]:
    return {path.name for path in (podman.site.base / "images").glob("layer-*")}


def test_layers_that_the_nodes_do_not_see() -> None:
    """The first container has them copied to the store, and the others mount the copies."""
    with hidden_store(FILES) as podman:
        build(podman)
        (podman.site.base / LOG).unlink()
        as_with_runc(podman)
        assert STORED in said(podman)
        made = keys(podman)
        assert len(made) == 3
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "test -e /bin/tac; test ! -e /opt/a/new")
        read_only = ("--rm", "--read-only", "--volume", "/etc/hostname:/etc/new/file:ro")
        script = "touch /etc/x || { echo x >/tmp/x; cat /etc/new/file /tmp/x; }"
        said_there = podman.must(*RUN, *read_only, "layers", "sh", "-c", script)
        assert said_there == Path("/etc/hostname").read_text() + "x\n"
        podman.must("commit", "ours", "more")
        podman.must(*RUN, "--rm", "more", "sh", "-c", "test ! -e /bin/tac; test -e /opt/a/new")
        assert COPIED not in said(podman)
        assert len(keys(podman)) == 4
        assert keys(podman) > made


def test_vfs_that_the_nodes_do_not_see() -> None:
    """The image is copied to the store once; of a container, what differs from its image."""
    with hidden_store(FILES, storage="vfs") as podman:
        build(podman)
        (podman.site.base / LOG).unlink()
        as_with_runc(podman)
        podman.must("start", "--attach", "ours")
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "test -e /bin/tac; test ! -e /opt/a/new")
        assert STORED in said(podman)
        assert COPIED not in said(podman)
        assert said(podman).count(STORED) == 3
        assert len(keys(podman)) == 1


def test_a_directory_that_the_nodes_do_not_see() -> None:
    """A bundle of this machine's: no record tells what it is, so it is copied."""
    with hidden_store() as podman:
        site = podman.site
        bundle = site.base / "hidden" / "bundle"
        bundle.mkdir()
        run_program(["cp", "-a", str(site.rootfs), str(bundle / "rootfs")])
        config = {**site.config("true"), "root": {"path": "rootfs"}}
        (bundle / "config.json").write_text(json.dumps(config))
        site.user.give(bundle)
        words = (*podman.prefix, site.command[0], "run", "--bundle", f"{site.base}/s/bundle", "x")
        done = run_program(words, env=podman.environment, cwd=site.base)
        assert done.returncode == 0, done.stderr
        assert "is not there on the node" in said(podman)
        assert COPIED in said(podman)


def test_a_home_of_somebody_else(overlay: Podman) -> None:
    options = ("--rm", "--user", "1000:1000", "--userns", "keep-id")
    assert overlay.must(*RUN, *options, "busybox", "id", "-u") == "1000\n"


# A scratch directory that no overlay can be written to


@contextlib.contextmanager
def network_scratch(user: User, settings: str = "", *more: str) -> Iterator[Podman]:
    """podman; staged bundles are on a file system that knows no owners and no marks, as NFS.

    `more` are options of bindfs.
    """
    site = Site("slurm", user)
    disks = Path(os.environ["SLURM_CONF"]).parents[1] / "disks"
    disk = disks / site.base.name
    below = site.base / "below"
    for folder in (disk, below):
        folder.mkdir()
        user.give(folder)
    options = ("--chown-deny", "--chgrp-deny", "--xattr-none", "-o", "allow_other", *more)
    run_program(["bindfs", *options, str(below), str(disk)])
    staging = f'[staging]\nscratch = "{disk}"\n'
    log = f'[log]\nfile = "{site.base / LOG}"\n'
    try:
        with Podman(site, log + staging + settings, storage="overlay") as podman:
            yield podman
    finally:
        site.close()
        run_program(["umount", str(disk)])
        disk.rmdir()


def test_what_several_tasks_write_is_on_their_nodes() -> None:
    """It is sent when a task ends; of one that is removed then, nothing is sent."""
    with network_scratch(ordinary()) as podman:
        (podman.site.base / LOG).unlink(missing_ok=True)
        script = f"mkdir -p /srv; {EACH}; exit ${{SLURM_PROCID:-1}}"
        options = ("--name", "one", *TASKS, "busybox", "sh", "-c")
        assert podman.run(*RUN, *options, script).returncode == 1
        by_shim = MOUNTED in said(podman)
        if by_shim:
            assert {"A /srv/0", "A /srv/1", "A /etc/made"} <= changes(podman, "one")
            assert COPIED not in said(podman)
        else:
            assert "two overlays cannot write to one directory" in said(podman)
        podman.must(*RUN, "--rm", *TASKS, "busybox", "sh", "-c", "echo >/etc/made")
        missing = podman.run(*RUN, "--rm", *TASKS, "busybox", "/bin/none")
        assert missing.returncode == 127
        wait_while("places", lambda: places(podman), 10)


def places(podman: Podman) -> list[Path]:
    """What is left on the nodes, which have this machine's /tmp."""
    found = Path("/tmp").glob("scrun-written-*")
    return [path for path in found if path.stat().st_uid == podman.site.user.uid]


def comes_back(podman: Podman, container: str) -> None:
    """Hold that what was written on the node is there at the next start, and not on the node."""
    podman.must("kill", "--signal", "KILL", container)
    podman.must("wait", container)
    podman.must("start", container)
    assert podman.must("exec", container, "cat", "/etc/kept") == "kept\n"
    podman.must("rm", "--force", "--time", "0", container)
    wait_while("places", lambda: places(podman), 10)


def test_what_is_written_is_on_the_node() -> None:
    """Of a container with one user: the others' files could not be staged there anyway."""
    with network_scratch(ordinary()) as podman:
        build(podman)
        (podman.site.base / LOG).unlink()
        as_with_runc(podman, CHANGES.replace("chown 33:44", "touch"))
        assert MOUNTED in said(podman)
        assert COPIED not in said(podman)
        podman.must("start", "--attach", "ours")
        podman.must(*RUN, "--rm", "layers", "sh", "-c", "echo x >/etc/x")
        container = begin(podman, script=f"echo kept >/etc/kept; {STAYS}")
        comes_back(podman, container)


def test_its_job_ends_while_that_is_sent() -> None:
    """Then it stays on the node, and nothing of it is in podman's storage."""
    with network_scratch(ordinary(), "", "--write-rate=4M") as podman:
        before, log = {*places(podman)}, podman.site.base / LOG
        script = f"dd if=/dev/urandom of=/etc/big bs=1M count={LARGE}"
        podman.must(*RUN, "--detach", "--name", "one", "busybox", "sh", "-c", script)
        disk = Path(os.environ["SLURM_CONF"]).parents[1] / "disks" / podman.site.base.name
        wait_until("it is sent", lambda: [*disk.glob("*/overlay/*.tar.part")], 60)
        cluster.slurm("scancel", "--user", podman.site.user.name, "--name", "scrun")
        [place] = {*places(podman)} - before
        said = f"they are in {place} on its node"
        wait_until("it is said", lambda: said in log.read_text(), 30)
        assert (place / "upper" / "etc" / "big").stat().st_size == LARGE << 20
        assert not [line for line in changes(podman, "one") if "big" in line]
        shutil.rmtree(place)


@pytest.mark.by_shim
def test_what_is_written_on_the_node_outlives_the_supervisor() -> None:
    with network_scratch(ordinary()) as podman:
        container = begin(podman)
        podman.must("exec", container, "sh", "-c", "echo kept >/etc/kept")
        kill_all_supervisors(podman.site)
        comes_back(podman, container)


# Root's engines


def test_podman_of_root() -> None:
    with podman_of(root(), storage="overlay") as podman:
        podman.must(*RUN, "--name", "one", "busybox", "sh", "-c", "echo x >/etc/x")
        assert {"A /etc/x", "C /etc"} <= changes(podman, "one")


def test_docker() -> None:
    with Docker(storage="overlay2") as docker:
        container = docker.must("run", "--detach", "busybox", "sh", "-c", STAYS).strip()
        wait_until("it is up", lambda: docker.must("logs", container))
        log = (docker.records / container / "log").read_text()
        assert MOUNTED in log, log
        assert way(docker.records / container) == "layers"
        docker.must("exec", container, "sh", "-c", "echo x >/etc/x; rm /bin/tac")
        docker.must("stop", container)
        assert {"A /etc/x", "D /bin/tac"} <= set(docker.must("diff", container).splitlines())
        docker.must("rm", container)


def test_containerd() -> None:
    with Containerd(snapshotter="overlayfs") as containerd:
        options = (*containerd.run_options, "--detach", IMAGE, "c1")
        containerd.must(*options, "sh", "-c", f"echo x >/etc/x; {STAYS}")
        log = containerd.records / "c1" / "log"
        wait_until("it is staged", lambda: log.exists() and "root: " in log.read_text())
        assert MOUNTED in log.read_text(), log.read_text()
        containerd.must("task", "kill", "--signal", "KILL", "c1")
        wait_until("it has ended", lambda: "STOPPED" in containerd.must("task", "ls"))
        containerd.must("task", "rm", "c1")
        containerd.must("container", "rm", "c1")


def with_store(daemon: Daemon, how: str = "files") -> None:
    """Have the store of images in the site's directory, and the engine's files here only."""
    settings = daemon.base / "scrun.toml"
    more = f'[staging]\nhost_only = ["{daemon.base}/d"]\n'
    more += f'[images]\nstore = "{daemon.base}/images"\nformat = "{how}"\n'
    settings.write_text(f"{settings.read_text()}\n{more}")


def test_docker_with_its_storage_on_a_local_disk() -> None:
    """Its second layer of a container, which no image has, is copied as the container's own."""
    with Docker(storage="overlay2", hidden=True) as docker:
        with_store(docker)
        for _ in range(2):
            container = docker.must("run", "--detach", "busybox", "sh", "-c", STAYS).strip()
            wait_until("it is up", lambda: docker.must("logs", container))  # noqa: B023
            log = (docker.records / container / "log").read_text()
            assert STORED in log, log
            assert way(docker.records / container) == "store"
            docker.must("exec", container, "sh", "-c", "echo x >/etc/x; rm /bin/tac")
            docker.must("stop", container)
            lines = set(docker.must("diff", container).splitlines())
            assert {"A /etc/x", "D /bin/tac"} <= lines
            docker.must("rm", container)
        assert len(list((docker.base / "images").glob("layer-*"))) == 1


def test_containerd_with_its_storage_on_a_local_disk() -> None:
    with Containerd(snapshotter="overlayfs", hidden=True) as containerd:
        with_store(containerd)
        options = (*containerd.run_options, "--detach", IMAGE, "c1")
        containerd.must(*options, "sh", "-c", f"echo x >/etc/x; {STAYS}")
        log = containerd.records / "c1" / "log"
        wait_until("it is staged", lambda: log.exists() and "root: " in log.read_text())
        assert STORED in log.read_text(), log.read_text()
        containerd.must("task", "kill", "--signal", "KILL", "c1")
        wait_until("it has ended", lambda: "STOPPED" in containerd.must("task", "ls"))
        containerd.must("task", "rm", "c1")
        containerd.must("container", "rm", "c1")
        assert len(list((containerd.base / "images").glob("layer-*"))) == 1
