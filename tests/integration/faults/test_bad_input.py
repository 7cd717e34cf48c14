"""The worst of what may come from outside, with the real command and a real supervisor.

Each is answered with one line and a status of failure; nothing is left, and the supervisor, which
has a container that runs meanwhile, goes on. What else the parsers refuse is in `tests/unit`.
"""

import _socket
import contextlib
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scrun.cli.parse import Parsed
from scrun.client.submit import _read_reply
from scrun.protocol import wire
from scrun.protocol.wire import CALL
from tests.harness.life import Life
from tests.harness.processes import peak
from tests.harness.site import Site
from tests.harness.wait import wait_until, wait_while
from tests.stress.fuzz.seeds import ODD, RECORD
from tests.stress.fuzz.targets import TARGETS

pytestmark = [
    pytest.mark.covers("guide a job fails if the runtime does"),
    pytest.mark.parametrize("site", ["local-user"], indirect=True),
]

QUICKLY = 10.0
MOST_MEMORY = 250 << 10  # KiB: what a supervisor may ever have had

Make = Callable[[Site], bytes]


@pytest.fixture
def witness(site: Site) -> Iterator[Life]:
    """A container that the same supervisor serves, and that notices nothing."""
    life = site.life("cat", stdin="pipe", stdout="pipe").created().start()
    # cat does not mind TERM, runc does that has not become it yet
    os.write(life.stdin, b"begun\n")
    life.says("begun\n")
    [supervisor] = site.supervisors()
    yield life
    assert site.supervisors() == [supervisor], "it is another supervisor"
    os.write(life.stdin, b"still here\n")
    life.says("still here\n")
    most = peak(supervisor)
    assert most < MOST_MEMORY, f"{most >> 10} MiB of memory"


def supervisor_socket(site: Site) -> str:
    [name] = [entry for entry in os.listdir(site.root) if entry.startswith("@user-")
              and not entry.endswith(".lock")]  # fmt: skip
    return name


