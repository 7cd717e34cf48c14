"""What another user of the machine tries (docs/reference/security.md)."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrun.supervisor.staging.owner import name_in_scratch
from tests.conftest import MakeSite
from tests.harness import users
from tests.harness.life import Life
from tests.harness.nightly import nightly
from tests.harness.places import KINDS
from tests.harness.processes import Process, processes
from tests.harness.program import run_program
from tests.harness.site import Site
from tests.harness.stranger import Stranger
from tests.harness.versions import slurm_version
from tests.harness.wait import wait_until

USER = pytest.mark.parametrize("site", ["local-user"], indirect=True)
BOTH = pytest.mark.parametrize("site", ["local-user", "slurm-user"], indirect=True)


@pytest.fixture
def stranger() -> Stranger:
    return Stranger()


@pytest.fixture
def victim(site: Site) -> Iterator[Life]:
    """A container that runs, and that goes on as if nothing had been."""
    life = (
        site.shell("echo ready; read line; exit 7", stdin="pipe").created().start().says("ready")
    )
    yield life
    assert life.state()["status"] == "running"
    assert site.must("exec", life.id, "echo", "it goes on") == "it goes on\n"
    os.write(life.stdin, b"\n")
    life.ends(7)


@pytest.fixture
def shared(site: Site) -> Path:
    """A directory for everybody, as /tmp is."""
    path = site.base / "b" / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


def ours(site: Site) -> list[Process]:
    """The processes of a place on this machine, but for those in the container."""
    found = [p for p in site.processes() if p.pid != os.getpid()]
    return [p for p in found if p.is_supervisor or p.is_anchor or "SITE" not in str(p.environment)]


FILES = {
    "look into the root directory": ("return os.listdir(args[0])", "EACCES"),
    "look into a record": ("return os.listdir(args[1])", "EACCES"),
    "read a record": ("return open(args[1] + '/state.json').read()", "EACCES"),
    "read the log": ("return open(args[1] + '/log').read()", "EACCES"),
    "read the staged bundle": ("return open(args[1] + '/bundle/config.json').read()", "EACCES"),
    "read the output": ("return open(args[1] + '/output').read()", "EACCES"),
    "connect": ("return socket.socket(socket.AF_UNIX).connect(args[2])", "EACCES"),
    "connect to what a record names": (
        "return socket.socket(socket.AF_UNIX).connect(args[1] + '/supervisor')",
        "EACCES",
    ),
    "lock the name": ("return os.open(args[2] + '.lock', os.O_RDWR)", "EACCES"),
    "make a record": ("return os.mkdir(args[0] + '/c9')", "EACCES"),
    "make a socket": ("return socket.socket(socket.AF_UNIX).bind(args[0] + '/@user')", "EACCES"),
    "remove the socket": ("return os.unlink(args[2])", "EACCES"),
    "rename the root directory": ("return os.rename(args[0], args[0] + 'x')", "EACCES"),
    "open the root directory up": ("return os.chmod(args[0], 0o777)", "EPERM"),
    "lock the pid file": (
        "return fcntl.flock(os.open(args[3], os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "EAGAIN",
    ),
    "write the pid file": ("return os.open(args[3], os.O_WRONLY)", "EACCES"),
    "remove the pid file": ("return os.unlink(args[3])", "EACCES"),
}


@pytest.mark.covers("security run scrun with another user's --root")
@pytest.mark.covers("security the root directory and all in it: records, logs, output")
@pytest.mark.covers("security connect to the supervisor")
@pytest.mark.covers("security lock a pid file")
@pytest.mark.covers("security scrun with the other one's --root")
@BOTH
def test_files(site: Site, victim: Life, stranger: Stranger) -> None:
    [socket_name] = [
        entry.name
        for entry in site.root.iterdir()
        if entry.name.startswith("@user-") and stat.S_ISSOCK(entry.lstat().st_mode)
    ]
    paths = (site.root, site.root / victim.id, site.root / socket_name, victim.pid_file)
    got = {what: stranger.tries(body, *paths) for what, (body, _) in FILES.items()}
    assert got == {what: error for what, (_, error) in FILES.items()}
    for command in ("state", "kill", "delete", "logs", "attach", "ps", "events"):
        done = scrun_of(site, stranger.user, command, victim.id)
        assert done.returncode == 1
        assert "Permission denied" in done.stderr
    assert "Permission denied" in scrun_of(site, stranger.user, "list").stderr
    assert "Permission denied" in scrun_of(site, stranger.user, "exec", victim.id, "true").stderr


def scrun_of(site: Site, user: users.User, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Call scrun as somebody else."""
    return run_program(
        [*user.prefix, *site.command, *arguments],
        env={**site.environment, **user.environment},
        cwd="/",
    )


