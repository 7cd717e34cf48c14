"""scrun outside: supervisors of an engine that has a network of its own stay in this machine's."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness import users
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while

pytestmark = pytest.mark.covers("scrun outside")

APART = ("unshare", "--user", "--map-root-user", "--mount", "--net")
"""What rootlesskit does."""


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site("local", users.ordinary())
    site.environment["XDG_RUNTIME_DIR"] = str(site.base / "b")
    try:
        yield site
    finally:
        site.close()


_ASK = """
import os, socket, sys
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.connect(sys.argv[1])
said, theirs = os.pipe()
try:
    socket.send_fds(line, [b"\\0".join((b"0", b"root", b"@name", b""))], [theirs] * 5)
except ConnectionError:
    pass
os.close(theirs)
print(os.read(said, 4096).decode() or "nothing")
"""


@contextmanager
def engine_of(site: Site, *argv: str) -> Iterator["subprocess.Popen[bytes]"]:
    with site.popen("outside", *argv) as engine:
        try:
            yield engine
        finally:
            engine.kill()


def sockets(site: Site) -> list[Path]:
    return [*(site.base / "b").glob("scrun-outside-*")]


def namespace(pid: int | str, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")


def test_its_supervisor_has_this_machines_network(site: Site) -> None:
    """Apart from that it is where the engine is; and what stays outside ends with the engine."""
    config = site.config("echo", "ran")  # without a terminal, whose group is not mapped
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "devpts"]
    run = [*site.command, "run", "--bundle", str(site.bundle(config)), "one"]
    script = '"$@" && exec sleep 1000'
    with engine_of(site, *APART, "sh", "-c", script, "sh", *run) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"ran\n"
        [supervisor] = site.supervisors()
        assert namespace(supervisor, "net") == namespace("self", "net")
        for kind in ("user", "mnt"):
            assert namespace(supervisor, kind) == namespace(engine.pid, kind)
        assert len(sockets(site)) == 1
    wait_while("its socket", lambda: sockets(site))
    wait_while("what listened", lambda: [one for one in site.processes() if "outside" in one.argv])


def test_where_nobody_is_outside(site: Site) -> None:
    site.environment["SCRUN_OUTSIDE"] = str(site.base / "b" / "nobody")
    said = site.fails("run", "--bundle", site.bundle_of("true"), "one")
    assert (
        "b/nobody: No such file or directory; start the engine again, by `scrun outside`" in said
    )


def test_the_command_is_as_without_it(site: Site) -> None:
    said = site.must("outside", "grep", "SigIgn", "/proc/self/status")
    assert said == "SigIgn:\t0000000000000000\n"
    assert site.run("outside", "sh", "-c", "exit 7").returncode == 7
    wait_while("its socket", lambda: sockets(site))


def test_no_such_program(site: Site) -> None:
    assert "no-such-program: there is no such program" in site.fails("outside", "no-such-program")
    assert sockets(site) == []


def test_a_program_that_cannot_run(site: Site) -> None:
    program = site.base / "b" / "engine"
    program.write_text("no program\n")
    program.chmod(0o755)
    assert f"{program}: Exec format error" in site.fails("outside", str(program))
    wait_while("its socket", lambda: sockets(site))


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("", "not a path from /"), ("b", "not a path from /"),
        (f"/run/{'x' * 90}", "too long for the path of a socket"),
    ],
)  # fmt: skip
def test_a_runtime_directory_without_a_place_for_a_socket(
    site: Site, directory: str, why: str
) -> None:
    """A relative one would be another directory for the engine, which has another cwd."""
    site.environment["XDG_RUNTIME_DIR"] = directory
    assert f"XDG_RUNTIME_DIR={directory}: {why}" in site.fails("outside", "true")


def test_no_process_can_be_started(site: Site) -> None:
    command = [*site.user.prefix, "prlimit", "--nproc=0", *site.command, "outside", "true"]
    done = subprocess.run(command, env=site.environment, capture_output=True, text=True, cwd="/")
    assert done.returncode == 1
    assert "scrun: outside: Resource temporarily unavailable: see `ulimit -u`" in done.stderr
    assert sockets(site) == []


def test_it_outlives_a_lack_of_processes(site: Site) -> None:
    with engine_of(site, "sleep", "1000") as engine:
        [path] = wait_until("its socket", lambda: sockets(site))
        [child] = [one.pid for one in site.processes() if "outside" in one.argv]
        limit = [*site.user.prefix, "prlimit", "--pid", str(child)]
        subprocess.run([*limit, "--nproc=0:"], check=True)
        ask = [*site.user.prefix, "/usr/bin/python3", "-I", "-c", _ASK, str(path)]
        for said in ("nothing\n", "this is scrun 0"):
            done = subprocess.run(ask, capture_output=True, text=True, timeout=20)
            assert done.stdout.startswith(said), done
            subprocess.run([*limit, "--nproc=10000:"], check=True)
        assert engine.poll() is None


def test_others_may_not_write_beside_the_socket(site: Site) -> None:
    (site.base / "b").chmod(0o777)
    assert "others may write there" in site.fails("outside", "true")


@pytest.mark.covers("security start a supervisor by scrun outside")
def test_somebody_else(site: Site) -> None:
    """Not even where the socket's mode would let them."""
    with engine_of(site, "sleep", "1000") as engine:
        [path] = wait_until("its socket", lambda: sockets(site))
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o666)
        said = {}
        for user in (users.other(), site.user):
            command = [*user.prefix, "/usr/bin/python3", "-I", "-c", _ASK, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20)
            said[user.name] = done.stdout
        assert said[users.other().name] == "nothing\n"
        assert said[site.user.name].startswith("this is scrun 0, and the engine runs by ")
        assert engine.poll() is None
        assert site.supervisors() == []
