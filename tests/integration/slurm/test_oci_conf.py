"""The examples of Slurm's containers guide, each from its file, against the real runtimes.

The files are in docs/examples/oci.conf, as the guide has them.
"""

import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import CHECKOUT
from tests.conftest import MakeSite
from tests.harness.nightly import nightly
from tests.harness.site import CGROUP2, Site, several_lives
from tests.harness.versions import slurm_version

EXAMPLES = CHECKOUT / "docs" / "examples" / "oci.conf"
MakeExample = Callable[..., Site]


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that users can enter: pytest closes its own whenever a session begins."""
    path = Path(tempfile.mkdtemp(prefix="oci-", dir="/tmp"))
    path.chmod(0o755)
    (path / "bin").mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture
def example(shared: Path, make_site: MakeSite) -> MakeExample:
    """Makes a place whose containers run by an oci.conf."""

    def make(text: str, place: str = "local-user") -> Site:
        conf = shared / "oci.conf"
        conf.write_text(text)
        site = make_site(place, settings=f'idle_timeout = 20\n[local]\noci_conf = "{conf}"\n')
        site.environment["PATH"] = f"{shared}/bin:{site.environment['PATH']}"
        return site

    return make


def program(shared: Path, name: str, script: str) -> Path:
    """A program for the commands, which records how it is called."""
    calls = shared / f"{name}.calls"
    calls.write_text("")
    calls.chmod(0o666)
    path = shared / "bin" / name
    path.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" >>{calls}\n{script}')
    path.chmod(0o755)
    return calls


@pytest.mark.covers("guide all containers run without privileges")
@pytest.mark.covers("guide runc, create and start")
@pytest.mark.covers("guide runc, run; RunTimeQuery stands there twice")
@pytest.mark.covers("guide crun, create and start; run")
@pytest.mark.covers("guide nvidia-container-runtime, create and start; run")
@pytest.mark.covers("oci.conf RunTimeCreate")
@pytest.mark.covers("oci.conf RunTimeKill")
@pytest.mark.covers("oci.conf RunTimeRun")
@pytest.mark.covers("oci.conf %j")
@pytest.mark.covers("oci.conf %n")
@pytest.mark.covers("oci.conf %u, %U")
@pytest.mark.parametrize(
    ("runtime", "way"),
    [
        ("runc", "create"),
        ("crun", "run"),
        nightly("runc", "run"),
        nightly("crun", "create"),
        nightly("nvidia", "create"),
        nightly("nvidia", "run"),
    ],
)
def test_an_oci_runtime(example: MakeExample, shared: Path, runtime: str, way: str) -> None:
    """Containers guide, example configurations: runc, crun, nvidia-container-runtime."""
    text = (EXAMPLES / f"{runtime}-{way}.conf").read_text()
    site = example(text, "local-root" if runtime == "crun" else "local-user")
    if runtime == "crun":
        site.command = [*CGROUP2, *site.command]
    calls = program(shared, "nvidia-container-runtime", 'exec runc "$@"\n')
    several_lives(site)
    assert bool(calls.read_text()) is (runtime == "nvidia")


@pytest.mark.covers("oci.conf RunTimeCreate")
def test_a_container_that_the_runtime_does_not_create(example: MakeExample, shared: Path) -> None:
    """Then `create` fails, with its words; and no container is there."""
    text = (EXAMPLES / "runc-create.conf").read_text()
    site = example(text)
    config = site.config("true")
    config["linux"]["sysctl"] = {"net.never_heard_of": "1"}
    life = site.life(config=config)
    assert life.create_status() == 1
    *words, last = life.errors().splitlines()
    assert "never_heard_of" in "".join(words)
    assert last == "scrun: the container could not be created: RunTimeCreate ended with 1"
    assert life.status == "gone"
    done = site.run("run", "--bundle", str(site.bundle(config)), "one")
    assert done.returncode == 1
    assert "never_heard_of" in done.stderr
    (shared / "oci.conf").write_text(re.sub("(?m)^RunTimeStart=.*", 'RunTimeStart="false"', text))
    other = example((shared / "oci.conf").read_text())
    life = other.life("true").created()
    assert life.status == "created"
    assert "RunTimeStart failed: false" in other.fails("start", life.id)
    life.delete()


@pytest.mark.covers("oci.conf RunTimeStart")
def test_a_container_that_ends_before_its_start(example: MakeExample) -> None:
    site = example((EXAMPLES / "runc-create.conf").read_text())
    life = site.life("true").created()
    assert life.status == "created"
    life.kill("KILL")
    life.ends(137)


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


@pytest.mark.covers("guide what the runtime cannot do is not there")
@pytest.mark.covers("guide Charliecloud")
@pytest.mark.covers("oci.conf CreateEnvFile")
@pytest.mark.covers("oci.conf IgnoreFileConfigJson")
@pytest.mark.covers("guide Types: Charliecloud")
@pytest.mark.usefixtures("munge_socket_directory")
def test_charliecloud(example: MakeExample) -> None:
    """Containers guide, example configurations: Charliecloud, with a plain root file system."""
    site = example((EXAMPLES / "charliecloud.conf").read_text())
    site.environment["SLURM_CONF"] = "/never/seen"
    several_lives(site)
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


@pytest.mark.nightly
@pytest.mark.covers("guide Charliecloud")
@pytest.mark.usefixtures("munge_socket_directory")
def test_charliecloud_and_an_image_without_etc(example: MakeExample) -> None:
    site = example((EXAMPLES / "charliecloud.conf").read_text())
    shutil.rmtree(site.rootfs / "etc")
    life = site.life("sh", "-c", "ls -d /var/run/slurm").created().start()
    assert life.wait() == 0, life.errors()
    assert life.output() == "/var/run/slurm\n"
    life.delete()


WRAPPER = """\
bundle=$1 spool=$2 variables=$3
shift 4
[ -d "$bundle" ] && [ -d "$spool" ] && [ "$1" ] || exit 99
ch-run --set-env="$variables" "$bundle/rootfs" -- "$@"
"""


@pytest.mark.covers("guide enroot by a script of the site's", "oci.conf %b", "guide Types: ENROOT")
def test_a_wrapper_script(example: MakeExample, shared: Path) -> None:
    """Containers guide, example configurations: the script around enroot, here around ch-run."""
    text = (EXAMPLES / "enroot.conf").read_text().replace("/usr/local/bin/", f"{shared}/bin/")
    site = example(text)
    calls = program(shared, "enroot-start-wrapper", f"export USER={site.user.name}\n{WRAPPER}")
    life = site.life("sh", "-c", 'echo "it\'s $1"; exit 7', "sh", "a  'b'").created().start()
    assert life.wait() == 7, life.errors()
    assert life.output() == "it's a  'b'\n"
    bundle, spool, variables, *_ = calls.read_text().split()
    assert (bundle, variables) == (f"{site.root}/{life.id}/bundle", f"{spool}/task-0/environment")
    life.delete()
    # the shell of the script ends, and what it has started with it
    running = site.shell("echo up; sleep 600").created().start().says("up")
    running.kill("TERM")
    assert running.wait() == 128 + signal.SIGTERM
    running.delete()
    site.settle()


@pytest.mark.covers("guide singularity and apptainer, exec --userns %r %@")
@pytest.mark.covers("oci.conf %p")
@pytest.mark.covers("guide Types: Singularity")
def test_apptainer_s_way(example: MakeExample, shared: Path) -> None:
    """Containers guide: `exec --userns %r %@`, where the container's process is %p."""
    site = example((EXAMPLES / "apptainer.conf").read_text())
    run = f'export USER={site.user.name}\nroot=$3; shift 3; exec ch-run "$root" -- "$@"\n'
    calls = program(shared, "apptainer", run)
    several_lives(site)
    assert calls.read_text().startswith(f"exec --userns {site.rootfs} sh -c cat; echo error")


