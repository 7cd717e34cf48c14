"""Users and groups in the containers of an ordinary user: all that subuid(5) lends, or one."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.debian import debian_image, repository
from tests.harness.nightly import nightly
from tests.harness.podman import RUN, Podman, rootless_podman
from tests.harness.wait import wait_until, wait_while

CHANGE = (
    "echo nobody:x:65534:65534::/:/bin/sh >>/etc/passwd; su nobody -c 'id -u'; "
    "touch /made; chown 33:44 /made; stat -c '%u %g' /made"
)
CHANGED = ["65534", "33 44"]
BUILD = ("--isolation", "oci", "--network", "host", "--ulimit", "nofile=1024:1024")
PORT = 18087


@pytest.fixture(scope="module", params=[nightly("vfs"), "overlay"])
def rootless(request: pytest.FixtureRequest) -> Iterator[Podman]:
    with rootless_podman(storage=request.param) as podman:
        yield podman


def test_a_container_has_the_users_of_its_image(rootless: Podman) -> None:
    said = rootless.must(*RUN, "--rm", "busybox", "sh", "-c", CHANGE).splitlines()
    assert said == CHANGED


def test_a_container_of_another_user(rootless: Podman) -> None:
    options = ("--rm", "--user", "33:44", "--group-add", "55")
    said = rootless.must(*RUN, *options, "busybox", "id").split()
    assert said[0] in ("uid=33(33)", "uid=33(www-data)")  # podman 5 takes the host's name
    assert said[1] == "gid=44(44)"
    assert "55" in said[2]


def test_owners_are_kept(rootless: Podman) -> None:
    rootless.must(*RUN, "--name", "one", "busybox", "sh", "-c", CHANGE)
    rootless.must("commit", "--quiet", "one", "changed")
    rootless.must("rm", "one")
    said = rootless.must(*RUN, "--rm", "changed", "stat", "-c", "%u %g", "/made")
    assert said == "33 44\n"
    rootless.must("rmi", "changed")


def test_a_named_volume_of_another_user(rootless: Podman) -> None:
    volume = ("--volume", "kept:/data")
    rootless.must(*RUN, "--rm", *volume, "busybox", "chown", "33:33", "/data")
    rootless.must(*RUN, "--rm", *volume, "--user", "33:33", "busybox", "touch", "/data/x")
    said = rootless.must(*RUN, "--rm", *volume, "busybox", "stat", "-c", "%u", "/data/x")
    assert said == "33\n"
    rootless.must("volume", "rm", "kept")


def test_all_ids_of_the_map(rootless: Podman) -> None:
    outside = rootless.must("unshare", "cat", "/proc/self/uid_map").split()
    inside = rootless.must(*RUN, "--rm", "busybox", "cat", "/proc/self/uid_map").split()
    assert inside == outside


@pytest.fixture(scope="module", params=[nightly("vfs"), "overlay"])
def by_shim(request: pytest.FixtureRequest) -> Iterator[Podman]:
    with cluster.without_oci_conf(), rootless_podman(storage=request.param) as podman:
        yield podman


def test_keep_id(by_shim: Podman) -> None:
    """The user is the same as outside, and root is another one: as without Slurm."""
    uid, gid = by_shim.site.user.uid, by_shim.site.user.gid
    keep = (*RUN, "--userns", "keep-id")
    root = (*keep, "--name", "one", "--user", "0:0", "busybox", "sh", "-c", CHANGE)
    assert by_shim.must(*root).splitlines() == CHANGED
    assert by_shim.must("diff", "one").split("\n").count("A /made") == 1
    by_shim.must("commit", "--quiet", "one", "changed")
    by_shim.must("rm", "one")
    mine = str(by_shim.site.base / "b")
    script = "id -u; id -g; stat -c %u:%g /made /b; touch /b/mine; cat /proc/self/uid_map | wc -l"
    options = (*keep, "--rm", "--volume", f"{mine}:/b", "--user", f"{uid}:{gid}")
    said = by_shim.must(*options, "changed", "sh", "-c", script)
    assert said.split() == [str(uid), str(gid), "33:44", f"{uid}:{gid}", "3"]
    assert os.stat(f"{mine}/mine").st_uid == uid
    by_shim.must("rmi", "changed")


@pytest.mark.parametrize(
    "options",
    [
        ("--userns", "keep-id:uid=200,gid=210", "--user", "0:0"),
        ("--uidmap", "0:1:50", "--uidmap", "50:0:1", "--uidmap", "51:51:20"),
    ],
    ids=["another id", "by hand"],
)
def test_other_maps(by_shim: Podman, options: tuple[str, ...]) -> None:
    """They are those that the engine makes without Slurm, and files have these owners."""
    show = "cat /proc/self/uid_map; touch /made; chown 33:44 /made; stat -c %u:%g /made /etc"
    words = (*RUN, "--rm", *options, "busybox", "sh", "-c", show)
    assert by_shim.must(*words) == by_shim.must("--runtime", "runc", *words)


def test_programs_beside_keep_id(by_shim: Podman) -> None:
    uid = by_shim.site.user.uid
    keep = ("--userns", "keep-id", "--detach", "--name", "one")
    by_shim.must(*RUN, *keep, "busybox", "sh", "-c", "trap exit TERM; sleep 600 & wait")
    for user, expected in (("", uid), ("0", 0), ("65534", 65534)):
        option = ("--user", user) if user else ()
        assert by_shim.must("exec", *option, "one", "id", "-u") == f"{expected}\n"
    by_shim.must("stop", "--time", "5", "one")
    by_shim.must("rm", "one")


# One user, and why


def test_single_is_what_it_says(make_site: MakeSite) -> None:
    site = make_site("slurm-user", settings='[staging]\nid_map = "single"\n')
    life = site.life("sh", "-c", "wc -l </proc/self/uid_map").created().start()
    assert life.wait() == 0
    assert life.output().split() == ["1"]
    life.delete()


def test_a_bundle_of_ones_own(make_site: MakeSite) -> None:
    """Root of the container is its user; another user has no files there, and is that user."""
    site = make_site("slurm-user")
    for uid, maps in ((0, 2), (1000, 1)):
        config = site.config("sh", "-c", "id -u; wc -l </proc/self/uid_map")
        config["process"]["user"] = {"uid": uid, "gid": uid}
        life = site.life(config=config).created().start()
        assert life.wait() == 0
        assert life.output().split() == [str(uid), str(maps)]
        life.delete()


@pytest.mark.parametrize("killed", [False, True], ids=["delete", "killed supervisor"])
def test_what_belongs_to_lent_ids_is_removed(make_site: MakeSite, killed: bool) -> None:
    """A copied directory, in which the container has given something away."""
    site = make_site("slurm-user")
    copied = Path(f"/run/user/{site.user.uid}") / f"{site.base.name}-copied"
    copied.mkdir()
    site.user.give(copied)
    config = site.config(
        "sh", "-c", "mkdir /in/d && touch /in/d/f && chown -R 5 /in/d && sleep 60"
    )
    for kind in ("bounding", "effective", "permitted"):
        config["process"]["capabilities"][kind] = ["CAP_CHOWN", "CAP_DAC_OVERRIDE"]
    mount = {"destination": "/in", "type": "bind", "source": str(copied), "options": ["bind"]}
    config["mounts"].append(mount)
    try:
        life = site.life(config=config).created().start()
        given = "~volumes-*/*/data/d/f"
        owner = "it is given away"
        wait_until(owner, lambda: any(f.stat().st_uid > 65536 for f in site.root.glob(given)))
        if killed:
            for pid in site.supervisors():
                os.kill(pid, signal.SIGKILL)
        life.must("delete", "--force")
        wait_while("the record", (site.root / life.id).exists)
        assert [*site.root.glob("~*")] == []
        assert (copied / "d" / "f").stat().st_uid > 65536  # it has come back as it went
    finally:
        shutil.rmtree(copied)


LENT_HERE = """
for kind in uid gid; do
  echo "$0:3000000:65536" >"$1/sub$kind" && mount --bind "$1/sub$kind" /etc/sub$kind || exit
