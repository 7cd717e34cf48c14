"""Members of a pod are made by one shim, and share the namespaces that podman says."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import cluster, users
from tests.harness.nightly import nightly
from tests.harness.overlays import STAYS
from tests.harness.podman import RUN, Podman, write_kube
from tests.harness.pods import LIMITS, in_member, member
from tests.harness.processes import shims_of, signal_quietly
from tests.harness.site import CGROUP2, Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise pods")


@pytest.fixture(scope="module")
def _podman() -> Iterator[Podman]:
    site = Site("slurm", users.ordinary())
    try:
        with (
            cluster.without_oci_conf(),
            Podman(site, settings='launch = "shim"\n', before=CGROUP2) as podman,
        ):
            yield podman
    finally:
        site.close()


@pytest.fixture
def podman(podman: Podman) -> Iterator[Podman]:
    """The same, and no pod is left after a test."""
    yield podman
    podman.must("pod", "rm", "--all", "--force", "--time", "0")


def pod(podman: Podman, *options: str) -> None:
    podman.must("pod", "create", "--name", "pod", "--hostname", "together", *options)


def namespace(podman: Podman, name: str, kind: str) -> str:
    return in_member(podman, name, f"readlink /proc/self/ns/{kind}")


def steps(podman: Podman) -> list[str]:
    """The user's steps that somebody has asked for."""
    found = cluster.slurm("squeue", "-h", "-s", "-u", podman.site.user.name, "-o", "%i").split()
    return [step for step in found if step.partition(".")[2].isdecimal()]


def the_job(podman: Podman) -> str:
    [job] = cluster.jobs(podman.site.user)
    return job.split()[0]


def state(podman: Podman, name: str) -> tuple[str, int]:
    [inspected] = json.loads(podman.must("inspect", name))
    return inspected["State"]["Status"], inspected["State"]["ExitCode"]


@pytest.mark.covers("podman pod")
def test_one_step_for_all_members(podman: Podman) -> None:
    pod(podman, "--network", "host")
    names = [member(podman, f"m{number}") for number in range(4)]
    assert len(steps(podman)) == 1
    assert len(shims_of(the_job(podman))) == 1
    podman.must("kill", names[1])
    assert podman.must("wait", names[1]) == "137\n"
    podman.must("rm", names[1])
    podman.must("restart", "--time", "5", names[2])
    member(podman, names[1])
    assert all(in_member(podman, name, "echo here") == "here" for name in names)
    assert len(steps(podman)) == 1
    podman.must("pod", "rm", "--force", "--time", "0", "pod")
    wait_while("the job", lambda: cluster.jobs(podman.site.user))


@pytest.mark.covers("podman pod")
def test_a_member_that_fails_leaves_the_others_alone(podman: Podman) -> None:
    pod(podman, "--network", "host")
    member(podman, "one")
    member(podman, "two", "echo up; kill -SEGV $$; (kill -SEGV $$; sleep 1)", "--init")
    podman.must("wait", "two")
    assert state(podman, "one") == ("running", 0)
    assert in_member(podman, "one", "echo here") == "here"


@pytest.mark.covers("podman pod", "podman logs")
def test_a_shim_that_is_killed_ends_all(podman: Podman) -> None:
    pod(podman, "--network", "host")
    names = [member(podman, name) for name in ("one", "two")]
    [shim] = shims_of(the_job(podman))
    signal_quietly(shim, signal.SIGKILL)
    for name in names:
        status = podman.must("wait", name).strip()
        assert status in ("125", "137")  # what salloc or srun say of it decides
        if status == "125":
            assert "the step of the container's shim ended" in podman.run("logs", name).stderr
    wait_until("the pod's end", lambda: "Exited" in podman.must("pod", "ps"))
    podman.must("pod", "start", "pod")
    assert in_member(podman, "two", "echo here") == "here"
    wait_until("one shim", lambda: len(shims_of(the_job(podman))) == 1)


@pytest.mark.covers("podman pod")
def test_ipc_uts_and_network(podman: Podman) -> None:
    pod(podman, "--network", "none")
    member(
        podman, "one", f"mkdir /www; echo page >/www/page; httpd -h /www -p 127.0.0.1:80; {STAYS}"
    )
    member(podman, "two")
    for kind in ("ipc", "uts", "net", "user"):
        assert namespace(podman, "one", kind) == namespace(podman, "two", kind), kind
    for kind in ("pid", "mnt"):
        assert namespace(podman, "one", kind) != namespace(podman, "two", kind), kind
    assert in_member(podman, "one", "touch /dev/mqueue/ours; hostname") == "together"
    assert in_member(podman, "two", "ls /dev/mqueue; hostname") == "ours\ntogether"
    assert in_member(podman, "two", "wget -q -O - http://127.0.0.1/page") == "page"
    assert in_member(podman, "two", "ls /sys/class/net") == "lo"
    podman.must("restart", "--time", "0", "two")
    assert in_member(podman, "two", "ls /dev/mqueue; hostname") == "ours\ntogether"
    assert in_member(podman, "two", "wget -q -O - http://127.0.0.1/page") == "page"