@pytest.mark.covers("oci.conf RunTimeDelete", "oci.conf %p")
def test_the_supervisor_dies(example: MakeExample, shared: Path) -> None:
    """RunTimeDelete of the process that the container is; nothing of it is left."""
    site = example((EXAMPLES / "apptainer.conf").read_text())
    run = f'export USER={site.user.name}\nroot=$3; shift 3; ch-run "$root" -- "$@"; exit 3\n'
    program(shared, "apptainer", run)
    life = (
        site.shell("trap '' TERM; echo up; while :; do sleep 0.1; done")
        .created()
        .start()
        .says("up")
    )
    [supervisor] = site.supervisors()
    os.kill(supervisor, signal.SIGKILL)
    life.wait()
    life.delete()
    site.settle()


@pytest.fixture
def clustered(shared: Path, make_site: MakeSite) -> MakeExample:
    """Makes a place of Slurm's whose oci.conf has more in it than the nodes'."""

    def make(more: str) -> Site:
        site = make_site("slurm-user")
        conf = Path(site.environment["SLURM_CONF"])
        for name, extra in (("slurm.conf", ""), ("oci.conf", more)):
            (shared / name).write_text(conf.with_name(name).read_text() + extra)
        site.environment["SLURM_CONF"] = str(shared / "slurm.conf")
        return site

    return make


