"""podman sees the files of a running container as it has them, wherever these are (FUSE)."""

import hashlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.overlays import STAYS, begin, hidden_store, shared_store
from tests.harness.podman import RUN, Podman, given, podman_of
from tests.harness.processes import peak, shims_of, signal_quietly
from tests.harness.squashfs import fuse_for_all
from tests.harness.users import ordinary, root
from tests.harness.wait import wait_until

PLACES: dict[str, Callable[[], AbstractContextManager[Podman]]] = {
    "user, overlay": shared_store,
    "user, overlay that nodes do not see": hidden_store,
    "user, vfs": partial(podman_of, ordinary()),
    "root, vfs": partial(podman_of, root()),
    "root, overlay that nodes do not see": partial(hidden_store, user=root()),
}
FEW = ("user, overlay", "root, vfs")
NOTHING = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
ALL = {place: place if place in FEW else nightly(place) for place in PLACES}
OF_USERS = [ALL[place] for place in ALL if place.startswith("user,")]


@pytest.fixture(params=[*ALL.values()], scope="module")
def anywhere(request: pytest.FixtureRequest) -> Iterator[Podman]:
    fuse_for_all()
    with PLACES[request.param]() as podman:
        yield podman


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    fuse_for_all()
    with shared_store() as found:
        yield found


@contextmanager
def begun(podman: Podman, *options: str, script: str = STAYS) -> Iterator[str]:
    container = begin(podman, *options, script=script)
    try:
        yield container
    finally:
        podman.must("rm", "--force", "--time", "1", container)


def anchor(podman: Podman, container: str) -> int:
    return int(podman.must("inspect", "--format", "{{.State.Pid}}", container))


def mounts(pid: int) -> list[str]:
    """What is mounted over an anchor's root."""
    lines = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return [line[line.index("-") + 1] for line in lines if line[4] == "/"]


@pytest.mark.covers("podman cp, mount, unmount")
def test_cp_in_both_directions(anywhere: Podman) -> None:
    path = given(anywhere, "b/file", "given\n")
    with begun(anywhere, "--tmpfs", "/scratch", "-v", "/tmp:/of-node") as container:
        name = f"scrun-{container[:12]}"
        for place in ("/etc/new", "/scratch/new", "/new", f"/of-node/{name}"):
            anywhere.must("cp", str(path), f"{container}:{place}")
            assert anywhere.must("exec", container, "cat", place) == "given\n"
            anywhere.must("exec", container, "sh", "-c", f"echo changed >>{place}")
            assert anywhere.copied(container, place) == "given\nchanged\n"
        anywhere.must("exec", container, "rm", f"/of-node/{name}")
        done = anywhere.run("cp", f"{container}:/none", "-")
        assert "could not be found on container" in done.stderr
        assert anywhere.must("exec", container, "ls", "/etc/new") == "/etc/new\n"


def test_a_tree_with_owners_links_and_odd_names(anywhere: Podman) -> None:
    script = (
        "mkdir -p /d/sub; echo x >/d/sub/x; ln /d/sub/x /d/again; ln -s ../../../etc/passwd "
        "/d/link; mkfifo /d/fifo; touch \"/d/$(printf 'a\\nb')\"; chmod 4711 /d/sub/x; "
        f"touch -d 2001-02-03 /d/old; {STAYS}"
    )
    with begun(anywhere, script=script) as container:
        there = anywhere.site.base / "b" / f"tree-{container[:8]}"
        anywhere.must("cp", f"{container}:/d", str(there))
        assert sorted(os.listdir(there)) == ["a\nb", "again", "fifo", "link", "old", "sub"]
        assert os.readlink(there / "link") == "../../../etc/passwd"
        assert (there / "again").samefile(there / "sub" / "x")
        assert time.gmtime((there / "old").stat().st_mtime).tm_year == 2001
        (there / "again").unlink()  # podman cannot rename a directory with two names of one file
        anywhere.must("cp", str(there), f"{container}:/copy")
        found = anywhere.must("exec", container, "sh", "-c", "cd /copy; ls -A; cat sub/x; id -u")
        found = found.replace("?", "\n")  # as some versions of busybox show it
        assert found.split() == ["a", "b", "fifo", "link", "old", "sub", "x", "0"]
        owner = anywhere.must("exec", container, "stat", "-c", "%u", "/copy/sub/x").strip()
        assert owner == "0"


