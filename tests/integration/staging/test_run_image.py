"""scrun run IMAGE: an image from anywhere, a container of it, and what is kept of that."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness import cluster
from tests.harness.image import image_archive
from tests.harness.nightly import nightly
from tests.harness.oci import Layout
from tests.harness.program import run_program
from tests.harness.registry import SAID, SAYS, SET, Registry, as_user, box, images, run, skopeo
from tests.harness.terminal import open_terminal
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("scrun run: of an image")

TWO = pytest.mark.parametrize("registry", ["local-user", "slurm-user"], indirect=True)
HERE = pytest.mark.parametrize("registry", ["local-user"], indirect=True)
SLURM = pytest.mark.parametrize("registry", ["slurm-user"], indirect=True)


def test_a_second_run_asks_nobody(registry: Registry) -> None:
    assert run(registry, box(registry)) == SAID
    [key] = images(registry)
    made = os.stat(registry.store / key / "rootfs").st_ctime_ns
    by_digest = f"docker://{registry.name}/box@{registry.digest('box:1')}"
    assert run(registry, by_digest, "echo", "mine", says="nothing") == "mine\n"
    registry.stop()
    try:
        assert run(registry, box(registry), says="nothing") == SAID
        assert run(registry, by_digest, "echo", "mine", says="nothing") == "mine\n"
    finally:
        registry.start()
    assert images(registry) == [key]
    assert os.stat(registry.store / key / "rootfs").st_ctime_ns == made
    assert os.listdir(registry.store / "tmp") == []


def test_a_limit_that_no_configuration_fits_into(registry: Registry) -> None:
    run(registry, box(registry))
    site = registry.site
    words = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *site.command, "run", box(registry)]
    done = run_program([*site.user.prefix, *words], env=site.environment, cwd=site.base)
    assert done.returncode == 1
    assert done.stderr.endswith("its files may not be larger (ulimit -f)\n"), done.stderr


def test_what_is_written_is_gone(registry: Registry) -> None:
    script = "rm /bin/tac; echo no >/etc/passwd; touch /new; mkdir /usr; exit 3"
    done = registry.site.run("run", "--user", "0", box(registry), "sh", "-c", script)
    assert done.returncode == 3, done.stderr
    there = "ls /bin/tac; cat /etc/passwd; test -e /new && echo new"
    said = run(registry, box(registry), "sh", "-c", f"{there}; :", says="nothing")
    assert "/bin/tac" in said
    assert "no\n" not in said
    assert "new" not in said


@SLURM
def test_on_two_nodes(registry: Registry) -> None:
    """Where tasks have mounts of their own, nothing is copied."""
    words = ("-N", "2", "--detach", "--name", "two", box(registry), "sh", "-c")
    run(registry, *words, "echo x >/etc/of-$SLURM_PROCID; ls /etc/of-*; sleep 600")
    wait_until("both are up", lambda: registry.site.must("logs", "two").count("of-") >= 2)
    state = json.loads(registry.site.must("state", "two"))["annotations"]
    by_shim = state["org.scrun.launch"] == "shim"
    assert state["org.scrun.image"] == ("layers" if by_shim else "copy")
    image = f"{box(registry)}@{registry.digest('box:1')}"
    said = cluster.slurm("squeue", "-h", "-j", state["org.scrun.job_id"], "-o", "%k")
    assert said.split()[1:] == [f"image={image}", "name=two"]
    if by_shim:
        lines = sorted(registry.site.must("logs", "two").split())
        assert lines == ["/etc/of-0", "/etc/of-1"]
    registry.site.must("delete", "--force", "two")


@SLURM
def test_what_has_a_name_is_kept(registry: Registry) -> None:
    words = ("--writable", "--name", "work")
    run(registry, *words, box(registry), "sh", "-c", "echo kept >/tmp/a; rm /bin/tac")
    assert run(registry, "name:work", "sh", "-c", "cat /tmp/a; echo more >>/tmp/a") == "kept\n"
    script = "cat /tmp/a; ls /bin/tac"
    done = registry.site.run("run", *words, "docker://nowhere.invalid/x", "sh", "-c", script)
    assert done.stdout == "kept\nmore\n"
    assert done.returncode == 1
    assert "name:other: there is no root file system" in registry.site.fails("run", "name:other")


@SLURM
def test_what_is_saved_is_an_image(registry: Registry) -> None:
    file = registry.site.base / "b" / "saved.sqsh"
    run(registry, f"--save={file}", box(registry), "sh", "-c", "echo saved >/tmp/a")
    assert run(registry, str(file)) == SAID
    assert run(registry, "--no-entrypoint", str(file), "cat", "/tmp/a") == "saved\n"
    assert os.listdir(registry.store / "names" / "leases") == []
    assert sorted(os.listdir(registry.store / "names")) == ["leases", "locks", "tags", "tmp"]


def test_a_directory_is_not_changed(registry: Registry) -> None:
    site = registry.site
    before = sorted(path.name for path in site.rootfs.rglob("*"))
    assert run(registry, str(site.rootfs), "sh", "-c", "touch /x /bin/x /tmp/x; echo up") == "up\n"
    assert sorted(path.name for path in site.rootfs.rglob("*")) == before


@HERE
@pytest.mark.parametrize("kind", ["oci", nightly("oci-archive"), "docker-archive", "sqfs"])
def test_transports(registry: Registry, kind: str) -> None:
    """Files and directories: a second run unpacks nothing, a changed file is another image."""
    site = registry.site
    path = site.base / "b" / kind
    if kind == "oci":
        shutil.copytree(registry.layout, path)
        site.user.give(path)
        name = f"oci:{path}:box-1"
    elif kind == "oci-archive":
        skopeo(site, "copy", f"oci:{registry.layout}:box-1", f"oci-archive:{path}:latest")
        name = f"oci-archive:{path}:latest"
    elif kind == "docker-archive":
        image_archive(site).rename(path)
        name = f"docker-archive:{path}"
    else:
        as_user(site, "mksquashfs", str(site.rootfs), f"{path}.sqfs", "-quiet", "-no-progress")
        name = f"{path}.sqfs"
    command = ("echo", "up")
    assert run(registry, name, *command) == "up\n"
    assert run(registry, name, *command, says="nothing") == "up\n"
    assert len(images(registry)) == 1
    if kind == "sqfs":
        os.utime(f"{path}.sqfs", (1, 1))
        assert run(registry, name, *command) == "up\n"
        assert len(images(registry)) == 2


@pytest.mark.parametrize("registry", ["local-root"], indirect=True)
def test_the_storage_of_podman(registry: Registry) -> None:
    where = f"[vfs@{registry.site.base}/b/c+{registry.site.base}/b/cr]box:latest"
    skopeo(registry.site, "copy", f"oci:{registry.layout}:box-1", f"containers-storage:{where}")
    assert run(registry, f"containers-storage:{where}") == SAID


@SLURM
def test_options_for_the_program(registry: Registry) -> None:
    show = ("sh", "-c", 'echo $A,$B,$C,$HOME; pwd; id -u; echo "$@"', "sh")
    registry.site.environment["B"] = "mine"
    words = ("--env", "A=b c", "-e", "B", "-e", "NO_SUCH", "-w", "/etc", "-u", "0:0")
    try:
        assert run(registry, *words, box(registry), *show, "a", "--env") == (
            "b c,mine,,/root\n/etc\n0\na --env\n"
        )
    finally:
        del registry.site.environment["B"]


@HERE
def test_entrypoints(registry: Registry) -> None:
    image = registry.push("entry:1", Entrypoint=["echo"], **SAYS)
    assert run(registry, image, "one") == "one\n"
    assert run(registry, "--no-entrypoint", image, "echo", "-n") == ""
    assert run(registry, "--entrypoint", "echo 'a  b'", image) == "a  b\n"
    assert run(registry, "--entrypoint", '["echo", "c"]', image, "d") == "c d\n"


@TWO
@pytest.mark.parametrize("closed", ["0", "1", "2"])
def test_closed_descriptors(registry: Registry, closed: str) -> None:
    """None of the command's own becomes the program's."""
    site = registry.site
    (out := site.base / "b" / "out").mkdir()
    site.user.give(out)
    script = f"readlink /proc/$$/fd/{closed} >/out/said"
    words = ("run", f"--mount={out}:/out", str(site.rootfs), "sh", "-c", script)
    closing = ("sh", "-c", f'exec "$@" {closed}>&-', "sh")
    as_user(site, *closing, *site.command, *words)
    assert "config" not in (out / "said").read_text()


@TWO
def test_where_it_is_called(registry: Registry) -> None:
    """A directory whose name no JSON can hold is nothing to the container; one that is gone is."""
    site = registry.site
    odd = site.base / "b" / "odd\udcff"
    calling = ("sh", "-c", 'mkdir -p "$0" && cd "$0" && exec "$@"', odd)
    words = ("run", str(site.rootfs), "echo", "up")
    assert as_user(site, *calling, *site.command, *words) == "up\n"
    gone = ("sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', odd)
    done = run_program(
        [*site.user.prefix, *gone, *site.command, *words],
        env=site.environment,
        cwd=site.base,
    )
    assert done.stderr == "scrun: the working directory was removed: change to another one\n"


@SLURM
def test_mounts(registry: Registry) -> None:
    site = registry.site
    (place := site.base / "b" / "data").mkdir()
    (place / "file").write_text("content\n")
    site.user.give(place)
    script = "cat /data/deep/file; touch /data/deep/made; touch /ro/x || echo refused"
    words = (f"--mount={place}:/data/deep", "--mount", f"{place}:/ro:ro", "--user=0")
    done = site.run("run", *words, box(registry), "sh", "-c", script)
    assert done.stdout == "content\nrefused\n", done.stderr
    assert (place / "made").exists()
    home = Path(site.environment["HOME"])
    (home / "mine").write_text("of the home\n")
    with cluster.showing_home():
        said = run(registry, "--home", box(registry), "sh", "-c", "cat ~/mine")
    assert said == "of the home\n"
    gone = run(registry, "--no-home", box(registry), "sh", "-c", f"ls {home} 2>&1; :")
    assert "No such file" in gone


@TWO
def test_read_only(registry: Registry) -> None:
    (place := registry.site.base / "b" / "data").mkdir()
    script = "touch /new /etc/new /bin/new; touch /tmp/a /run/b && ls -d /etc/deep/er"
    words = ("--read-only", f"--mount={place}:/etc/deep/er", "--user=0")
    done = registry.site.run("run", *words, box(registry), "sh", "-c", script)
    assert done.stdout == "/etc/deep/er\n"
    assert done.stderr.count("Read-only file system") == 3, done.stderr


@SLURM
def test_requests_for_the_job(registry: Registry) -> None:
    site = registry.site
    words = (
        "-N",
        "1",
        "-n",
        "1",
        "-c",
        "2",
        "-t",
        "7",
        "--mem",
        "50",
        "--detach",
        "--name",
        "one",
    )
    run(registry, *words, box(registry), "sleep", "60")
    said = cluster.slurm(
        "squeue", "--noheader", "--format=%D %C %l %m", f"--name={site.base.name}"
    )
    assert said.split() == ["1", "2", "7:00", "50M"]
    site.must("delete", "--force", "one")
    assert "no-such" in site.fails("run", "-p", "no-such", box(registry))


@HERE
def test_a_tag_is_looked_up_again(registry: Registry) -> None:
    """Within `fresh` seconds it means what it meant; where nobody answers, likewise."""
    site = registry.site
    image = registry.push("moves:1", Cmd=["echo", "old"])
    assert run(registry, image) == "old\n"
    registry.push("moves:1", Cmd=["echo", "new"])
    assert run(registry, image, says="nothing") == "old\n"
    settings = (site.base / "scrun.toml").read_text()
    anew = site.base / "b" / "anew.toml"
    anew.write_text(settings.replace("[images]\n", "[images]\nfresh = 0\n"))
    site.user.give(anew)
    assert run(registry, image, says="nothing") == "old\n"
    done = site.run("run", image, environment={"SCRUN_CONFIG": str(anew)})
    assert done.stdout == "new\n", done.stderr
    registry.stop()
    try:
        done = site.run("run", image, environment={"SCRUN_CONFIG": str(anew)})
    finally:
        registry.start()
    assert done.stdout == "new\n", done.stderr
    assert "skopeo cannot find it" in done.stderr
    assert done.stderr.endswith("; the image of the store is used\n")


@HERE
def test_many_at_once_get_it_once(registry: Registry) -> None:
    before = registry.blobs()
    processes = [registry.site.popen("run", box(registry), "echo", "up") for _ in range(8)]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (0, b"up\n"), err
    assert len(images(registry)) == 1
    assert registry.blobs() - before == 2  # the configuration and the layer


@HERE
@pytest.mark.parametrize("number", [signal.SIGKILL, nightly(signal.SIGTERM), signal.SIGINT])
def test_killed_while_it_unpacks(registry: Registry, number: signal.Signals) -> None:
    """What it has begun is removed, and the program that unpacks ends, however scrun does."""
    site = registry.site
    Layout(registry.layout).recompressed("box-1", "slow", "zstd")
    image = f"oci:{registry.layout}:slow"
    (tools := site.base / "l" / "tools").mkdir(exist_ok=True)
    slow = tools / "zstd"
    slow.write_text("#!/bin/sh\nexec sleep 617\n")
    slow.chmod(0o755)
    environment = {**site.environment, "PATH": f"{tools}:{site.environment['PATH']}"}
    process = site.popen("run", image, stdio=subprocess.DEVNULL, env=environment)
    temporary = registry.store / "tmp"
    wait_until("it unpacks", lambda: _unpacks(registry))
    process.send_signal(number)
    process.wait(20)
    wait_while("zstd is there", lambda: _unpacks(registry))
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert os.listdir(temporary) == []
    slow.unlink()
    assert run(registry, image, says="nothing") == SAID
    assert os.listdir(temporary) == []


def _unpacks(registry: Registry) -> bool:
    return any("617" in child.argv for child in registry.site.processes())


@HERE
def test_one_bar_shows_how_far_it_is(registry: Registry) -> None:
    """From the first byte to the last, and it never goes back."""
    screen, slave = open_terminal()
    process = registry.site.popen("image", "pull", box(registry), stdio=slave)
    os.close(slave)
    try:
        shown = screen.read_all(60)
        assert process.wait(20) == 0
    finally:
        screen.close()
    shares = [int(share) for share in re.findall(r"(\d+)% \[[#.]{20}\] docker://", shown)]
    assert shares == sorted(shares)
    assert shares[-1] == 100
    assert "Copying" not in shown
    assert shown.splitlines()[-1].endswith(images(registry)[0])


@TWO
def test_a_terminal(registry: Registry) -> None:
    screen, slave = open_terminal()
    script = "test -t 0 && echo ready; read a; echo got $a"
    process = registry.site.popen("run", box(registry), "sh", "-c", script, stdio=slave)
    os.close(slave)
    try:
        screen.read_until("ready")
        screen.says_got()
        assert process.wait(20) == 0
    finally:
        screen.close()


@HERE
def test_what_cannot_be_meant(registry: Registry) -> None:
    for line, told in (
        ("docker:busybox", "docker:busybox is not an image name; write docker://busybox"),
        ("./nowhere", "./nowhere: there is no such image: name one as docker://IMAGE, oci:"),
        ("ftp://x/y", "ftp://x/y: there is no such image"),
        ("/etc/passwd", "/etc/passwd: is neither a directory nor a file with a squashfs"),
        ("oci:/nowhere:1", "no such directory"),
        ("oci-archive:/nowhere", "/nowhere: cannot be read: No such file or directory"),
        ("--bundle . /", "run: --bundle does not go with an image"),
        ("--home --no-home /", "run: --home does not go with --no-home"),
        ("--save=x -d /", "run: --save does not go with --detach"),
        ("--replace /", "run: --replace needs --name"),
        ("--mount x /", "/x does not exist"),
        ("--mount /etc:etc /", "--mount /etc:etc: write SRC:DST, where DST is absolute"),
        ("--mount /etc:/x:rot /", "--mount /etc:/x:rot: cannot be 'rot', only ro, rw"),
        ("--workdir x /", "--workdir x: is not absolute"),
        ("--user me /", "--user me: is not a number: write UID or UID:GID"),
        ("--env =x /", "--env =x: has no name"),
        ("--entrypoint ' /", "--entrypoint ': neither words nor JSON"),
        ("--name a/b /", "invalid container id 'a/b'"),
        ("--home busybox", "run: --home is for an image, and busybox is a container's id"),
    ):
        assert told in registry.site.fails("run", *line.split())


@HERE
def test_what_a_registry_does_not_have(registry: Registry) -> None:
    told = registry.site.fails("run", f"docker://{registry.name}/nothing:1")
    assert "nothing:1: skopeo cannot find it: " in told
    assert "manifest unknown" in told or "name unknown" in told
    assert images(registry) == []


def test_a_registry_with_logins(make_site: MakeSite) -> None:
    registry = Registry(make_site("local-user"), "secret")
    registry.start()
    try:
        told = registry.site.fails("run", box(registry))
        assert "box:1: skopeo cannot find it: " in told
        assert "authentication required" in told or "unauthorized" in told
        registry.login("secret")
        registry.push("box:1", **SET)
        assert run(registry, box(registry)) == SAID
    finally:
        registry.close()


@HERE
@pytest.mark.parametrize(
    ("name", "missing", "told"),
    [
        ("docker", "skopeo", "skopeo, which gets images, is not installed: apt install skopeo"),
        ("oci", "zstd", "zstd, which unpacks layers, is not installed: apt install zstd"),
    ],
)
def test_without_programs(registry: Registry, name: str, missing: str, told: str) -> None:
    Layout(registry.layout).recompressed("box-1", "small", "zstd")
    image = box(registry) if name == "docker" else f"oci:{registry.layout}:small"
    site = registry.site
    (tools := site.base / "l" / "few").mkdir(exist_ok=True)
    if not (tools / "setpriv").exists():
        (tools / "setpriv").symlink_to("/usr/bin/setpriv")
    words = [*site.user.prefix, "/usr/bin/env", f"PATH={tools}", *site.command, "run", image]
    done = run_program(words, env=site.environment, cwd=site.base)
    assert done.returncode == 1
    assert done.stderr.endswith(f": {told}\n")


@HERE
def test_an_id_that_is_taken(registry: Registry) -> None:
    run(registry, "--detach", "--name", "one", box(registry), "sleep", "60")
    told = registry.site.fails("run", "--name", "one", box(registry))
    assert "container with id one already exists" in told
    registry.site.must("delete", "--force", "one")


@HERE
def test_an_id_that_is_taken_is_replaced(registry: Registry) -> None:
    """What the old container used may be removed then."""
    words, sleep = ("--detach", "--replace", "--name", "one"), ("sleep", "60")
    run(registry, *words, box(registry), *sleep)
    [old] = images(registry)
    run(registry, *words, registry.push("next:1", Env=["A=of the next"]), *sleep)
    [new] = {*images(registry)} - {old}
    assert registry.site.must("exec", "one", "sh", "-c", "echo $A") == "of the next\n"
    registry.site.must("image", "prune")
    assert images(registry) == [new]
    registry.site.must("delete", "--force", "one")


@HERE
def test_old_leftovers_of_saving_are_removed(registry: Registry) -> None:
    """The run that would have saved it was killed."""
    file = registry.site.base / "b" / "saved.sqsh"
    words = ("run", f"--save={file}", box(registry), "sleep", "60")
    process = registry.site.popen(*words, stdio=subprocess.DEVNULL)
    names = registry.store / "names"
    wait_until("its copy", lambda: any(names.glob("save-*")) if names.exists() else False)
    time.sleep(0.5)
    process.kill()
    process.wait()
    wait_until(
        "its end", lambda: '"running"' not in registry.site.run("list", "-f", "json").stdout
    )
    for container in registry.site.must("list", "--quiet").split():
        registry.site.must("delete", "--force", container)
    run(registry, box(registry))
    wait_while("the copy", lambda: list(names.glob("save-*")))