@pytest.mark.covers("oci.conf DebugFlags", "oci.conf SrunArgs", "oci.conf SrunPath")
@pytest.mark.every_launch
@pytest.mark.oci_conf
def test_srun_of_the_site(clustered: MakeExample, shared: Path) -> None:
    """oci.conf(5): SrunPath, SrunArgs, one entry for each argument, and DebugFlags."""
    tell = f'echo "flags $SLURM_DEBUG_FLAGS" >>{shared}/srun.calls\n'
    calls = program(shared, "srun", f'{tell}exec {shutil.which("srun")} "$@"\n')
    more = "SrunArgs=--mpi=none\nSrunArgs=--wait=60\nDebugFlags=Steps\n"
    site = clustered(f"SrunPath={shared}/bin/srun\n{more}")
    first = site.life("true").created().start()
    first.ends()
    calls.write_text("")  # the node was asked which ids it maps: that is remembered
    life = site.shell("trap 'exit 9' USR1; echo up; while :; do sleep 0.1; done")
    life.created().start().says("up")
    assert site.must("exec", life.id, "echo", "inside") == "inside\n"
    life.kill("USR1")
    life.ends(9)
    lines = calls.read_text().splitlines()
    begins = [line.split()[:2] for line in lines if line.startswith("--")]
    assert len(begins) == 1 if site.by_shim else len(begins) >= 3  # the container, exec, kill
    assert begins == [["--mpi=none", "--wait=60"]] * len(begins)
    assert lines.count("flags Steps") == len(begins)
    site.settle()


@pytest.mark.covers("oci.conf FileDebug", "oci.conf StdIODebug")
@pytest.mark.oci_conf
def test_levels_of_the_site(clustered: MakeExample) -> None:
    """oci.conf(5): StdIODebug, and FileDebug for the file of [log]."""
    site = clustered("StdIODebug=verbose\nFileDebug=debug\n")
    log = site.base / "all.log"
    content = f'engine = "slurm"\n[log]\nfile = "{log}"\nlevel = "error"\n'
    (site.base / "scrun.toml").write_text(content)
    life = site.life("true").created().start()
    assert life.wait() == 0
    assert "it is created" in life.errors()
    life.delete()
    assert "it is running" in log.read_text()


@pytest.mark.covers("oci.conf SrunPath")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("Fancy=1\n", r"oci\.conf:\d+: Fancy: unknown key"),
        ("SrunPath=/nowhere/srun\n", "SrunPath=/nowhere/srun: not an executable program"),
    ],
)
@pytest.mark.oci_conf
def test_a_wrong_oci_conf_of_the_site(clustered: MakeExample, more: str, said: str) -> None:
    """It is said before a job is asked for; and what there is can be deleted."""
    site = clustered(more)
    assert re.search(said, site.life("true").refused())
    assert "does not exist" in site.fails("delete", "c9")
    site.settle()