PROCESSES = {
    "signal it": ("return os.kill(int(args[0]), signal.SIGTERM)", "EPERM"),
    "signal it by a pidfd": (
        "return signal.pidfd_send_signal(os.pidfd_open(int(args[0])), signal.SIGKILL)",
        "EPERM",
    ),
    "take a descriptor of its": (
        "return checked(libc.syscall(438, os.pidfd_open(int(args[0])), 0, 0))",
        "EPERM",
    ),
    "trace it": ("return checked(libc.ptrace(16, int(args[0]), 0, 0))", "EPERM"),
    "read its environment": ("return open(f'/proc/{args[0]}/environ').read()", "EACCES"),
    "read its memory": ("return open(f'/proc/{args[0]}/mem').read()", "EACCES"),
    "see its files": ("return os.listdir(f'/proc/{args[0]}/fd')", "EACCES"),
    "see its directory": ("return os.readlink(f'/proc/{args[0]}/cwd')", "EACCES"),
    "enter its root": ("return os.listdir(f'/proc/{args[0]}/root/tmp')", "EACCES"),
    "limit it": (
        "return resource.prlimit(int(args[0]), resource.RLIMIT_NOFILE, (0, 0))",
        "EPERM",
    ),
    "slow it down": ("return os.setpriority(os.PRIO_PROCESS, int(args[0]), 19)", "EPERM"),
    "bind it to a processor": ("return os.sched_setaffinity(int(args[0]), [0])", "EPERM"),
}


@pytest.mark.covers("security signal, trace, limit or slow down a process")
@pytest.mark.covers("security environment, memory and open files of processes")
@pytest.mark.covers("security to signal, trace, limit, slow down any process")
@BOTH
def test_processes(site: Site, victim: Life, stranger: Stranger) -> None:
    found = ours(site)
    assert any(process.is_supervisor for process in found)
    assert site.engine == "local" or any(process.is_anchor for process in found)
    wrong = []
    for process in found:
        body = "\n".join(
            f"try:\n    answers.append(str(({body.removeprefix('return ')})))\n"
            "except OSError as error:\n    answers.append(errno.errorcode[error.errno])"
            for body, _ in PROCESSES.values()
        )
        got = stranger.tries(f"answers = []\n{body}\nreturn ' '.join(answers)", process.pid)
        if got.split(" ") != [error for _, error in PROCESSES.values()]:
            wrong.append(f"{process}: {got}")
    assert wrong == []


SECRET = "a-secret-that-nobody-else-shall-see"
LOOK = """
seen = []
for name in os.listdir('/proc'):
    for file in ('cmdline', 'environ', 'comm') if name.isdigit() else ():
        try:
            seen.append(open(f'/proc/{name}/{file}', errors='replace').read())
        except OSError:
            pass
# backwards: it has them on its own command line
return [word[::-1] in ''.join(seen) for word in args]
"""


