"""What podman can do with a container that runs on the cluster, besides running it."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.core.ready import ready
from tests.harness import cluster
from tests.harness.nightly import nightly
from tests.harness.podman import RUN, Podman, rootless_podman
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("promise engines and services")


@pytest.fixture(scope="module")
def _podman() -> Iterator[Podman]:
    with rootless_podman(cgroup2=True) as podman:
        yield podman


@pytest.fixture(scope="module")
def overlay_podman() -> Iterator[Podman]:
    with rootless_podman(cgroup2=True, storage="overlay") as podman:
        yield podman


@pytest.fixture
def running(podman: Podman) -> Iterator[str]:
    """A container that runs until it is told to end, which it does at once."""
    script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.05; done"
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", script).strip()
    wait_until("it is up", lambda: podman.must("logs", container) == "up\n")
    yield container
    podman.must("rm", "--force", "--time", "1", container)


def state_of(podman: Podman, container: str) -> dict[str, object]:
    [inspected] = json.loads(podman.must("inspect", container))
    state: dict[str, object] = inspected["State"]
    return state


# exec


@pytest.mark.covers("podman exec", "limitation exec is not supported")
def test_exec(podman: Podman, running: str) -> None:
    script = "echo out; echo err >&2; exit 7"
    done = podman.run("exec", running, "sh", "-c", script)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


@pytest.mark.covers("podman exec")
def test_exec_joins_the_container(podman: Podman, running: str) -> None:
    podman.must("exec", running, "sh", "-c", "echo changed > /tmp-of-exec")
    assert podman.must("exec", running, "cat", "/tmp-of-exec") == "changed\n"
    commands = podman.must("exec", running, "ps", "-o", "pid,args")
    assert re.search("1 (/bin/)?sh -c trap", commands)  # as the launch calls it


@pytest.mark.nightly
@pytest.mark.covers("podman exec")
def test_exec_with_its_own_surroundings(podman: Podman, running: str) -> None:
    options = ("--env", "A=b c", "--workdir", "/tmp")
    assert podman.must("exec", *options, running, "sh", "-c", "echo $A; pwd") == "b c\n/tmp\n"


@pytest.mark.covers("podman exec")
def test_exec_reads_stdin(podman: Podman, running: str) -> None:
    data = b"some\nlines\n" * 1000
    done = podman.run("exec", "--interactive", running, "cat", data=data)
    assert (done.returncode, done.stdout) == (0, data.decode())


@pytest.mark.nightly
@pytest.mark.covers("podman exec")
def test_exec_of_what_is_not_there(podman: Podman, running: str) -> None:
    done = podman.run("exec", running, "no-such-program")
    assert done.returncode == 127
    assert "not found in $PATH" in done.stderr


@pytest.mark.nightly
@pytest.mark.covers("podman exec")
def test_exec_as_another_user(podman: Podman, running: str) -> None:
    assert podman.must("exec", "--user", "33", running, "id", "-u") == "33\n"
    done = podman.run("exec", "--user", "70000", running, "id")
    assert done.returncode != 0
    assert "uid 70000 does not exist in the container" in done.stderr


@pytest.mark.nightly
@pytest.mark.covers("podman exec")
def test_exec_detached(podman: Podman, running: str) -> None:
    podman.must("exec", "--detach", running, "sh", "-c", "echo done > /detached")
    wait_until("it is done", lambda: podman.run("exec", running, "cat", "/detached").stdout)


@pytest.mark.covers("podman exec")
def test_exec_with_a_terminal(podman: Podman, running: str) -> None:
    terminal, slave = open_terminal()
    # podman tells conmon the size while it starts the program, which may be first
    script = 'tty; until [ "$(stty size)" = "43 143" ]; do sleep 0.1; done; echo go; read line;'
    script += 'echo "got $line"; exit 5'
    process = podman.popen(
        "exec", "--interactive", "--tty", running, "sh", "-c", script,
        stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    terminal.read_until("/dev/pts/", 60)
    terminal.read_until("go", 60)
    terminal.says_got(60)
    assert process.wait(60) == 5
    terminal.close()


# pause, top, logs, attach, wait


@pytest.mark.covers("podman pause, unpause", "limitation pause is not supported")
def test_pause_and_unpause(podman: Podman, running: str) -> None:
    podman.must("pause", running)
    assert state_of(podman, running)["Status"] == "paused"
    podman.must("unpause", running)
    assert state_of(podman, running)["Status"] == "running"
    assert podman.must("exec", running, "echo", "it goes on") == "it goes on\n"


@pytest.mark.covers("podman top")
def test_top_with_options_of_ps(podman: Podman, running: str) -> None:
    """Without options podman finds the anchor (test_files_of_the_host.py)."""
    shown = podman.must("top", running, "-eo", "pid,args")
    if podman.release >= (5, 0):  # it calls the host's ps among what the anchor sees
        assert "whose processes 'exec ID ps' shows" in shown
    else:
        assert "sh -c trap" in shown


@pytest.mark.covers("podman logs", "podman wait")
def test_logs_follow_and_wait(podman: Podman) -> None:
    script = "for n in 1 2 3; do echo line $n; sleep 0.1; done; exit 4"
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", script).strip()
    assert podman.must("logs", "--follow", container) == "line 1\nline 2\nline 3\n"
    assert podman.must("wait", container) == "4\n"
    assert state_of(podman, container)["ExitCode"] == 4
    podman.must("rm", container)


@pytest.mark.covers("podman attach")
def test_attach(podman: Podman) -> None:
    script = 'read line; echo "got $line"; exit 3'
    create = ("create", *RUN[1:], "--interactive", "busybox", "sh", "-c", script)
    container = podman.must(*create).strip()
    podman.must("start", container)
    assert podman.must("attach", container, data=b"something\n").startswith("got something\n")
    assert podman.must("wait", container) == "3\n"
    podman.must("rm", container)


@pytest.mark.covers("podman create, start, restart, init")
def test_create_start_and_restart(podman: Podman) -> None:
    create = ("create", *RUN[1:], "busybox", "sh", "-c", "echo once; exit 2")
    container = podman.must(*create).strip()
    podman.must("start", container)
    assert podman.must("wait", container) == "2\n"
    podman.must("restart", container)
    assert podman.must("wait", container) == "2\n"
    assert podman.must("logs", container) == "once\n" * 2
    podman.must("rm", container)


# options of run


def output(podman: Podman, *words: str) -> str:
    return podman.must(*RUN, "--rm", *words)


@pytest.mark.covers("podman run", "podman volume")
def test_volumes(podman: Podman, tmp_path: Path) -> None:
    base = podman.site.base / "volumes"
    base.mkdir()
    (base / "file").write_text("content\n")
    (base / "directory").mkdir()
    for path in (base, base / "file", base / "directory"):
        podman.site.user.give(path)
    volumes = (
        *("--volume", f"{base}/file:/file"),
        *("--volume", f"{base}/directory:/rw"),
        *("--volume", f"{base}/directory:/ro:ro"),
    )
    script = "cat /file; echo more >>/file; echo new >/rw/made; echo no 2>&1 >/ro/not || echo ro"
    said = output(podman, *volumes, "busybox", "sh", "-c", script)
    assert said.startswith("content\n")
    assert said.endswith("ro\n")
    assert (base / "file").read_text() == "content\nmore\n"
    assert os.listdir(base / "directory") == ["made"]
    assert (base / "directory" / "made").stat().st_uid == podman.site.user.uid


@pytest.mark.covers("podman run")
@pytest.mark.parametrize(
    ("options", "script", "expected"),
    [
        (("--init",), "tr '\\0' ' ' </proc/1/cmdline | cut -c 1-16", "/run/podman-init\n"),
        nightly(("--tmpfs", "/scratch"), "echo x >/scratch/y && cat /scratch/y", "x\n"),
        (("--read-only",), "echo x 2>/dev/null >/y || echo refused", "refused\n"),
        (("--user", "33"), "id -u", "33\n"),
        nightly(("--workdir", "/tmp"), "pwd", "/tmp\n"),
        nightly(("--hostname", "here"), "hostname", "here\n"),
        (("--ulimit", "nofile=500:600"), "ulimit -n; ulimit -Hn", "500\n600\n"),
        (
            ("--ulimit", "core=-1:-1", "--oom-score-adj", "500"),
            "ulimit -c | tr -d 0-9; cat /proc/self/oom_score_adj",
            "unlimited\n500\n",
        ),
        (("--cap-drop", "all"), "grep CapEff /proc/self/status | cut -f 2", "0" * 16 + "\n"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_option(podman: Podman, options: tuple[str, ...], script: str, expected: str) -> None:
    assert output(podman, *options, "busybox", "sh", "-c", script) == expected


@pytest.mark.covers("podman exec")
def test_exec_has_the_limits_that_were_asked_for(podman: Podman) -> None:
    limited = ("--ulimit", "nofile=500:600", "--detach", "--name", "limited")
    podman.must("run", "--network", "host", *limited, "busybox", "sleep", "60")
    try:
        assert podman.must("exec", "limited", "sh", "-c", "ulimit -n; ulimit -Hn") == "500\n600\n"
    finally:
        podman.must("rm", "--force", "--time", "0", "limited")


@pytest.mark.covers("podman run")
@pytest.mark.parametrize("writable", ["", ",rw=true"], ids=["read-only", "writable"])
def test_an_image_as_a_volume(overlay_podman: Podman, writable: str) -> None:
    """podman mounts it in its own mount namespace, in which no node is."""
    option = f"type=image,source=busybox,destination=/image{writable}"
    script = "ls /image/bin/busybox; touch /image/new && ls /image/new"
    done = overlay_podman.run(
        *RUN, "--rm", "--mount", option, "busybox", "sh", "-c", f"{script} 2>/dev/null"
    )
    expected = ["/image/bin/busybox", *["/image/new"] * bool(writable)]
    assert (done.stdout.split(), done.returncode) == (expected, int(not writable)), done.stderr


@pytest.mark.covers("podman run")
def test_a_volume_whose_changes_are_thrown_away(overlay_podman: Podman) -> None:
    base = overlay_podman.site.base / "thrown"
    base.mkdir()
    (base / "file").write_text("kept\n")
    overlay_podman.site.user.give(base)
    script = "cat /v/file; echo other >/v/file; cat /v/file"
    said = output(overlay_podman, "--volume", f"{base}:/v:O", "busybox", "sh", "-c", script)
    assert said == "kept\nother\n"
    assert (base / "file").read_text() == "kept\n"


@pytest.mark.nightly
def test_entrypoint(podman: Podman) -> None:
    assert output(podman, "--entrypoint", '["echo", "hello"]', "busybox", "you") == "hello you\n"


@pytest.mark.nightly
def test_env_file(podman: Podman) -> None:
    path = podman.site.base / "env"
    path.write_text("A=from a file\nB=x\n")
    podman.site.user.give(path)
    said = output(podman, "--env-file", str(path), "busybox", "sh", "-c", "echo $A $B")
    assert said == "from a file x\n"


@pytest.mark.covers("podman healthcheck")
def test_healthcheck(podman: Podman) -> None:
    check = ("--health-cmd", "test -e /healthy", "--health-retries", "1")
    script = "trap 'exit 0' TERM; touch /healthy; echo up; while :; do sleep 0.05; done"
    words = (*RUN, "--detach", *check, "busybox", "sh", "-c", script)
    container = podman.must(*words).strip()
    wait_until("it is up", lambda: podman.must("logs", container) == "up\n")
    assert podman.run("healthcheck", "run", container).returncode == 0
    podman.must("exec", container, "rm", "/healthy")
    assert podman.run("healthcheck", "run", container).returncode == 1
    podman.must("rm", "--force", "--time", "1", container)


@pytest.mark.covers("podman cp, mount, unmount")
def test_cp_of_one_that_has_ended(podman: Podman) -> None:
    path = podman.site.base / "b" / "copied"
    container = podman.must(*RUN, "--detach", "busybox", "sh", "-c", "echo made >/made").strip()
    podman.must("wait", container)
    podman.must("cp", f"{container}:/made", str(path))
    assert path.read_text() == "made\n"
    podman.must("rm", container)


def test_supervised_by_its_pid_file(podman: Podman) -> None:
    """As the units of `podman generate systemd` do it: --conmon-pidfile, --cidfile."""
    pid_file, id_file = podman.site.base / "b" / "pid", podman.site.base / "b" / "cid"
    words = ("--detach", "--conmon-pidfile", str(pid_file), "--cidfile", str(id_file))
    podman.must(*RUN, *words, "busybox", "sleep", "600")
    conmon = os.pidfd_open(int(pid_file.read_text()))
    try:
        podman.must("stop", "--time", "0", "--cidfile", str(id_file))
        wait_until("conmon's end", lambda: _ended(conmon))
    finally:
        os.close(conmon)
        podman.must("rm", "--force", "--cidfile", str(id_file))


def _ended(pidfd: int) -> bool:
    return bool(ready([pidfd], seconds=0)[0])


# what cannot be


@pytest.mark.covers("podman artifact, farm")
@pytest.mark.parametrize("command", [("artifact", "ls"), ("farm", "list")])
def test_what_podman_5_has_and_no_runtime_sees(podman: Podman, command: tuple[str, ...]) -> None:
    done = podman.run(*command)
    assert (done.returncode == 0) is (podman.release >= (5, 4)), done.stderr


@pytest.mark.covers("podman container checkpoint, container restore")
def test_checkpoint_is_refused(podman: Podman, running: str) -> None:
    done = podman.run("container", "checkpoint", running)
    assert done.returncode != 0
    assert "checkpoint" in done.stderr


@pytest.mark.nightly
@pytest.mark.covers("podman update")
def test_update_is_refused(podman: Podman, running: str) -> None:
    done = podman.run("update", "--memory", "1g", running)
    assert done.returncode != 0
    assert "Slurm can only lower the time limit of the running job" in done.stderr


# what is podman's own


@pytest.mark.covers("podman create, start, restart, init")
def test_init_is_the_first_half_of_start(podman: Podman) -> None:
    container = podman.must("create", *RUN[1:], "busybox", "echo", "now").strip()
    podman.must("init", container)
    assert state_of(podman, container)["Status"] in ("created", "initialized")
    [job] = cluster.jobs(podman.site.user)
    assert "RUNNING" in job
    podman.must("start", "--attach", container)
    assert podman.must("logs", container) == "now\n"
    podman.must("rm", container)


def test_a_conmon_that_dies_before_the_start_leaves_no_job(podman: Podman) -> None:
    """podman never starts such a container, and does not delete it either."""
    pid_file = podman.site.base / "b" / "pid"
    words = ("--conmon-pidfile", str(pid_file))
    container = podman.must("create", *RUN[1:], *words, "busybox", "echo", "now").strip()
    podman.must("init", container)
    assert cluster.jobs(podman.site.user)
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    wait_while("its job", lambda: cluster.jobs(podman.site.user))
    podman.must("rm", "--force", container)


@pytest.mark.nightly
@pytest.mark.covers("podman ps, inspect, container, port, rename, events, diff")
def test_questions_that_podman_answers_itself(podman: Podman, running: str) -> None:
    podman.must("exec", running, "sh", "-c", "echo made >/made")
    podman.must("rename", running, "another")
    assert podman.must("ps", "--format", "{{.Names}}") == "another\n"
    assert podman.must("container", "exists", "another") == ""
    assert podman.must("port", "another") == ""
    assert "A /made" in podman.must("diff", "another")
    assert "rename" in podman.must("events", "--stream=false", "--filter", "container=another")
    assert "sh -c trap" not in podman.must("top", "another", "pid")  # of this host


@pytest.mark.nightly
@pytest.mark.covers("podman cp, mount, unmount")
def test_mount_and_unmount(podman: Podman, running: str) -> None:
    podman.must("exec", running, "sh", "-c", "echo made >/made")
    command = " ".join(podman.command)
    script = f"place=$({command} mount {running}); cat $place/made; {command} unmount {running}"
    assert podman.must("unshare", "sh", "-c", script).startswith("made\n")


@pytest.mark.nightly
@pytest.mark.covers("podman generate")
def test_generate(podman: Podman, running: str) -> None:
    assert "NotifyAccess=all" in podman.must("generate", "systemd", "--new", running)
    assert "PIDFile=" in podman.must("generate", "systemd", running)
    assert "hostNetwork: true" in podman.must("generate", "kube", running)
    assert "busybox" in podman.must("generate", "spec", running)


@pytest.mark.covers("podman info, version")
def test_info_and_version(podman: Podman) -> None:
    runtime = json.loads(podman.must("info", "--format", "json"))["host"]["ociRuntime"]
    assert runtime["version"].startswith("scrun version ")
    assert podman.must("version", "--format", "{{.Client.Version}}")


@pytest.mark.nightly
@pytest.mark.covers("podman auto-update")
def test_auto_update(podman: Podman) -> None:
    """It restarts units of systemd, and there are none."""
    done = podman.run("auto-update", "--dry-run")
    assert done.returncode == 0 or "systemd" in done.stderr or "dbus" in done.stderr


@pytest.mark.nightly
@pytest.mark.covers("podman network", "podman volume")
def test_volumes_and_networks_of_podman(podman: Podman) -> None:
    podman.must("volume", "create", "data")
    output(podman, "--volume", "data:/data", "busybox", "sh", "-c", "echo kept >/data/file")
    assert output(podman, "--volume", "data:/data", "busybox", "cat", "/data/file") == "kept\n"
    assert podman.must("volume", "ls", "--quiet") == "data\n"
    podman.must("volume", "rm", "data")
    assert "podman" in podman.must("network", "ls", "--format", "{{.Name}}")


@pytest.mark.covers("podman commands that need no runtime")
def test_images_and_the_like(podman: Podman) -> None:
    """What does not involve the runtime, as far as it needs no registry."""
    archive = podman.site.base / "b" / "saved.tar"
    podman.must("import", str(podman.site.base / "image.tar"), "another")
    podman.must("tag", "another", "third")
    assert "third" in podman.must("images")
    assert podman.must("image", "exists", "third") == ""
    assert podman.must("history", "--quiet", "another").strip()
    podman.must("save", "--output", str(archive), "another")
    podman.must("untag", "another", "localhost/third:latest")
    podman.must("rmi", "localhost/another:latest")
    podman.must("load", "--input", str(archive))
    podman.must("rmi", "localhost/another:latest")
    podman.must("manifest", "create", "list")
    podman.must("manifest", "rm", "list")
    podman.must("secret", "create", "word", "-", data=b"secret")
    assert output(podman, "--secret", "word", "busybox", "cat", "/run/secrets/word") == "secret"
    podman.must("secret", "rm", "word")
    assert "Images" in podman.must("system", "df")
    assert "podman" in podman.must("help")
    assert podman.run("machine", "list").returncode == 0
    for refused in (
        ("login", "127.0.0.1:1"),
        ("pull", "127.0.0.1:1/x"),
        ("search", "127.0.0.1:1/x"),
    ):
        assert podman.run(*refused, data=b"\n").returncode != 0
    assert podman.run("push", "busybox", "127.0.0.1:1/x").returncode != 0
    assert podman.run("logout", "127.0.0.1:1").returncode != 0