@pytest.mark.parametrize("anywhere", OF_USERS, indirect=True)
def test_owners_with_keep_id(anywhere: Podman) -> None:
    """Each file has the same owner for podman, in the container, and when it comes back."""
    path, uid = given(anywhere, "b/file", "given\n"), anywhere.site.user.uid
    script = f"mkdir /tmp/d; echo x >/tmp/d/x; {STAYS}"
    keep_id = ("--userns", "keep-id")
    with cluster.without_oci_conf(), begun(anywhere, *keep_id, script=script) as container:
        stat = ("exec", container, "stat", "-c", "%u:%g")
        for place in ("/tmp/new", "/new"):
            anywhere.must("cp", str(path), f"{container}:{place}")
            assert anywhere.must(*stat, place) == f"{uid}:{uid}\n"
            assert anywhere.copied(container, place) == "given\n"
        anywhere.must("exec", "--user", "0", container, "chown", "-R", "33:44", "/tmp/d")
        there = str(anywhere.site.base / "b" / f"owned-{container[:8]}")
        anywhere.must("cp", f"{container}:/tmp/d", there)
        assert os.stat(f"{there}/x").st_uid == uid


def test_read_only_and_volumes(podman: Podman) -> None:
    path = given(podman, "b/file", "given\n")
    base = podman.site.base / "volume"
    base.mkdir()
    podman.site.user.give(base)
    with begun(podman, "--read-only", "-v", f"{base}:/rw", "-v", f"{base}:/ro:ro") as container:
        assert "read-only" in podman.run("cp", str(path), f"{container}:/file").stderr
        podman.must("cp", str(path), f"{container}:/rw/file")
        assert (base / "file").read_text() == "given\n"
        assert podman.copied(container, "/ro/file") == "given\n"
        assert "read-only" in podman.run("cp", str(path), f"{container}:/ro/more").stderr


@pytest.mark.covers("security files of a running container that an engine sees")
def test_nothing_of_the_host_is_reached(podman: Podman) -> None:
    """Links of the image are followed in the container, by whatever name they are reached."""
    secret = given(podman, "b/secret", "the host's\n")
    up = "../" * 12
    script = (
        f"ln -s {secret} /direct; ln -s {up}{secret} /up; ln -s {secret.parent} /folder; "
        f"ln -s /proc/1/root /magic; ln -s loop /loop; {STAYS}"
    )
    with begun(podman, script=script) as container:
        for name in ("direct", "up", "folder/secret", f"magic{secret}", "loop"):
            done = podman.run("cp", f"{container}:/{name}", "-")
            assert done.returncode == 125, (name, done)
            assert "the host's" not in done.stdout
        path = given(podman, "b/file", "given\n")
        for name in ("direct", "up", "folder/secret"):
            podman.run("cp", str(path), f"{container}:/{name}")
            assert secret.read_text() == "the host's\n"
        assert sorted(mounts(anchor(podman, container))) == ["fuse", "tmpfs"]
        mountinfo = Path(f"/proc/{anchor(podman, container)}/mountinfo").read_text()
        [line] = [line for line in mountinfo.splitlines() if " fuse " in line]
        assert {"nosuid", "nodev"} <= {*line.split()[5].split(",")}


def test_a_large_file_and_one_that_grows(podman: Podman) -> None:
    big = podman.site.base / "b" / "big"
    big.write_bytes(os.urandom(20_000_003))
    podman.site.user.give(big)
    digest = hashlib.sha256(big.read_bytes()).hexdigest()
    script = f"(while :; do echo line; sleep 0.01; done) >/log & {STAYS}"
    with begun(podman, script=script) as container:
        podman.must("cp", str(big), f"{container}:/big")
        assert podman.must("exec", container, "sha256sum", "/big").split()[0] == digest
        podman.must("cp", f"{container}:/big", f"{big}-2")
        assert hashlib.sha256(Path(f"{big}-2").read_bytes()).hexdigest() == digest
        done = podman.run("cp", f"{container}:/log", "-")
        assert (
            done.returncode == 0 or "write too long" in done.stderr
        )  # podman's, with any runtime


def test_a_full_disk(podman: Podman) -> None:
    big = podman.site.base / "b" / "big"
    big.write_bytes(bytes(3 << 20))
    podman.site.user.give(big)
    with begun(podman, "--tmpfs", "/small:size=1m") as container:
        done = podman.run("cp", str(big), f"{container}:/small/big")
        assert done.returncode == 125
        assert "no space left on device" in done.stderr


@pytest.mark.nightly
def test_many_entries(podman: Podman) -> None:
    count = 3000
    script = f"mkdir /many; cd /many; i=0; while [ $i -lt {count} ]; do : >$i; i=$((i+1)); done"
    with begun(podman, script=f"{script}; {STAYS}") as container:
        there = podman.site.base / "b" / "many"
        podman.must("cp", f"{container}:/many", str(there), timeout=110)
        assert len(os.listdir(there)) == count


def job_of(podman: Podman, container: str) -> str:
    log = (podman.site.base / "x" / "scrun" / container / "log").read_text()
    return log.split("Granted job allocation ")[1].split('"')[0].split()[0]