@pytest.mark.covers("security that there are processes, and their command lines")
@pytest.mark.covers("security variables of the container, of an exec, of the caller")
@BOTH
def test_secrets_are_on_no_command_line(site: Site, stranger: Stranger) -> None:
    """Neither the container's variables nor the caller's, from `create` to `delete`."""
    config = site.config("sh", "-c", "echo $KEY; exec sleep 600")
    config["process"]["env"].append(f"KEY={SECRET}")
    life = site.life(config=config, environment={"TOKEN": SECRET}).created()
    seen = [stranger.tries(LOOK, SECRET[::-1], str(site.root)[::-1])]
    life.start().says(SECRET)
    seen.append(stranger.tries(LOOK, SECRET[::-1], str(site.root)[::-1]))
    assert any(SECRET in str(process.environment) for process in processes())
    assert seen == ["[False, True]"] * 2
    life.delete()


@pytest.mark.covers("security fill its queue, pass descriptors")
@pytest.mark.covers("security connect to the supervisor")
@pytest.mark.covers("security to fill its queue, to pass descriptors, to claim another uid")
@USER
def test_a_socket_that_was_opened_up(site: Site, victim: Life, stranger: Stranger) -> None:
    """Even then it answers its user and root only, whatever comes, and how often."""
    name = os.path.basename(os.readlink(site.root / victim.id / "supervisor"))
    place = site.root / name
    body = """
answers = []
request = len(args[1].encode()).to_bytes(4, 'big') + args[1].replace(' ', chr(0)).encode()
kept = []
for _ in range(1100):  # more than wait in its queue
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(args[0])  # with a time limit it would not wait for a place in that queue
    sock.settimeout(20)
    kept.append(sock)
for sock in kept[:5]:
    try:
        sock.sendall(request)
        answers.append(sock.recv(100))
    except OSError as error:
        answers.append(b'')
sock = socket.socket(socket.AF_UNIX)
sock.connect(args[0])
try:
    socket.send_fds(sock, [request], [0, 1, 2])
    answers.append(sock.recv(100))
except (BrokenPipeError, ConnectionResetError):
    answers.append(b'')
sock = socket.socket(socket.AF_UNIX)
sock.connect(args[0])
who = struct.pack('3i', os.getpid(), int(args[2]), int(args[2]))
try:
    sock.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])
except PermissionError as error:
    answers.append(b'')
return answers == [b''] * 7
"""
    site.root.chmod(0o711)
    place.chmod(0o666)
    try:
        got = stranger.tries(body, place, f"kill {victim.id} KILL", site.user.uid)
    finally:
        place.chmod(0o600)
        site.root.chmod(0o700)
    assert got == "True"


# Who comes first


ROOTS = {
    "a directory": ("os.mkdir(args[0])", "belongs to uid"),
    "one for everybody": ("os.mkdir(args[0]); os.chmod(args[0], 0o777)", "belongs to uid"),
    "a link": ("os.symlink('/tmp', args[0])", "belongs to uid"),
    "one above it": ("os.umask(0); os.mkdir(os.path.dirname(args[0]))", "belongs to uid"),
    "a link above it": ("os.symlink(args[1], os.path.dirname(args[0]))", "belongs to uid"),
    "a FIFO": ("os.mkfifo(args[0])", "belongs to uid"),
}  # fmt: skip


@pytest.mark.covers("security create the root directory, or one above it, first")
@pytest.mark.covers("security the root directory")
@pytest.mark.covers("security to make the root directory, or one above it, first")
@USER
@pytest.mark.parametrize("what", ROOTS)
def test_the_root_directory_is_there_first(
    site: Site, stranger: Stranger, shared: Path, what: str
) -> None:
    body, reason = ROOTS[what]
    root = shared / "r" / "scrun" if "above" in what else shared / "r"
    assert stranger.tries(body, root, site.base / "b") == "None"
    bundle = site.bundle_of("true")
    said = site.fails("--root", str(root), "create", "--bundle", bundle, "c1")
    assert reason in said
    assert str(root) in said
    left = list(shared.rglob("*"))
    assert len(left) == 1, left  # what was there first, and nothing in it