def refused(site: Site, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Call scrun, which has to refuse within a moment, in one line; return that."""
    began = time.monotonic()
    done = site.run(*arguments, environment=environment)
    assert time.monotonic() - began < QUICKLY
    assert done.returncode == 1, (done.returncode, done.stderr[:500])
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr[:500]
    assert done.stderr.startswith("scrun: ")
    assert len(done.stderr) < 5000
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    return done.stderr


def changed(change: Callable[[dict[str, Any]], object]) -> Make:
    def make(site: Site) -> bytes:
        config = site.config("true")
        change(config)
        return json.dumps(config).encode()

    return make


def with_text(text: bytes) -> Make:
    """A member `x` of config.json with this text."""
    return lambda site: (
        json.dumps({"x": 0, **site.config("true")}).encode().replace(b'"x": 0', b'"x": ' + text, 1)
    )


CONFIGS: dict[str, tuple[Make, str]] = {
    "not UTF-8": (with_text(b'"\xff"'), "is not JSON"),
    "wide": (with_text(b"[" + b"[]," * 5_000_000 + b"0]"), "has more than 100000 values"),
    "type": (changed(lambda c: c["linux"].update(sysctl={"net.x": 1})), "linux.sysctl.net.x: "),
    "long text": (changed(lambda c: c["process"].update(cwd="x" * 10_000_000)), "process.cwd: x"),
    "escapes": (
        changed(lambda c: c.update(ociVersion="\x1b[2J\n\rscrun: \u2028ok")), "ociVersion: "
    ),
}  # fmt: skip


def test_config_json(site: Site, witness: Life) -> None:
    for kind, (make, reason) in CONFIGS.items():
        print(kind)
        bundle = site.bundle({})
        (bundle / "config.json").write_bytes(make(site))
        pid_file = bundle / "pid"
        said = refused(site, "create", "--bundle", str(bundle), "--pid-file", str(pid_file), "bad")
        assert f"{bundle}/config.json: " in said
        assert reason in said
        assert sorted(os.listdir(bundle)) == ["config.json"]
        assert not (site.root / "bad").exists()


def put_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def put_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 100_000_000)


PUT: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "directory": Path.mkdir,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "socket": put_socket,
    "sparse": put_sparse,
    "missing": lambda path: None,
}


def test_config_json_that_is_no_file(site: Site, witness: Life) -> None:
    for kind in PUT:
        print(kind)
        bundle = site.bundle({})
        path = bundle / "config.json"
        path.unlink()
        PUT[kind](path)
        assert f"{path}: " in refused(site, "create", "--bundle", str(bundle), "bad")
        # conmon is above, so `create` itself looks for the pod's name
        under_conmon = {"_OCI_SYNCPIPE": "3"}
        refused(site, "create", "--bundle", str(bundle), "bad", environment=under_conmon)
        wait_while("records", lambda: [e for e in os.listdir(site.root) if e == "bad"])


def test_null_is_absent(site: Site, witness: Life) -> None:
    config = site.config("sh", "-c", "exit 7")
    config["linux"].update(devices=None, sysctl=None, seccomp=None, resources=None)
    config["process"].update(user={"uid": None, "gid": None}, rlimits=None, capabilities=None)
    config["hooks"] = config["annotations"] = None
    life = site.life(config=config).created().start()
    life.ends(7)


def test_of_members_with_one_name_the_last_counts(site: Site, witness: Life) -> None:
    text = json.dumps(site.config("false"))
    text = text.replace('"args": ["false"]', '"args": ["false"], "args": ["sh", "-c", "exit 9"]')
    bundle = site.bundle({})
    (bundle / "config.json").write_text(text)
    life = site.life(bundle=bundle).created().start()
    life.ends(9)


PROCESSES = {
    "wide": (b'{"x":[' + b"[]," * 5_000_000 + b"0]}", "has more than 100000 values"),
    "NUL": (b'{"args": ["true", "\\u0000"], "cwd": "/"}', "args[1]: contains a NUL"),
}


def test_process_json(site: Site, witness: Life) -> None:
    for kind, (content, reason) in PROCESSES.items():
        print(kind)
        path = site.base / "b" / "process.json"
        path.write_bytes(content)
        said = refused(site, "exec", "--process", str(path), witness.id)
        assert said.startswith(f"scrun: {path}: ")
        assert reason in said
        assert site.must("exec", witness.id, "echo", "here") == "here\n"


def test_resources(site: Site, witness: Life) -> None:
    for content in (b"", b"[" * 5000, b'{"memory": {"limit": NaN}}'):
        path = site.base / "b" / "resources.json"
        path.write_bytes(content)
        said = refused(site, "update", "--resources", str(path), witness.id)
        assert said.startswith(f"scrun: --resources {path}: ")


SETTINGS = {
    "not UTF-8": (b"\xff", "not TOML"),
    "unknown": (b"idel_timeout = 5", "idel_timeout: unknown key (is it idle_timeout?)"),
    "large": (b"#" * 100_000_000, "is larger than 1 MiB"),
}


def test_scrun_toml(site: Site, witness: Life) -> None:
    for kind, (content, reason) in SETTINGS.items():
        print(kind)
        path = site.base / "b" / "scrun.toml"
        path.write_bytes(content)
        bad = {"SCRUN_CONFIG": str(path)}
        bundle = site.bundle(site.config("true"))
        for arguments in (
            ("create", "--bundle", str(bundle), "bad"),
            ("run", "--bundle", str(bundle), "bad"),
            ("features",),
        ):
            said = refused(site, *arguments, environment=bad)
            assert said.startswith(f"scrun: {path}: ")
            assert reason in said
        assert not (site.root / "bad").exists()


def test_argv(site: Site, witness: Life) -> None:
    for arguments in [
        ("create", "x" * 100_000), ("create", "../x"), ("create", "a b"), ("state", "\udcff"),
        ("kill", "c", "9" * 5000), ("--nonsense" + "x" * 100_000,), ("\x1b[2J",), ("create",),
        ("state", "c", "d"), ("update", "--memory", "9" * 5000, "c"), ("--root",), ("",),
        ("events", "--interval", "nan", "c"), ("run", "--bundle", "\udcff/x", "c"),
    ]:  # fmt: skip
        assert refused(site, *arguments).rstrip("\n").isprintable()


# Frames


def converse(site: Site, data: bytes) -> bytes:
    """Say something to the supervisor, and hear it out; it may hang up at any moment."""
    with socket.socket(
        fileno=wire.connect(str(site.root), supervisor_socket(site)).detach()
    ) as sock:
        sock.settimeout(QUICKLY)
        with contextlib.suppress(ConnectionError):
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while part := sock.recv(65536):
                answer += part
        return answer


def test_requests_about_a_container_that_runs(site: Site, witness: Life) -> None:
    """Each of the table's requests, for it, with one field of another kind."""
    number = 0
    for seed in TARGETS["request"].seeds:
        request = seed.replace(b"c1", witness.id.encode()).split(b"\0")
        if request[0] in (b"delete", b"follow"):
            continue
        for place in range(2, len(request) + 1):
            for odd in (b"", b"\xff", b"{", b"[]", b"-1", b"9" * 5000, b"[" * 100_000):
                number += 1
                if request[0] == b"kill" and odd == b"":
                    continue
                fields = [*request[:place], odd, *request[place + 1 :]]
                answer = converse(site, wire.frame(fields))
                assert b"internal error" not in answer, (fields, answer[:300])
    assert number > 100


def test_whatever_bytes(site: Site, witness: Life, dice: random.Random) -> None:
    frames = [data for data in ODD if len(data) < 200_000]
    frames += [wire.frame([b"attach", witness.id.encode()]) + data for data in frames]
    frames += [wire.frame([b"update", witness.id.encode(), b"", data]) for data in frames]
    frames += [dice.randbytes(dice.randrange(200)) for _ in range(100)]
    frames += [b"\0\0" + dice.randbytes(2) + dice.randbytes(300) for _ in range(100)]
    frames += [wire.frame([b""] * 3_000_000), b"\xff" * 100_000, b"\0\xff\xff\xff" + b"x" * 100]
    for data in frames:
        answer = converse(site, data)
        assert b"internal error" not in answer, (data[:100], answer[:300])


Connections = tuple[_socket.socket, socket.socket]


@contextlib.contextmanager
def created_by_hand(
    site: Site, container: str, script: str, *, hears: bool = True, command: str = "create"
) -> Iterator[Connections]:
    """A container as `create` has it made: the connection, answered, and the anchor's end.

    `hears`: whether the answer can be given; `command`: what the user has typed.
    """
    bundle = site.bundle(site.config("sh", "-c", script))
    words = [command.encode(), b"--bundle", os.fsencode(bundle), container.encode()]
    environment = [f"{name}={value}".encode() for name, value in site.environment.items()]
    fields = [b"create", b"%d" % os.getpid(), b"22", b"/", b"%d" % len(words), *words]
    ours, theirs = socket.socketpair()
    with ours, open(os.devnull, "r+b") as null:
        sock = wire.connect(str(site.root), supervisor_socket(site))
        with theirs:
            wire.send(sock, [*fields, *environment], [null.fileno()] * 3 + [theirs.fileno()])
            sock.sendall(b"%d\n" % os.getpid())  # the anchor
        if command == "create":
            _make(site, sock)
        if hears:
            assert _read_reply(sock, Parsed())[0] == 0
        else:
            sock.shutdown(socket.SHUT_RD)
        yield sock, ours


def _make(site: Site, sock: _socket.socket) -> None:
    """Call the runtime, as `scrun.client.submit` does, but as the user of the site."""
    head, _, rest = sock.recv(65536).partition(b"\0")
    assert head == CALL + b"%d" % len(rest)
    words = [*site.user.prefix, *map(os.fsdecode, rest.split(b"\0"))]
    null = subprocess.DEVNULL
    done = subprocess.run(words, env=site.environment, stdin=null, stdout=null, check=True)
    sock.sendall(b"%d\n" % done.returncode)


def test_a_create_that_dies_with_its_answer_leaves_no_container(site: Site, witness: Life) -> None:
    """It has made no pid file, so nobody knows of the container."""
    del witness
    with created_by_hand(site, "odd", "sleep 60") as (connection, _):
        assert json.loads(site.must("state", "odd"))["status"] == "created"
        connection.close()
        wait_while("its record", (site.root / "odd").exists, QUICKLY)


def test_a_create_that_dies_before_its_answer_leaves_no_container(
    site: Site, witness: Life
) -> None:
    del witness
    record = site.root / "odd" / "state.json"
    with created_by_hand(site, "odd", "sleep 60", hears=False) as (connection, _):
        wait_until("it is created", lambda: record.exists() and '"created"' in record.read_text())
        time.sleep(0.5)  # until it has not been answered
        connection.close()
        wait_while("its record", (site.root / "odd").exists, QUICKLY)


def test_an_anchor_that_says_anything(site: Site, witness: Life) -> None:
    """Whoever calls `create` chooses it."""
    del witness
    script = "trap 'exit 5' TERM; while :; do sleep 0.1; done"
    with created_by_hand(site, "odd", script, command="run") as (connection, ours):
        wire.confirm(connection)
        connection.close()
        ours.sendall(b"NONSENSE\n\xff\xfe\n\n" + b"x" * 100_000 + b"\nSIGTERM\n KILL\n")
        site.must("start", "odd")
        ours.sendall(b"\0\n" * 1000 + b"WINCH\n")
        time.sleep(0.5)
        assert json.loads(site.must("state", "odd"))["status"] == "running"
        ours.sendall(b"TERM\n")
        ours.settimeout(QUICKLY)
        assert ours.recv(10) == b"5\n"
    site.must("delete", "--force", "odd")


# Records


def record(**members: object) -> bytes:
    return json.dumps(
        {**RECORD, "engine": "local", "owns_job": False, "staged": "", **members}
    ).encode()


DAMAGED = {
    "zeros": b"\0" * 4096,
    "type": record(pid="4711"),
    "wide": b'{"id":"c1","x":[' + b"0," * 200_000 + b"0]}",
}


def put(site: Site, content: bytes | None) -> Path:
    """Put a record under the root directory, as one whose supervisor is gone."""
    directory = site.root / "old"
    directory.mkdir(mode=0o700)
    (directory / "supervisor").symlink_to("../@gone")
    if content is not None:
        (directory / "state.json").write_bytes(content)
    site.user.give(directory)
    return directory


def test_a_damaged_record(site: Site, witness: Life) -> None:
    for kind, content in DAMAGED.items():
        print(kind)
        directory = put(site, content)
        said = refused(site, "state", "old")
        assert said.startswith(f"scrun: {directory}/state.json: ")
        assert said.endswith("; delete the container\n")
        listed = site.must("list").splitlines()
        assert any(line.split()[:3] == ["old", "0", "unknown"] for line in listed)
        assert any(line.split()[2:3] == ["running"] for line in listed)
        rows = json.loads(site.must("list", "--format=json"))
        assert [row["status"] for row in rows if row["id"] == "old"] == ["unknown"]
        refused(site, "start", "old")
        refused(site, "exec", "old", "true")
        site.must("delete", "--force", "old")
        assert not directory.exists()


def test_a_record_that_is_no_file(site: Site, witness: Life) -> None:
    for kind in ["fifo", "directory", "zero", "missing"]:
        print(kind)
        directory = put(site, None)
        path = directory / "state.json"
        PUT[kind](path)
        refused(site, "state", "old")
        assert " unknown " in site.must("list")
        site.must("delete", "--force", "old")
        assert not directory.exists()


def test_records_of_other_versions(site: Site, witness: Life) -> None:
    """What is unknown is passed over, what is missing has a default."""
    for content in (b'{"id": "old"}', record(id="old", new={"deep": [1, None]}, pid=2**70)):
        directory = put(site, content)
        state = json.loads(site.must("state", "old"))
        assert (state["id"], state["status"], state["pid"]) == ("old", "stopped", 0)
        assert "old  " in site.must("list")
        site.must("delete", "--force", "old")
        assert not directory.exists()


def test_a_record_whose_job_is_none(site: Site, witness: Life) -> None:
    """Nothing is done by halves: it stays, and says what to do."""
    directory = put(site, record(engine="slurm", job_id="--user=root", owns_job=True))
    said = refused(site, "delete", "--force", "old")
    assert f"{directory}/state.json: " in said
    (directory / "state.json").write_bytes(record())
    site.must("delete", "--force", "old")