@pytest.mark.by_shim
def test_a_shim_that_is_stopped(podman: Podman) -> None:
    """podman gets an error within seconds, and goes on when the shim does."""
    with begun(podman) as container:
        assert podman.copied(container, "/etc/passwd")
        shim = min(shims_of(job_of(podman, container)))  # the others are its children
        os.kill(shim, signal.SIGSTOP)
        try:
            for most in (8.0, 4.0):  # later ones need not wait at all
                begun_at = time.monotonic()
                done = podman.run("cp", f"{container}:/etc/group", "-")
                assert done.returncode == 125
                assert time.monotonic() - begun_at < most
        finally:
            os.kill(shim, signal.SIGCONT)
        wait_until(
            "it goes on", lambda: not podman.run("cp", f"{container}:/etc/group", "-").returncode
        )


LISTS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from scrun.core import namespaces as ns
ns.enter(os.open(f"/proc/{sys.argv[2]}/ns/mnt", os.O_RDONLY), ns.NEW_MOUNT)
print(sum(1 for _ in os.scandir("/many/many")))
"""


@pytest.mark.timeout(1800)
@pytest.mark.by_shim
@pytest.mark.parametrize("count", [3000, nightly(1_000_000)])
def test_a_directory_with_very_many_entries(podman: Podman, count: int) -> None:
    """Nothing hangs, and nobody has all of them in memory at a time."""
    patience = 60 + count // 500
    made = f"mkdir /many/many; cd /many/many; seq {count} | xargs touch; {STAYS}"
    container = podman.must(
        *RUN, "--detach", "--tmpfs", "/many", "busybox", "sh", "-c", made
    ).strip()
    try:
        wait_until("it is up", lambda: podman.must("logs", container) == "up\n", patience)
        assert podman.copied(container, "/many/many/7") == ""
        supervisor = min(podman.site.supervisors())  # it may have a child just now
        programs = shims_of(job_of(podman, container))
        before = peak(supervisor)
        words = (sys.executable, "-I", "-S", "-c", LISTS, str(CHECKOUT))
        found = podman.must("unshare", *words, str(anchor(podman, container)), timeout=patience)
        assert int(found) == count
        listed = podman.must("exec", container, "ls", "/many/many", timeout=patience)
        assert listed.count("\n") == count
        with podman.popen("cp", f"{container}:/many/many", "-", **NOTHING) as all_of_them:
            time.sleep(5)
            assert podman.copied(container, "/many/many/8") == ""
            all_of_them.kill()
        assert max(map(peak, programs)) < 96 << 10
        scrun = (podman.site.command[0], "--root", f"{podman.site.base}/x/scrun")
        source = f"{container}:/many/many"
        archive = f"{shlex.join((*scrun, 'cp', source, '-'))} | tar -t | wc -l"
        assert int(podman.must("unshare", "sh", "-c", archive, timeout=patience)) == count + 1
        assert peak(supervisor) - before < 16 << 10
    finally:
        remove = partial(podman.run, "rm", "--force", "--time", "1", container, timeout=patience)
        wait_until("it is gone", lambda: remove().returncode == 0, patience)  # with its memory


@pytest.mark.by_shim
@pytest.mark.parametrize("used", [True, False])
def test_another_supervisor_goes_on(podman: Podman, used: bool) -> None:
    with begun(podman) as container:
        pid = anchor(podman, container)
        if used:
            assert podman.copied(container, "/etc/passwd")
        [supervisor] = podman.site.supervisors()
        signal_quietly(supervisor, signal.SIGKILL)
        wait_until("another", lambda: podman.site.supervisors() not in ([], [supervisor]), 30)
        found = partial(podman.run, "cp", f"{container}:/etc/passwd", "-")
        wait_until("it goes on", lambda: found().returncode == 0, 20)
        assert sorted(mounts(pid)) == ["fuse", "tmpfs"]


def test_nothing_runs_until_somebody_asks_and_nothing_is_left(podman: Podman) -> None:
    with begun(podman) as container:
        pid, log = anchor(podman, container), podman.site.base / "x" / "scrun" / container / "log"
        [shim] = shims_of(job_of(podman, container))
        children = Path(f"/proc/{shim}/task/{shim}/children")
        before = len(children.read_text().split())
        assert podman.copied(container, "/etc/passwd")
        # podman may look a user up where it has mounted the root file system, which has its own
        assert len(children.read_text().split()) - before in (1, 2)
        assert "do not see" not in log.read_text()
    assert not os.path.exists(f"/proc/{pid}/ns/mnt")
    [supervisor] = podman.site.supervisors()
    links = [os.readlink(path) for path in Path(f"/proc/{supervisor}/fd").iterdir()]
    assert "/dev/fuse" not in links


def test_without_the_device() -> None:
    """One line says what goes instead."""
    fuse_for_all()
    os.chmod("/dev/fuse", 0o600)
    try:
        with shared_store() as podman, begun(podman) as container:
            assert podman.run("cp", f"{container}:/etc/passwd", "-").returncode == 125
            log = (podman.site.base / "x" / "scrun" / container / "log").read_text()
            assert "/dev/fuse: Permission denied; `scrun cp` does" in log
    finally:
        fuse_for_all()