PARAMETERS = """\
ContainerPath={path}/%u
MountSpoolDir=/mnt/step-%s
CreateEnvFile=null
DisableHooks=prestart
DisableCleanup={keep}
EnvExclude="^(SECRET|SLURM_CONF)="
RunTimeEnvExclude="^SECRET="
RunTimeQuery="runc --root={path}/state state %j"
RunTimeKill="runc --root={path}/state kill %j TERM"
RunTimeDelete="runc --root={path}/state delete --force %j"
RunTimeRun="wrapper '%Z' '%b' %r %e %m; exec runc --root={path}/state run -b %b %j"
"""
SHOW = "tr '\\0' '\\n' </mnt/step-0/task-0/environment; echo; env"


@pytest.mark.covers("oci.conf ContainerPath")
@pytest.mark.covers("oci.conf CreateEnvFile")
@pytest.mark.covers("oci.conf DisableCleanup")
@pytest.mark.covers("oci.conf DisableHooks")
@pytest.mark.covers("oci.conf EnvExclude")
@pytest.mark.covers("oci.conf MountSpoolDir")
@pytest.mark.covers("oci.conf RunTimeEnvExclude")
@pytest.mark.covers("oci.conf %b")
@pytest.mark.covers("oci.conf %e")
@pytest.mark.covers("oci.conf %m")
@pytest.mark.covers("oci.conf %r")
@pytest.mark.covers("oci.conf %s, %t")
@pytest.mark.covers("oci.conf %u, %U")
@pytest.mark.covers("oci.conf %Z")
@pytest.mark.parametrize("keep", ["no", nightly("yes")])
def test_parameters(example: MakeExample, shared: Path, keep: str) -> None:
    """oci.conf(5), each parameter: what the container, its hooks and the commands see."""
    place = shared / "place"
    place.mkdir()
    site = example(PARAMETERS.format(path=place, keep=keep))
    site.user.give(place)
    wrapper = program(shared, "wrapper", f'echo "secret: $SECRET" >>{shared}/wrapper.calls\n')
    site.environment["SECRET"] = "of create"
    (site.rootfs / "mnt").mkdir()
    site.user.give(site.rootfs / "mnt")
    config = site.config("sh", "-c", SHOW)
    config["process"]["env"] += ["SECRET=of config.json", "OPEN=yes"]
    hook = {"path": "/bin/sh", "args": ["sh", "-c", f"echo $0 >>{place}/hooks"]}
    config["hooks"] = {
        kind: [{**hook, "args": [*hook["args"], kind]}] for kind in ("prestart", "poststart")
    }
    for _ in range(2):  # the second one finds what the first has left
        life = site.life(config=config, container="same").created().start()
        assert life.wait() == 0, life.errors()
        file, _, variables = life.output().partition("\n\n")
        for text in (file, variables):
            lines = text.splitlines()
            assert {"OPEN=yes", "SLURM_JOB_NAME=scrun"} <= set(lines)
            assert not any(line.startswith("SECRET=") for line in lines)
        life.delete()
        (site.base / "l" / "same" / "pid").unlink(missing_ok=True)
        (site.base / "l" / "same").rmdir()
    assert set((place / "hooks").read_text().split()) == {"poststart"}
    words, secret = wrapper.read_text().splitlines()[:2]
    directory, bundle, rootfs, variables, step = words.split()
    assert secret == "secret: "
    assert (directory, rootfs) == (str(site.base), str(site.rootfs))
    assert step.startswith(f"{place}/{site.user.name}/oci-job")
    assert (bundle, variables) == (f"{step}/task-0", f"{step}/task-0/environment")
    assert os.path.exists(f"{bundle}/config.json") is (keep == "yes")
    assert os.path.exists(step) is (keep == "yes")


@pytest.mark.covers("guide runc, create and start")
def test_a_terminal_by_create_and_start(example: MakeExample) -> None:
    """RunTimeCreate has no console socket, and would refuse to make a terminal."""
    site = example((EXAMPLES / "runc-create.conf").read_text())
    life = site.life("sh", "-c", "test -t 0 && test -t 1 && stty size; exit 5", terminal=True)
    life.created().start()
    life.ends(5)