@pytest.mark.covers("podman pod")
def test_processes(podman: Podman) -> None:
    pod(podman, "--network", "host", "--share", "pid,ipc,net")
    member(podman, "one", "sleep 1234 & while :; do echo tick; sleep 0.05; done")
    member(podman, "two")
    assert "sleep 1234" in in_member(podman, "two", "ps")
    assert namespace(podman, "one", "pid") == namespace(podman, "two", "pid")
    assert namespace(podman, "one", "uts") != namespace(podman, "two", "uts")
    podman.must("pause", "two")
    before = podman.must("logs", "one")
    wait_until("the other goes on", lambda: podman.must("logs", "one") != before)
    podman.must("unpause", "two")
    podman.must("rm", "--force", "--time", "0", "two")
    assert "sleep 1234" in in_member(podman, "one", "ps")


def needs_crun(podman: Podman, name: str, *options: str) -> bool:
    """Begin a container that has no user 0; False where runc makes it, which refuses that."""
    run = ("run", *LIMITS, "--pod", "pod", "--detach", "--name", name, *options)
    done = podman.run(*run, "busybox", "sh", "-c", STAYS)
    if done.returncode:
        assert "runc create failed" in done.stderr
        assert "runc cannot create a container without a user 0; install crun" in done.stderr
        return False
    wait_until(f"{name} says something", lambda: podman.must("logs", name))
    return True


@pytest.mark.covers("podman pod")
@pytest.mark.parametrize("id_map", ["auto", nightly("single")])
def test_a_member_that_is_another_user(podman: Podman, id_map: str) -> None:
    """With one id on the node, the namespaces belong to a user namespace that lacks this user."""
    settings = Path(podman.site.user.home) / ".config" / "scrun" / "scrun.toml"
    before = settings.read_text()
    settings.write_text(f'{before}[staging]\nid_map = "{id_map}"\n')
    try:
        pod(podman, "--network", "none")
        member(podman, "one")
        if id_map == "single":
            if not needs_crun(podman, "two", "--user", "1000:1000"):
                return
        else:
            member(podman, "two", STAYS, "--user", "1000:1000")
    finally:
        settings.write_text(before)
    ipc = [namespace(podman, name, "ipc") for name in ("one", "two")]
    identity = podman.must("inspect", "--format", "{{.ID}}", "two").strip()
    log = (podman.site.base / "x" / "scrun" / identity / "log").read_text()
    assert (ipc[0] == ipc[1]) is (id_map == "auto")
    assert ("that container has other users" in log) is (id_map == "single")


@pytest.mark.covers("podman pod")
@pytest.mark.parametrize("mode", [nightly(0o700), 0o711], ids=["as it is", "entered by all"])
def test_keep_id(podman: Podman, mode: int) -> None:
    """The root file systems belong to a subordinate id, and before 5.0 so does their directory."""
    pod(podman, "--network", "none", "--userns", "keep-id")
    (podman.site.base / "s" / "vfs" / "dir").chmod(mode)
    if not needs_crun(podman, "one"):
        return
    member(podman, "two")
    assert in_member(podman, "one", "id -u") == in_member(podman, "two", "id -u")
    assert namespace(podman, "one", "ipc") == namespace(podman, "two", "ipc")


@pytest.mark.parametrize("kind", ["ipc", nightly("pid")])
def test_of_a_container(podman: Podman, kind: str) -> None:
    sharing = ("--ipc", "shareable", "--name", "one", "--hostname", "alone")
    podman.must(*RUN, "--detach", *sharing, "busybox", "sh", "-c", STAYS)
    look = f"readlink /proc/self/ns/{kind}"
    other = podman.must(*RUN, f"--{kind}", "container:one", "--rm", "busybox", "sh", "-c", look)
    assert other.strip() == namespace(podman, "one", kind)
    podman.must("rm", "--force", "--time", "0", "one")


@pytest.mark.nightly
@pytest.mark.covers("podman kube, play")
def test_kube_play(podman: Podman) -> None:
    path = write_kube(podman, STAYS, share_processes=True)
    podman.must("kube", "play", path)
    assert namespace(podman, "web-one", "pid") == namespace(podman, "web-two", "pid")
    assert namespace(podman, "web-one", "ipc") == namespace(podman, "web-two", "ipc")
    assert len(steps(podman)) == 1
    podman.must("kube", "down", path)