done
shift
exec "$@"
"""


def test_nodes_that_lend_nothing(make_site: MakeSite) -> None:
    """A login node's subuid(5) has more than the nodes': one user, and one line that says so."""
    site = make_site("slurm-user")
    log = site.base / "l" / "log"
    before = ("unshare", "--mount", "sh", "-c", LENT_HERE, site.user.name, str(site.base / "l"))
    with Podman(site, f'[log]\nfile = "{log}"\n', before) as podman:
        count = (*RUN, "--rm", "busybox", "sh", "-c", "wc -l </proc/self/uid_map")
        assert podman.must(*count) == "1\n"
        assert podman.must(*count) == "1\n"  # by what is remembered
    lines = [line for line in log.read_text().splitlines() if "one user" in line]
    assert len(lines) == 2
    assert "the container has one user: node1: newuidmap: uid range [1-65537)" in lines[0]


def test_it_is_asked_for_in_any_case(make_site: MakeSite) -> None:
    """No `subuid` for root of a user namespace without any: the reason is in one line."""
    site = make_site("slurm-user", settings='[staging]\nid_map = "full"\n')
    config = site.config("true")
    bundle = site.bundle(config)
    command = ["unshare", "--user", "--map-root-user", "--", *site.command]
    site.command = command
    said = site.fails("create", "--bundle", str(bundle), "c1", timeout=60)
    assert "you have no subordinate ids" in said


# The world of users


@pytest.fixture(scope="module")
def debian() -> Iterator[Podman]:
    with rootless_podman() as podman:
        archive = podman.site.base / "debian.tar"
        archive.symlink_to(debian_image())
        podman.must("import", str(archive), "debian")
        yield podman


@pytest.mark.covers("podman build")
@pytest.mark.timeout(900)
def test_apt(debian: Podman) -> None:
    """A build step that downloads as one user, and makes another one with files of its own."""
    base = debian.site.base / "b" / "apt"
    base.mkdir()
    with repository(base) as address:
        (base / "Containerfile").write_text(
            f"FROM debian\nRUN echo 'deb [trusted=yes] {address} ./' >/etc/apt/sources.list"
            " && apt-get update && apt-get install --yes keeper\n"
        )
        debian.site.user.give(base)
        debian.must("build", *BUILD, "--tag", "kept", str(base), timeout=600)
    said = debian.must(*RUN, "--rm", "kept", "stat", "-c", "%U:%G %a", "/var/lib/keeper")
    assert said == "keeper:keeper 750\n"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_nginx(debian: Podman) -> None:
    script = (
        f"sed -i '/::/d; s/listen 80 default_server/listen 127.0.0.1:{PORT}/' "
        "/etc/nginx/sites-enabled/default; exec nginx -g 'daemon off;'"
    )
    debian.must(*RUN, "--detach", "--name", "web", "debian", "sh", "-c", script)
    ask = f"exec 3<>/dev/tcp/127.0.0.1/{PORT}; echo 'GET / HTTP/1.0\n' >&3; head -1 <&3"

    def answer() -> str:
        return debian.run("exec", "web", "bash", "-c", ask).stdout

    assert "200 OK" in wait_until("an answer", answer, 60)
    who = debian.must("exec", "web", "sh", "-c", "stat -c %U /proc/[0-9]*")
    assert {"root", "www-data"} <= set(who.split())
    debian.must("rm", "--force", "--time", "5", "web")


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_postgres(debian: Podman) -> None:
    start = "pg_ctlcluster $(ls /etc/postgresql) main start --foreground"
    debian.must(*RUN, "--detach", "--name", "db", "debian", "sh", "-c", f"exec {start}")
    ask = ("exec", "--user", "postgres", "db", "psql", "-tAc", "select 6 * 7")
    assert wait_until("an answer", lambda: debian.run(*ask).stdout, 60).strip() == "42"
    debian.must("rm", "--force", "--time", "5", "db")