@pytest.mark.covers("guide a job fails if the runtime does", "oci.conf RunTimeStart")
def test_start_that_fails_is_said(example: MakeExample) -> None:
    text = (EXAMPLES / "runc-create.conf").read_text()
    site = example(text.replace("/ start", "/ no-such-command"))
    life = site.life("sleep", "60").created()
    assert "could not be started" in site.fails("start", life.id)
    assert life.wait() != 0
    assert "could not be started" in life.state()["annotations"]["org.scrun.message"]
    life.delete()
    site.settle()


@pytest.mark.covers("oci.conf %@")
def test_arguments_as_they_are(example: MakeExample, shared: Path) -> None:
    """oci.conf(5): %@, each argument quoted and escaped; nothing of config.json is a command."""
    site = example((EXAMPLES / "apptainer.conf").read_text())
    program(shared, "apptainer", 'shift 3; printf "%s|" "$@"\n')
    words = ["echo", "it's", "", "a\nb", "$(touch x)", '"; touch y; "', "%p %% *", "`z`"]
    life = site.life(*words).created().start()
    life.ends(says="".join(f"{word}|" for word in words))


def by_hand(site: Site) -> tuple[str, str]:
    """What doctor says about the commands of the oci.conf."""
    done = site.run("doctor", "--format", "json", timeout=120)
    assert done.stderr == ""
    [found] = [one for one in json.loads(done.stdout) if one["name"] == "oci.conf by hand"]
    assert not site.root.exists() or not [e for e in site.root.iterdir() if "doctor" in e.name]
    return found["status"], found["finding"]


@pytest.mark.covers("guide a runtime that works outside of Slurm")
@pytest.mark.covers("guide testing the runtime outside of Slurm: create, start, kill, delete")
@pytest.mark.covers("guide OCI runtime configurations, testing a runtime outside Slurm")
@pytest.mark.parametrize("name", ["runc-create", nightly("runc-run"), nightly("apptainer")])
def test_doctor_tries_the_commands(example: MakeExample, shared: Path, name: str) -> None:
    """Containers guide, "Testing OCI runtime outside of Slurm"."""
    text = (EXAMPLES / f"{name}.conf").read_text()
    site = example(text)
    run = f'export USER={site.user.name}\nroot=$3; shift 3; exec ch-run "$root" -- "$@"\n'
    if name == "apptainer":
        assert by_hand(site) == ("fail", "apptainer is not on this machine")
    program(shared, "apptainer", run)
    status, said = by_hand(site)
    assert (status, said.endswith("each works on this machine")) == ("ok", True), said


@pytest.mark.covers("guide testing the runtime outside of Slurm: create, start, kill, delete")
@pytest.mark.parametrize(
    ("name", "right", "wrong", "said"),
    [
        ("runc-create", " create ", " creat ", "RunTimeCreate, RunTimeStart: "),
        nightly("runc-create", " start ", " stat ", "RunTimeCreate, RunTimeStart: "),
        ("runc-run", " kill -a ", " kil ", "RunTimeKill: "),
        nightly("runc-run", " delete ", " delet ", "RunTimeDelete: "),
    ],
)
def test_doctor_names_the_command(
    example: MakeExample, name: str, right: str, wrong: str, said: str
) -> None:
    site = example((EXAMPLES / f"{name}.conf").read_text().replace(right, wrong))
    status, finding = by_hand(site)
    assert (status, finding.startswith(said)) == ("fail", True), finding
    site.settle()


@pytest.mark.covers("oci.conf EnvExclude")
@pytest.mark.oci_conf
@pytest.mark.parametrize("site", ["slurm-user"], indirect=True)
def test_variables_that_the_nodes_leave_out(site: Site) -> None:
    """oci.conf(5): EnvExclude, which slurmstepd has since 23.02."""
    life = site.life("env").created().start()
    assert life.wait() == 0
    names = {line.partition("=")[0] for line in life.output().splitlines()}
    assert "SLURM_JOB_ID" in names
    assert ("SLURM_CONF" in names) is (slurm_version().release < (23, 2))
    life.delete()