@pytest.mark.covers("security the root directory")
@USER
def test_a_root_directory_that_somebody_else_can_exchange(site: Site, stranger: Stranger) -> None:
    place = site.base / "b" / "everybody's"
    place.mkdir()
    place.chmod(0o777)
    (place / "r").mkdir(mode=0o700)
    site.user.give(place / "r")
    bundle = site.bundle_of("true")
    said = site.fails("--root", f"{place}/r", "create", "--bundle", bundle, "c1")
    assert f"{place}: everybody may write to it" in said


@pytest.mark.covers("security the root directory")
@USER
def test_a_root_directory_on_somebody_s_way(site: Site, stranger: Stranger) -> None:
    """They could give the user's directory another name, and put their own in its place."""
    place = site.base / "b" / "theirs"
    place.mkdir()
    (place / "r").mkdir(mode=0o700)
    site.user.give(place / "r")
    os.chown(place, stranger.user.uid, stranger.user.gid)
    bundle = site.bundle_of("true")
    said = site.fails("--root", f"{place}/r", "create", "--bundle", bundle, "c1")
    assert f"{place}: belongs to uid {stranger.user.uid}" in said
    assert list(place.rglob("*")) == [place / "r"]


@pytest.mark.covers("security put something there for a command to read")
@pytest.mark.covers("security to have a command read what was put there for it")
@USER
def test_a_record_that_somebody_else_has_made(
    site: Site, stranger: Stranger, shared: Path
) -> None:
    """Under a root directory of theirs: nothing is sent there, and nothing waits."""
    body = """
os.mkdir(args[0]); os.chmod(args[0], 0o755)
os.mkdir(args[0] + '/c1'); os.chmod(args[0] + '/c1', 0o755)
os.symlink('../@user', args[0] + '/c1/supervisor')
os.mkfifo(args[0] + '/c1/state.json', 0o666); os.chmod(args[0] + '/c1/state.json', 0o666)
os.mkfifo(args[0] + '/c1/log', 0o666); os.chmod(args[0] + '/c1/log', 0o666)
"""
    root = shared / "r"
    assert stranger.tries(body, root) == "None"
    for words in (["state"], ["kill"], ["delete"], ["delete", "--force"], ["logs"]):
        site.fails("--root", str(root), *words, "c1", timeout=10)
    [row] = json.loads(site.must("--root", str(root), "list", "--format", "json", timeout=10))
    assert row["owner"] == stranger.user.name
    assert (root / "c1" / "state.json").exists()


SERVE = """
import os, socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
sock.listen(9)
print("ready", flush=True)
connection, _ = sock.accept()
data, fds, _, _ = socket.recv_fds(connection, 4096, 9)
print(len(data), len(fds), flush=True)
"""


