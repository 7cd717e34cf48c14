"""The examples of Slurm's containers guide, each from its file, against the real runtimes.

The files are in docs/examples/oci.conf, as the guide has them.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeSite
from tests.harness.site import Site

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "oci.conf"
# runc of the guide's examples does not mind this machine's cgroups, crun may
CGROUP2 = (
    *("unshare", "--mount", "--propagation", "slave", "sh", "-c"),
    *('mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"', "sh"),
)

MakeExample = Callable[..., Site]


@pytest.fixture
def example(make_site: MakeSite, tmp_path: Path) -> MakeExample:
    """Makes a place whose containers run by an oci.conf."""
    tmp_path.chmod(0o755)
    tmp_path.parent.chmod(0o755)
    tmp_path.parent.parent.chmod(0o755)
    (tmp_path / "bin").mkdir()

    def make(text: str, place: str = "local-user") -> Site:
        conf = tmp_path / "oci.conf"
        conf.write_text(text)
        site = make_site(place, settings=f'idle_timeout = 20\n[local]\noci_conf = "{conf}"\n')
        site.environment["PATH"] = f"{tmp_path}/bin:{site.environment['PATH']}"
        return site

    return make


def program(tmp_path: Path, name: str, script: str) -> Path:
    """A program for the commands, which records how it is called."""
    calls = tmp_path / f"{name}.calls"
    calls.write_text("")
    calls.chmod(0o666)
    path = tmp_path / "bin" / name
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{calls}\n{script}')
    path.chmod(0o755)
    return calls


def lives(site: Site) -> None:
    """Standard input, output and error, exit status, a signal, and an end by force."""
    life = site.shell("cat; echo error >&2; exit 7", stdin="pipe").created().start()
    os.write(life.stdin, b"by oci.conf\n")
    life.close_stdin()
    assert life.wait() == 7
    assert (life.output(), life.errors()) == ("by oci.conf\n", "error\n")
    life.delete()
    trapping = site.shell("trap 'exit 9' USR1; echo up; while :; do sleep 0.1; done")
    trapping.created().start().says("up")
    assert trapping.status == "running"
    trapping.kill("USR1")
    assert trapping.wait() == 9
    assert trapping.status == "stopped"
    trapping.delete()
    running = site.shell("echo up; sleep 600").created().start()
    running.says("up")
    running.delete()
    assert running.wait() != 0
    site.settle()


@pytest.mark.parametrize("way", ["create", "run"])
@pytest.mark.parametrize("runtime", ["runc", "crun", "nvidia"])
def test_an_oci_runtime(example: MakeExample, tmp_path: Path, runtime: str, way: str) -> None:
    """Containers guide, example configurations: runc, crun, nvidia-container-runtime."""
    text = (EXAMPLES / f"{runtime}-{way}.conf").read_text()
    site = example(text, "local-root" if runtime == "crun" else "local-user")
    if runtime == "crun":
        site.command = [*CGROUP2, *site.command]
    calls = program(tmp_path, "nvidia-container-runtime", 'exec runc "$@"\n')
    lives(site)
    assert bool(calls.read_text()) is (runtime == "nvidia")


@pytest.fixture
def munge_socket_directory() -> Iterator[None]:
    """The guide's example for Charliecloud mounts it."""
    place = Path("/run/munge")
    made = not place.exists()
    if made:
        place.mkdir()
    yield
    if made:
        place.rmdir()


@pytest.mark.usefixtures("munge_socket_directory")
def test_charliecloud(example: MakeExample) -> None:
    """Containers guide, example configurations: Charliecloud, with a plain root file system."""
    site = example((EXAMPLES / "charliecloud.conf").read_text())
    site.environment["SLURM_CONF"] = "/never/seen"
    lives(site)
    config = site.config("sh", "-c", "echo $FROM; env | grep -c ^SLURM_; ls /var/run/slurm")
    config["process"]["env"] += ["FROM=config.json", "SLURM_CONF=/x"]
    life = site.life(config=config).created().start()
    assert life.wait() == 0, life.errors()
    came, variables, spool = life.output().splitlines()
    assert came == "config.json"
    assert int(variables) > 5
    assert spool == "task-0"
    life.delete()
    assert site.run("exec", life.id, "true").returncode == 1


WRAPPER = """\
bundle=$1 spool=$2 variables=$3
shift 4
[ -d "$bundle" ] && [ -d "$spool" ] && [ "$1" ] || exit 99
ch-run --set-env="$variables" "$bundle/rootfs" -- "$@"
"""


def test_a_wrapper_script(example: MakeExample, tmp_path: Path) -> None:
    """Containers guide, example configurations: the script around enroot, here around ch-run."""
    text = (EXAMPLES / "enroot.conf").read_text().replace("/usr/local/bin/", f"{tmp_path}/bin/")
    site = example(text)
    calls = program(tmp_path, "enroot-start-wrapper", f"export USER={site.user.name}\n{WRAPPER}")
    life = site.life("sh", "-c", 'echo "it\'s $1"; exit 7', "sh", "a  'b'").created().start()
    assert life.wait() == 7, life.errors()
    assert life.output() == "it's a  'b'\n"
    bundle, spool, variables, *_ = calls.read_text().split()
    assert (bundle, variables) == (f"{site.root}/{life.id}/bundle", f"{spool}/task-0/environment")
    life.delete()
    # the shell of the script ends, and what it has started with it
    running = site.shell("echo up; sleep 600").created().start()
    running.says("up")
    running.kill("TERM")
    assert running.wait() == 128 + signal.SIGTERM
    running.delete()
    site.settle()


def test_apptainer_s_way(example: MakeExample, tmp_path: Path) -> None:
    """Containers guide: `exec --userns %r %@`, where the container's process is %p."""
    site = example((EXAMPLES / "apptainer.conf").read_text())
    run = f'export USER={site.user.name}\nroot=$3; shift 3; exec ch-run "$root" -- "$@"\n'
    calls = program(tmp_path, "apptainer", run)
    lives(site)
    assert calls.read_text().startswith(f"exec --userns {site.rootfs} sh -c cat; echo error")


def test_the_supervisor_dies(example: MakeExample, tmp_path: Path) -> None:
    """RunTimeDelete of the process that the container is; nothing of it is left."""
    site = example((EXAMPLES / "apptainer.conf").read_text())
    run = f'export USER={site.user.name}\nroot=$3; shift 3; ch-run "$root" -- "$@"; exit 3\n'
    program(tmp_path, "apptainer", run)
    life = site.shell("trap '' TERM; echo up; while :; do sleep 0.1; done").created().start()
    life.says("up")
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    life.wait()
    life.delete()
    site.settle()