@pytest.mark.covers("security answer in its place, or at a console socket")
@USER
def test_somebody_else_answers(site: Site, stranger: Stranger, shared: Path) -> None:
    """At a console socket, for the terminal, and in a supervisor's place, for the environment."""
    config = site.config("true", terminal=True)
    stranger.tries("os.umask(0o022); os.makedirs(args[0])", shared / "r" / "c1")
    for words, path in (
        (
            ["create", "--bundle", str(site.bundle(config)), "--console-socket", "{}", "c1"],
            shared / "console",
        ),
        (["--root", f"{shared}/r", "exec", "c1", "true"], shared / "r" / "c1" / "supervisor"),
        (["--root", f"{shared}/r", "kill", "c1"], shared / "r" / "c1" / "supervisor"),
    ):
        with subprocess.Popen(
            [*stranger.user.prefix, sys.executable, "-I", "-c", SERVE, str(path)],
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            said = site.fails(*(word.format(path) for word in words), timeout=10)
            assert f"by another user (uid {stranger.user.uid})" in said.replace("to an", "by an")
            if path.name == "console":  # its owner is known without a connection
                server.kill()
            else:
                assert server.stdout.readline() == "0 0\n"
        path.unlink()


@pytest.mark.covers("security take the name of a pid file in /tmp")
@USER
@pytest.mark.parametrize(
    "kind", ["a file", "a link to nothing", nightly("a FIFO"), nightly("a directory")]
)
def test_the_pid_file_is_there_first(
    site: Site, stranger: Stranger, shared: Path, kind: str
) -> None:
    """In a directory with the sticky bit nobody takes the place of another user's file."""
    path = shared / "pid"
    KINDS[kind](path, stranger.user)
    os.lchown(path, stranger.user.uid, stranger.user.gid)
    before = path.lstat()
    bundle = site.bundle_of("true")
    said = site.fails("create", "--bundle", bundle, "--pid-file", str(path), "c1")
    assert said.startswith(f"scrun: --pid-file {path}: ")
    assert path.lstat() == before
    assert os.listdir(shared) == ["pid"]
    site.settle()
    assert site.must("list", "--quiet") == ""


@pytest.mark.covers("security take the name of a pid file in /tmp")
@USER
def test_the_pid_file_of_an_exec_is_there_first(
    site: Site, victim: Life, stranger: Stranger, shared: Path
) -> None:
    path = shared / "pid"
    KINDS["a file"](path, stranger.user)
    words = ["exec", "--detach", "--pid-file", str(path), victim.id, "sleep", "97"]
    said = site.fails(*words)
    assert said == f"scrun: --pid-file {path}: Operation not permitted\n"
    wait_until("it is gone", lambda: "sleep 97" not in site.must("exec", victim.id, "ps"))


SCRATCH = {
    "the bundle's directory": ("os.mkdir(args[0]); os.chmod(args[0], 0o777)", ""),
    "the user's directory": ("os.mkdir(args[0]); os.chmod(args[0], 0o777)", "%u"),
    "a link": ("os.symlink(args[1], args[0])", "%u"),
}


@pytest.mark.covers("security [staging] scratch, a directory for all")
@BOTH
def test_the_place_for_staged_bundles_is_on_somebody_s_way(site: Site, stranger: Stranger) -> None:
    """They could rename the user's directory while a container waits for its start."""
    theirs = site.base / "b" / "theirs"
    mine = theirs / site.user.name
    mine.mkdir(parents=True)
    mine.chmod(0o700)
    site.user.give(mine)
    os.chown(theirs, stranger.user.uid, stranger.user.gid)
    settings = (site.base / "scrun.toml").read_text()
    settings += f'[staging]\nscratch = "{theirs}/%u"\n'
    (site.base / "scrun.toml").write_text(settings)
    said = site.life("true").refused()
    assert f"{theirs}: belongs to uid {stranger.user.uid}" in said
    assert list(mine.iterdir()) == []


@pytest.mark.covers("security create the place of staged bundles first")
@pytest.mark.covers("security [staging] scratch, a directory for all")
@pytest.mark.covers("security to make the place of staged bundles first, or a link there")
@pytest.mark.parametrize("place", ["local-user", "slurm-user"])
@pytest.mark.parametrize("scripted", [False, True])
def test_the_place_for_staged_bundles_is_there_first(
    make_site: MakeSite, stranger: Stranger, place: str, scripted: bool
) -> None:
    """Whoever can exchange a staged bundle has the user run another one."""
    site = make_site(place)
    shared = site.base / "b" / "scratch"
    shared.mkdir()
    shared.chmod(0o1777)
    own = site.base / "b" / "own"
    mine = [own / f"s{number}" / "config.json" for number in range(len(SCRATCH))]
    for path in mine:
        path.parent.mkdir(parents=True)
        path.write_text("mine")
    site.user.give(own)
    settings = (site.base / "scrun.toml").read_text()
    if scripted:
        script = site.base / "scrun.lua"
        script.write_text(SCRIPT)
        settings += f'[lua]\nscript = "{script}"\n'
    for number, (what, (body, below)) in enumerate(SCRATCH.items()):
        scratch = f"{shared}/{below}" if below else str(shared)
        (site.base / "scrun.toml").write_text(f'{settings}[staging]\nscratch = "{scratch}"\n')
        staged = name_in_scratch(str(site.root), f"s{number}")
        first = shared / (site.user.name if below else staged)
        assert stranger.tries(body, first, own) == "None", what
        config = site.mapped("true") if scripted else site.config("true")
        life = site.life(config=config, container=f"s{number}")
        # elsewhere the script's bundle runs as it is
        if scripted and not (place == "slurm-user" and slurm_version().forces_rootfs):
            life.created().delete()
        else:
            said = life.refused()
            assert f"staging in {shared}/" in said, what
            assert "belongs to" in said, what
            assert "set `scratch`" in said, what
        assert [path.read_text() for path in mine] == ["mine"] * len(mine)
        assert first.is_symlink() or list(first.iterdir()) == []
        first.unlink() if first.is_symlink() else first.rmdir()


SCRIPT = """
function slurm_scrun_stage_in() return slurm.SUCCESS end
function slurm_scrun_stage_out() return slurm.SUCCESS end
return slurm.SUCCESS
"""


# Root, and modes


@USER
def test_root_and_a_container_of_a_user_s(site: Site, victim: Life) -> None:
    """Root may ask, and end; but hands its own environment, and a container, to nobody."""
    root = users.root()
    assert json.loads(scrun_of(site, root, "state", victim.id).stdout)["status"] == "running"
    assert victim.id in scrun_of(site, root, "list", "--quiet").stdout
    assert scrun_of(site, root, "exec", victim.id, "echo", "a").stdout == "a\n"
    bundle = site.bundle_of("true")
    # nor does root go by settings that a user could write
    done = scrun_of(site, root, "create", "--bundle", bundle, "c1")
    assert f"{site.base}: belongs to uid {site.user.uid}" in done.stderr
    settings = site.environment.pop("SCRUN_CONFIG")
    done = scrun_of(site, root, "create", "--bundle", bundle, "c1")
    site.environment["SCRUN_CONFIG"] = settings
    assert done.returncode == 1
    assert f"root directory {site.root}: belongs to uid {site.user.uid}" in done.stderr
    assert site.must("list", "--quiet") == f"{victim.id}\n"


@pytest.mark.everywhere
@pytest.mark.covers("security the root directory and all in it: records, logs, output")
@pytest.mark.covers("security the pid file")
@pytest.mark.parametrize(
    ("place", "umask"),
    [
        ("local-user", 0o077),
        ("slurm-user", 0o000),
        ("local-user", 0o777),
        ("slurm-user", 0o777),
        nightly("local-user", 0o000),
        nightly("slurm-user", 0o077),
        nightly("local-root", 0o000),
        nightly("local-root", 0o077),
    ],
)
def test_modes(make_site: MakeSite, place: str, umask: int) -> None:
    """Nothing that scrun makes is for others, whatever the umask of the caller is."""
    site = make_site(place)
    above = site.base / "b" / "made" / "too"
    site.command[-1] = str(above / "r")
    site.root = above / "r"
    pid_file, log = site.base / "b" / "pid", site.base / "b" / "log"
    bundle = site.bundle_of("sleep", "600")
    words = ["--debug", "--log", str(log), "create", "--bundle", bundle]
    words += ["--pid-file", str(pid_file), "c1"]
    null = subprocess.DEVNULL
    site.run(*words, stdout=null, stderr=null, check=True, umask=umask)
    site.must("start", "c1")
    wait_until("it runs", lambda: json.loads(site.must("state", "c1"))["status"] == "running")
    for path in (above, above.parent, log):
        assert not path.stat().st_mode & 0o022, path
    assert pid_file.stat().st_mode & 0o777 == 0o644
    wrong = []
    inside_of_the_runtime = site.root / "c1" / "runtime"
    for folder, folders, names in os.walk(site.root):
        for name in (".", *folders, *names):
            path = Path(folder, name)
            status = path.lstat()
            if path.is_symlink() or inside_of_the_runtime in path.parents:
                continue
            if name != "runtime.log" and status.st_mode & 0o077:
                wrong.append(f"{path}: {status.st_mode:o}")
    assert wrong == []
    site.must("delete", "--force", "c1")
    os.kill(site.supervisors()[0], signal.SIGTERM)
