"""What comes from outside, by surface: one function of bytes each, that raises only for a fault.

A target takes what the surface may get, lets the code that reads it do its work, and checks what
has to hold whatever it was: errors are those that users are told, in one line; what was accepted
goes through everything that comes after it; what is written is read again as the same. Hypothesis
(`tests/unit/test_fuzz_*.py`) and atheris (`tools/fuzz`) run the same table.
"""

import atexit
import base64
import copy
import json
import os
import shlex
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import trio

from scrun import _fast, wire
from scrun.cli.grammar import COMMANDS
from scrun.cli.parse import parse as parse_argv
from scrun.cli.report import one_line, printable
from scrun.commands import listing, messages
from scrun.commands.attach import DATA, frame, take_frames
from scrun.commands.create import _hear, request, supervisor_name
from scrun.commands.pod import pod_of
from scrun.commands.update import _merged
from scrun.errors import (
    BundleError,
    EngineError,
    ScrunError,
    SettingsError,
    StagingError,
    StateError,
    UsageError,
)
from scrun.oci import process as processes
from scrun.oci.config import Bundle, Config, parse
from scrun.oci.ids import check_id
from scrun.oci.lookup import find_program
from scrun.oci.resources import changes, read_resources
from scrun.oci.signals import parse_signal, signal_name
from scrun.paths import LIMIT
from scrun.record import Record, read_record, stopped_state, write_record
from scrun.settings import quick
from scrun.settings.engine_flags import read_flags
from scrun.settings.load import Runtime, load
from scrun.settings.node_runtime import node_runtime, signalled
from scrun.settings.ociconf import parse_oci_conf
from scrun.settings.outputs import Told, output_variables
from scrun.settings.patterns import substitute
from scrun.settings.plugstack import find_scripts, read_plugstack
from scrun.settings.request_sources import asked_by, gather
from scrun.settings.requests import from_environment, salloc_arguments, srun_arguments
from scrun.settings.shell_commands import in_place_of_the_shell, portable
from scrun.settings.slurmconf import read_slurm_conf
from scrun.settings.versions import parse_version
from scrun.waiting import annotations_of, waiting_line
from supervisor.anchors import read_signals
from supervisor.containers import Containers
from supervisor.engines.base import Answer
from supervisor.engines.local import minder
from supervisor.engines.local.job import _last_error
from supervisor.engines.script import process_variables
from supervisor.engines.slurm.fate import read_accounting, read_fate
from supervisor.engines.slurm.inspect import read_answers
from supervisor.engines.slurm.layout import OneNode, check, layout_within
from supervisor.engines.slurm.messages import (
    SallocHeard,
    SrunHeard,
    ending_of_step,
    step_exit,
)
from supervisor.engines.slurm.pending import read_waiting
from supervisor.inspection import read_list, rows_of, statistics, total
from supervisor.lua.channel import Channel, Hangup
from supervisor.lua.process import understood
from supervisor.orders import read_call
from supervisor.plugins.registry import plugins
from supervisor.pumps import Output
from supervisor.requests import Request
from supervisor.runtimes import program_failure
from supervisor.staging.plan import Target as Place
from supervisor.staging.policy import fit
from supervisor.staging.survey import survey

_HERE = Path(__file__).resolve().parent
_INFORMATION = ("help", "usage", "version")
_NOW = 1_800_000_000.0
_LONGEST = 4096
_RELEASES = ((22, 5), (24, 11))
_TASKS = 4

PLACES = (
    Place(elsewhere=True, uid=1000, gid=100, rootless=True, link_rootfs=True),
    Place(elsewhere=True, uid=0, gid=0, rootless=False),
    Place(elsewhere=False, uid=0, gid=0, rootless=False, cgroups=True, host_only=(), rlimits={}),
    Place(elsewhere=False, uid=0, gid=0, rootless=False, host_only=(), capabilities=frozenset()),
    Place(elsewhere=False, uid=1000, gid=100, rootless=True, maps_root=True, host_only=()),
)
"""Where a container may run."""

CONTAINER = {
    "process": {"args": ["sh"], "cwd": "/", "env": ["PATH=/bin"]},
    "linux": {
        "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": 100, "size": 1}],
    },
}


@dataclass(frozen=True)
class Target:
    """A surface.

    Attributes:
        about: What comes there.
        check: Raises when something does not hold.
        seeds: Right input, to begin with.
        words: What its syntax is made of, for atheris.
    """

    about: str
    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[str, ...] = ()


def said(error: ScrunError, *, begins: str = "", ends: str = "") -> None:
    """Check that an error can be shown, and that it names what it is about."""
    text = str(error)
    assert text.startswith(begins), text
    assert text.endswith(ends), text
    assert text.strip(), "an error without words"
    assert len(text) <= _LONGEST, f"an error of {len(text)} characters"
    line = printable(one_line(text.encode(errors="replace").decode()))
    assert line.isprintable()
    line.encode(errors="backslashreplace")
    assert 0 < error.exit_code < 128


@cache
def scratch() -> Path:
    """A directory for what has to be a file."""
    # the fuzzer ends without a way out of its own: its parent removes what it is given
    given = os.environ.get("SCRUN_FUZZ_SCRATCH", "/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="scrun-fuzz-", dir=given))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "rootfs").mkdir()
    return directory


def written(name: str, content: bytes) -> str:
    """Write a file there; return its path."""
    path = scratch() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o600)
    return str(path)


def lines_of(data: bytes) -> list[str]:
    """The lines of a command's output, as the supervisor's pumps make them."""
    return [line.rstrip("\r") for line in data.decode(errors="replace").split("\n")]


# What is typed


def argv(data: bytes) -> None:
    """Arguments, separated by NUL."""
    words = [os.fsdecode(word) for word in data.split(b"\0")]
    try:
        parsed = parse_argv(words)
    except UsageError as error:
        said(error)
        return
    assert parsed.command in COMMANDS or parsed.command in _INFORMATION
    if parsed.id is not None:
        assert check_id(parsed.id) == parsed.id
    if parsed.command in _fast._FORWARDED:
        fields = _fast.request(parsed, parsed.id or "")
        assert wire.frame(fields)[4:].split(b"\0") == fields
    if parsed.command in ("create", "exec"):  # the supervisor reads the same out of it
        call = read_call(request(parsed.command, 1, words)[1:], parsed.command)
        assert repr(call.parsed) == repr(parsed)
        supervisor_name("container", parsed)


def signals(data: bytes) -> None:
    """What `kill` is asked to send."""
    text = os.fsdecode(data)
    try:
        number = parse_signal(text)
    except UsageError as error:
        said(error)
        return
    assert parse_signal(signal_name(number)) == number


# Documents of engines and images


def config(data: bytes) -> None:
    """config.json, up to what a node gets of it."""
    try:
        raw, typed = parse(data)
    except BundleError as error:
        said(error)
        return
    before = copy.deepcopy(raw)
    for place in PLACES:
        _staged(raw, place)
    assert raw == before
    _requests(typed)
    _recorded(typed)
    _looked_up(raw, typed)
    wish = processes.Wish(args=["true"], env=["A=b"], groups=["5"], capabilities=["kill"])
    _executed(processes.process_from_wish(wish, raw["process"]), raw)
    trio.run(_events, typed.linux.resources)
    pod_of("/nowhere", written("config.json", data))


def _staged(raw: dict[str, Any], place: Place) -> None:
    try:
        sources = survey(raw, "/nowhere", "/nowhere/rootfs", place, "/nowhere/staged")
        plan = fit(
            raw, bundle="/b", staged="/s", rootfs="/s/rootfs", target=place, sources=sources
        )
    except StagingError as error:
        said(error)
        return
    content = msgspec.json.encode(plan.config)
    again, _ = parse(content)
    assert again["root"]["path"] == "/s/rootfs"
    assert again["process"]["args"] == raw["process"]["args"]
    for note in plan.notes:
        printable(note).encode()


def _requests(typed: Config) -> None:
    flags = read_flags(typed, resources=True)
    try:
        wanted = gather({}, asked_by(typed.annotations, typed.process.env), {}, flags)
        for release in _RELEASES:
            words = salloc_arguments(wanted.requests, release)
            words += srun_arguments(wanted.requests, release)
            assert all(word.startswith("-") and "\0" not in word for word in words)
    except SettingsError as error:
        said(error)


def _recorded(typed: Config) -> None:
    record = Record(id="c", oci_version=typed.oci_version, annotations=typed.annotations)
    write_record(str(scratch()), record)
    assert os.path.getsize(scratch() / "state.json") < LIMIT
    assert read_record(str(scratch())) == record
    json.loads(stopped_state(record))
    variables = output_variables(_told(typed))
    assert not any("=" in name or "\0" in name + value for name, value in variables.items())


def _told(typed: Config) -> Told:
    texts = dict.fromkeys(
        ("bundle", "submission_bundle", "socket", "spool_dir", "submission_config_file", "user",
         "group", "root", "rootfs_path", "submission_rootfs_path", "container_id"), "/x",
    )  # fmt: skip
    return Told(
        oci_version=typed.oci_version, annotations=typed.annotations, pid=1, pid_file=None,
        user_id=0, group_id=0, log_file=None, log_format="text", **texts,
    )  # fmt: skip


def _looked_up(raw: dict[str, Any], typed: Config) -> None:
    rootfs = str(scratch() / "rootfs")
    find_program(Bundle("/nowhere", "/nowhere/config.json", typed, raw, rootfs))


def _executed(process: dict[str, Any], container: dict[str, Any]) -> None:
    try:
        processes.checked(process, "exec c")
        processes.fitting_user(process, container)
        pieces = process_variables(process)
    except (BundleError, StateError) as error:
        said(error)
        return
    assert json.loads("".join(pieces.values())) == process
    words = [f"{name}={piece}" for name, piece in pieces.items()]
    assert all(len(word) < 1 << 17 and word.isascii() for word in words)


class _NoProcesses:
    async def inspect(self, script: Callable[[str], str]) -> list[Answer]:
        return [Answer("node", 0, "units 100 4096\n")]


async def _events(resources: dict[str, Any]) -> None:
    json.loads(await statistics(_NoProcesses(), "c", resources))  # type: ignore[arg-type]


def process(data: bytes) -> None:
    """The file of `exec --process`."""
    try:
        raw, typed = processes.process_from_file(data, "p.json")
    except BundleError as error:
        said(error, begins="p.json: ")
        return
    assert raw["args"] == typed.args
    _executed(raw, CONTAINER)


def resources(data: bytes) -> None:
    """`linux.resources` of an `update`."""
    try:
        found = read_resources(data, "r.json")
    except UsageError as error:
        said(error, begins="r.json: ")
        return
    merged = _merged(found, {"memory": {"limit": 1}})
    assert read_resources(json.dumps(merged).encode(), "r.json") == merged
    present = {"memory": {"limit": 5}, "cpu": {"shares": 7}}
    for change in changes(found, present):
        change.encode(errors="replace")
    assert changes(found, found) == []


# Settings


def settings(data: bytes) -> None:
    """scrun.toml; both readers."""
    path = written("scrun.toml", data)
    short = quick.scan(data)
    try:
        found = load({}, path)
    except SettingsError as error:
        said(error, begins=path)
        return
    if short is not None:
        assert short.get("root") == found.root
        assert short.get("group", "user") == found.group
    for seconds in (found.idle_timeout, found.staging.timeout, found.slurm.release_timeout):
        assert seconds >= 0  # which is not true of what is not a number
    for name in (found.root, found.slurm.conf, found.log.file, found.staging.scratch):
        if name is not None:
            os.path.lexists(name)


def environment(data: bytes) -> None:
    """The caller's variables, separated by NUL."""
    pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0"))
    found = {name: value for name, _, value in pairs if name and name != "SCRUN_CONFIG"}
    quick.real_uid(found, "/nowhere")
    try:
        load(found, written("empty.toml", b""))
        for release in _RELEASES:
            words = salloc_arguments(from_environment(found), release)
            words += srun_arguments(from_environment(found), release)
            assert all(word.startswith("-") for word in words)
        check({**found, "SLURM_JOB_NUM_NODES": ""}, OneNode(1, "22.05"))
        layout = layout_within(found, found, OneNode(1, "22.05"))
        assert layout.tasks >= 1
    except SettingsError as error:
        said(error)


def slurm_conf(data: bytes) -> None:
    """slurm.conf, that may include itself."""
    path = written("slurm.conf", data)
    try:
        found = read_slurm_conf(path)
    except SettingsError as error:
        said(error)
        return
    assert all(key == key.lower() for key in found)


def plugstack(data: bytes) -> None:
    """plugstack.conf, that may include itself."""
    path = written("plugstack.conf", data)
    try:
        lines = read_plugstack(path)
        find_scripts(lines)
    except SettingsError as error:
        said(error)
        return
    assert all(line.pattern.startswith("/") for line in lines)


def oci_conf(data: bytes) -> None:
    """oci.conf, and what is filled into its commands."""
    try:
        conf = parse_oci_conf(data.decode(errors="surrogateescape"), "oci.conf")
        patterns = node_runtime(conf, Runtime())
    except SettingsError as error:
        said(error, begins="oci.conf")
        return
    evil = "/b/'; touch x \"$(y)`z`\n"
    values = {**dict.fromkeys("bejmnprstuUf", evil), "@": [evil, "", "a b"]}
    signal, run = signalled(patterns.kill, "USR1"), in_place_of_the_shell(conf.run_time_run or "")
    for pattern in (patterns.state, patterns.exec, run, portable(signal)):
        try:
            command = substitute(pattern, values)
        except SettingsError as error:
            said(error)
            continue
        plain = pattern.replace("%%", "")
        if not set(plain) & set("$`#<\\\"'") and "%" in plain:
            assert evil in "".join(shlex.split(command)), command


# The socket


def call(data: bytes) -> None:
    """A request that carries a command line: what follows its name."""
    try:
        found = read_call(data.split(b"\0"), "create", "run", "exec", "shell")
    except UsageError as error:
        said(error)
        return
    assert 0 < found.anchor <= 1 << 22
    assert 0 <= found.setting.umask <= 0o777
    assert found.directory.startswith("/")
    assert not any("=" in name or "\0" in name for name in found.setting.environment)


def requests(data: bytes) -> None:
    """A request to a supervisor that has no container."""
    answer = trio.run(_answer, data.split(b"\0"))
    assert answer, "a request without an answer"
    assert b"internal error" not in answer, answer
    assert len(answer) <= 4 * _LONGEST


async def _answer(fields: list[bytes]) -> bytes:
    root = scratch() / "root"
    root.mkdir(mode=0o700, exist_ok=True)
    ours, theirs = trio.socket.socketpair()
    with ours, theirs:
        async with plugins() as loaded, trio.open_nursery() as nursery:
            containers = Containers(str(root), "@x", loaded, nursery, lambda: None)
            return await Request(containers, ours, fields, []).answer()
    raise AssertionError


class _Said:
    """A socket on which somebody has said something, and gone."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = [*pieces, b""]

    def recv(self, size: int) -> bytes:
        assert all(len(piece) <= size for piece in self._pieces)
        return self._pieces.pop(0)


def heard(pieces: Iterable[bytes]) -> tuple[object, list[bytes]]:
    """What `create` makes of an answer, and what it shows meanwhile."""
    shown: list[bytes] = []
    before = messages.write_if_possible
    messages.write_if_possible = lambda fd, line: shown.append(line)
    try:
        return _hear(_Said(pieces), parse_argv(["create", "c"])), shown  # type: ignore[arg-type]
    except ConnectionError as error:
        return str(error), shown
    finally:
        messages.write_if_possible = before


def reply(data: bytes) -> None:
    """The answer to `create`, with the messages before it."""
    data = data[:60000]
    in_parts = [data[place : place + 1] for place in range(min(len(data), 300))]
    assert heard([*in_parts, *filter(None, [data[300:]])]) == heard([data])
    try:
        status, content = wire.receive(_Said([data]))  # type: ignore[arg-type]
    except ConnectionError:
        assert not data
    else:
        assert bytes([status]) + content == data


def attached(data: bytes) -> None:
    """The frames of `attach`, both ways."""
    frames, rest = take_frames(data)
    assert b"".join(frame(kind, content) for kind, content in frames) + rest == data
    assert take_frames(rest) == ([], rest)
    assert take_frames(frame(DATA, data)) == ([(DATA, data)], b"")


def anchor(data: bytes) -> None:
    """What an anchor says: signals, by name."""
    data = data[:30_000]
    whole, rest = read_signals(data)
    found, left = [], b""
    for place in range(0, len(data), 3):
        some, left = read_signals(left + data[place : place + 3])
        found += some
    assert (found, left) == (whole, rest)
    assert len(rest) <= _LONGEST


# What is on disk


def record(data: bytes) -> None:
    """state.json, of whichever version."""
    directory = scratch() / "records" / "c1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "state.json").write_bytes(data)
    rows = listing.rows(str(directory.parent), ["c1"])
    listing.table(rows).encode(errors="replace")
    json.loads(json.dumps(rows, ensure_ascii=False).encode("utf-8", "replace"))
    try:
        found = read_record(str(directory))
    except StateError as error:
        said(error, ends="; delete the container")
        return
    assert rows[0]["status"] in (found.status, "stopped")
    json.loads(stopped_state(found))
    write_record(str(directory), found)
    assert read_record(str(directory)) == found


# What Slurm says


def salloc(data: bytes) -> None:
    """The messages of salloc."""
    heard = SallocHeard()
    for line in lines_of(data):
        heard.hear(line)
    assert not heard.job_id or (heard.job_id.isascii() and heard.job_id.isdigit())
    assert heard.ending.status
    assert heard.ending.text
    assert heard.reason
    assert len(heard.complaints) <= 20


def srun(data: bytes) -> None:
    """The messages of srun."""
    heard = SrunHeard(_TASKS)
    for line in lines_of(data):
        heard.hear(line)
        heard.hear_runtime(line.encode())
    assert len(heard.running) <= _TASKS
    assert all(0 <= task < _TASKS for tasks in heard.running.values() for task in tasks)
    assert len(heard.complaints) <= 20
    for status in (0, 1, 137, 255, -9):
        ended = step_exit(heard, status)
        assert 0 <= ended.status <= 255
        assert 0 <= ending_of_step(heard, ended).status <= 255
        assert ended.status or heard.started or heard.statuses
    program_failure(data.decode(errors="replace"))


def squeue(data: bytes) -> None:
    """The answers of squeue and sacct."""
    text = data.decode(errors="replace")
    waiting = read_waiting(text, _NOW)
    if waiting is not None:
        assert waiting_line("1", waiting, now=_NOW, explained=True)
        assert annotations_of(waiting)
    for ending in (read_fate(text, "1", 1e9), read_accounting(text, "1", 1e9)):
        assert ending is None or ending.status


def version(data: bytes) -> None:
    """What `salloc --version` prints."""
    try:
        found = parse_version(data.decode(errors="replace"))
    except SettingsError as error:
        said(error)
        return
    assert parse_version(f"slurm {found}") == found


# Answers from beside the container, and of runtimes


def inspected(data: bytes) -> None:
    """What the small step on the nodes prints."""
    output = Output()
    for line in lines_of(data):
        output.take(line)
    for answer in read_answers(output.lines):
        assert 0 <= answer.status <= 999
        _told_by(answer)


def beside(data: bytes) -> None:
    """What the scripts beside a container print, in which are names that it has chosen."""
    text = data.decode(errors="replace")
    _told_by(Answer("node1", 0, text))
    wrapped = base64.b64encode(data + b"status 0\n").decode()
    lines = ["0: begin node1", *(f"0: {wrapped[i : i + 76]}" for i in range(0, len(wrapped), 76))]
    assert read_answers([*lines, "0: end"]) == [Answer("node1", 0, text)]


def _told_by(answer: Answer) -> None:
    try:
        seen = read_list(answer)
        rows = rows_of(seen.text, seen.pids)
        assert len(rows) <= 1 + seen.text.count("\n")
    except EngineError as error:
        said(error)
    try:
        usage = total([answer])
        assert min(usage.user, usage.kernel, usage.memory, usage.threads) >= 0
    except EngineError as error:
        said(error)


def runtime(data: bytes) -> None:
    """What an OCI runtime says: its state, and its log."""
    path = written("answer", data)
    state = minder._state(f"cat {path}") if len(data) < 100_000 else {}
    assert isinstance(state, dict)
    _last_error(path).encode(errors="replace")
    program_failure(data.decode(errors="replace"))


# scrun.lua


def worker(data: bytes) -> None:
    """What the process of a script sends."""
    frames = trio.run(_frames, [data])
    assert trio.run(_frames, [data[i : i + 7] for i in range(0, min(len(data), 700), 7)]) == (
        frames if len(data) <= 700 else trio.run(_frames, [data[:700]])
    )
    for found in frames:
        try:
            kind, fields = understood(found)
        except Hangup:
            continue
        assert kind
        assert kind in (b"loaded", b"stop", b"opened", b"called") or 1 <= len(fields) <= 2


async def _frames(pieces: list[bytes]) -> list[list[bytes]]:
    ours, theirs = socket.socketpair()
    channel, found = Channel(ours), []

    async def send() -> None:
        with trio.socket.from_stdlib_socket(theirs) as sock:
            for piece in pieces:
                rest = memoryview(piece)
                while rest:
                    rest = rest[await sock.send(rest) :]

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while True:
                try:
                    found.append(await channel.receive())
                except Hangup:
                    break
            nursery.cancel_scope.cancel()
    finally:
        channel.close()
    return found


def _bundles() -> tuple[bytes, ...]:
    found = sorted((_HERE.parent / "unit" / "bundles").glob("*.json"))
    documents = [json.loads(path.read_bytes()) for path in found]
    configs = [json.dumps(one.get("config", one)).encode() for one in documents]
    return (json.dumps(FULL).encode(), *configs)


def _joined(*words: str) -> bytes:
    return "\0".join(words).encode()


FULL: dict[str, Any] = {
    "ociVersion": "1.0.2",
    "process": {
        "terminal": False,
        "consoleSize": {"height": 24, "width": 80},
        "user": {"uid": 1, "gid": 2, "umask": 18, "additionalGids": [3]},
        "args": ["/bin/sh", "-c", "true"],
        "env": ["PATH=/bin", "SCRUN_PARTITION=debug", "NVIDIA_VISIBLE_DEVICES=0,1"],
        "cwd": "/",
        "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"], "ambient": []},
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 512}],
        "apparmorProfile": "a",
        "oomScoreAdj": 100,
        "selinuxLabel": "l",
        "noNewPrivileges": True,
        "ioPriority": {"class": "IOPRIO_CLASS_IDLE", "priority": 4},
    },
    "root": {"path": "rootfs", "readonly": True},
    "hostname": "host",
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid"]},
        {"destination": "/data", "type": "bind", "source": "/etc", "options": ["rbind", "uid=1"]},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs"},
        {"destination": "/dev/shm", "type": "bind", "source": "/dev/shm", "options": ["bind"],
         "uidMappings": [{"containerID": 0, "hostID": 1, "size": 1}]},
    ],
    "hooks": {"prestart": [{"path": "/bin/true", "args": ["a"], "env": ["A=b"], "timeout": 5}]},
    "annotations": {"SCRUN_NTASKS": "1", "slurm.partition": "debug", "org.example": "x"},
    "linux": {
        "namespaces": [{"type": "pid"}, {"type": "network", "path": "/proc/1/ns/net"}],
        "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
        "devices": [{"path": "/dev/nvidia0", "type": "c", "major": 1, "minor": 3, "uid": 0}],
        "cgroupsPath": "/a",
        "resources": {
            "devices": [{"allow": False, "access": "rwm"}],
            "memory": {"limit": 104857600},
            "cpu": {"quota": 150000, "period": 100000, "shares": 1024},
            "pids": {"limit": 100},
        },
        "sysctl": {"net.ipv4.ping_group_range": "0 0", "kernel.shm_rmid_forced": "1"},
        "seccomp": {"defaultAction": "SCMP_ACT_ERRNO", "listenerPath": "/s",
                    "syscalls": [{"names": ["read"], "action": "SCMP_ACT_ALLOW"}]},
        "maskedPaths": ["/proc/kcore"],
        "mountLabel": "m",
        "intelRdt": {"closID": "c"},
    },
}  # fmt: skip
"""A config.json with most of what there is."""

RECORD = {
    "id": "c1", "status": "running", "pid": 4711, "bundle": "/b", "oci_version": "1.1.0",
    "engine": "slurm", "job_id": "123", "owns_job": True, "staged": "/s", "moved": None,
    "annotations": {"org.scrun.reason": "exited"}, "created": "2026-01-01T00:00:00Z",
    "rootfs": "/r", "pod": "", "engine_settings": {"slurm_conf": "/etc/slurm/slurm.conf"},
}  # fmt: skip

_SETTINGS = b"""engine = "slurm"
root = "/run/x"
group = "pod"
idle_timeout = 5.0
[log]
level = "debug"
file = "/var/log/x"
[slurm]
conf = "/etc/slurm/slurm.conf"
release_timeout = 10
[slurm.defaults]
partition = "long"
exclusive = true
[local]
runtime = "crun"
[runtime]
pause = "crun pause %u.%j.%s.%t.%n"
resume = "crun resume %u.%j"
[staging]
scratch = "/scratch/%u"
host_only = ["/run/x"]
timeout = inf
[lua]
version = "5.4"
memory = 100
"""
_OCI = b"""RunTimeQuery="crun --root=/r state %u.%j.%s.%t.%n" # c
RunTimeKill="crun kill -a %n.%u.%j TERM"
RunTimeDelete="crun delete \\
 --force '%n' \\"%u\\""
RunTimeRun="exec crun run --bundle=%b --pid-file \\"%e\\" %n $(id -u) %@"
EnvExclude="^(SLURM_CONF)="
CreateEnvFile=null
DisableHooks=prestart,poststop
"""
_SLURM = b"""ClusterName=c1 # a
SlurmctldHost=h
include /dev/shm/none-%c.conf
NodeName=n[1-2] CPUs=64 \\
  State=UNKNOWN
PartitionName="debug" Nodes=ALL
"""
_SRUN = b"""srun: launching StepId=12.0 on host node1, 2 tasks: [0-1]
srun: launching StepId=12.0 on host node2, 2 tasks: 2,3
srun: Node node1, 2 tasks started
srun: Node node2, 2 tasks started
srun: Received task exit notification for 2 tasks of StepId=12.0 (status=0x0009).
srun: error: node1: tasks 0-1: Killed
srun: Received task exit notification for 2 tasks of StepId=12.0 (status=0x0300).
srun: error: node2: tasks 2-3: Exited with exit code 3
srun: error: Task launch for StepId=12.0 failed on node node1: Unspecified error
srun: Job step aborted: Waiting up to 32 seconds for job step to finish.
"""
_SALLOC = b"""salloc: Pending job allocation 3546
salloc: job 3546 queued and waiting for resources
salloc: Granted job allocation 3546
salloc: error: Node failure on node1
salloc: Job 3546 has exceeded its time limit and its allocation has been revoked.
salloc: error: Job submit/allocate failed: Invalid partition name specified
"""
_BESIDE = (
    b"host 1b4e28ba pid:[4026531836]\npids\n1\n42\ntable\nUID PID CMD\nroot 42 sh\nroot 43 x\n",
    b"units 100 4096\n" + b"42 (a) b\n c) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 "
    b"22 23 24\n",
)
_CALL = ("4711", "22", "/b", "4", "create", "--bundle", "/b", "c1", "PATH=/bin", "A=b")

ODD = (
    b"", b"\0", b"\xff", b"\n" * 5000, b"a" * 100_000, b"9" * 100_000, b"[" * 100_000,
    b'{"a":' * 50_000, b"[]," * 400_000, b"{" + b'"a":1,' * 300_000, b"a." * 50_000 + b"a=1",
    b'{"a":' + b"1" * 5000 + b"}", b"a=" + b"1" * 5000, b'a="\\u0000"', b"\\\n" * 50_000,
    b"(" * 50_000, b"'\"" * 50_000, b"0-999999," * 7000, b"a \\" * 50_000, b" " * 100_000,
    b"\xed\xa0\x80", "\u0661\u2028\x85".encode(),
)  # fmt: skip
"""What is right nowhere, or only in part."""

TARGETS: dict[str, Target] = {
    "argv": Target(
        "a command line, its words separated by NUL",
        argv,
        (
            _joined("create", "--bundle", "/b", "--pid-file=p", "c1"),
            _joined("--root", "/r", "--log-format=json", "kill", "-a", "c1", "-9"),
            _joined("exec", "-t", "--env", "A=b", "-u1:2", "c1", "sh", "-c", "true"),
            _joined("update", "--memory", "5g", "--resources=-", "c1"),
        ),
        tuple(COMMANDS),
    ),
    "signal": Target("a signal's name or number", signals, (b"TERM", b"9", b"SIGRTMIN+3")),
    "config": Target("config.json", config, _bundles(), ("process", "linux", "mounts", "null")),
    "process": Target(
        "the file of exec --process", process, (json.dumps(FULL["process"]).encode(),)
    ),
    "resources": Target(
        "linux.resources of update",
        resources,
        (json.dumps(FULL["linux"]["resources"]).encode(), b'{"cpu": {"shares": 7}}'),
    ),
    "settings": Target("scrun.toml", settings, (_SETTINGS,), ("[", "]", "=", '"', "root", "inf")),
    "environment": Target(
        "variables of the caller",
        environment,
        (
            _joined("SCRUN_ENGINE=slurm", "SCRUN_DEBUG=debug2", "SCRUN_ROOT=/r", "SLURM_CONF=/c"),
            _joined("SCRUN_NTASKS=4", "SCRUN_JOB_NUM_NODES=2-4", "SCRUN_GRES=gpu:1", "A=b"),
            _joined("SCRUN_EXCLUSIVE=", "SCRUN_REQ_SWITCH=1", "SCRUN_WAIT4SWITCH=5:00"),
        ),
        ("SCRUN_STDERR_DEBUG=", "SCRUN_LOG_FILE=", "SCRUN_NTASKS_PER_NODE=", "SLURM_CONF="),
    ),
    "slurm-conf": Target("slurm.conf", slurm_conf, (_SLURM,), ("include ", "=", '"', "#", "\\")),
    "plugstack": Target(
        "plugstack.conf",
        plugstack,
        (b"required lua.so failonerror /none/*.lua a=1\ninclude none*.conf # x\nopt x.so\n",),
        ("required", "optional", "include", "lua.so", "failonerror", "*", "#"),
    ),
    "oci-conf": Target("oci.conf", oci_conf, (_OCI,), ("RunTime", "%u", "%@", "$(", "'", '"')),
    "call": Target("a request with a command line", call, (_joined(*_CALL),)),
    "request": Target(
        "any request to a supervisor",
        requests,
        (
            _joined("state", "c1"),
            _joined("kill", "c1", "TERM"),
            _joined("delete", "c1", "1"),
            _joined("ps", "c1", "table", "-ef"),
            _joined("update", "c1", "5:00", '{"memory":{"limit":5}}'),
            _joined("follow", "c1", "output"),
            _joined("create", *_CALL),
            _joined("exec", "1", "22", "/b", "3", "exec", "c1", "true"),
        ),
    ),
    "reply": Target(
        "the answer to create", reply, (b"\0", b"\1why", b"\xfewait\0\xffscrun: x\n\0\xfdl\0\0")
    ),
    "attach": Target(
        "the frames of attach", attached, (frame(DATA, b"x") + frame(b"w", b"\0" * 4),)
    ),
    "anchor": Target("the lines of an anchor", anchor, (b"TERM\nWINCH\n", b"USR1")),
    "record": Target("state.json", record, (json.dumps(RECORD).encode(), b'{"id":"c1"}')),
    "salloc": Target("the messages of salloc", salloc, (_SALLOC,)),
    "srun": Target("the messages of srun", srun, (_SRUN,)),
    "squeue": Target(
        "the answers of squeue and sacct",
        squeue,
        (b"PENDING|1895268178|Resources\n", b"COMPLETING  2026-01-01T00:00:00 None",
         b"CANCELLED by 1000\n"),
    ),
    "version": Target("what salloc --version prints", version, (b"slurm-wlm 22.05.8\n",)),
    "inspect": Target(
        "what a step on the nodes prints",
        inspected,
        (b"0: begin node1\n0: " + base64.b64encode(_BESIDE[0] + b"status 0\n") + b"\n0: end\n",),
    ),
    "beside": Target("what scripts beside a container print", beside, _BESIDE),
    "runtime": Target(
        "the state and the log of an OCI runtime",
        runtime,
        (b'{"pid": 42, "status": "running"}', b'{"level":"error","msg":"exec: no"}\n'),
    ),
    "worker": Target(
        "the frames of the process of a scrun.lua",
        worker,
        (
            wire.frame([b"log", b"info", b"x"]) + wire.frame([b"command", b"true"]),
            wire.frame([b"done", b"/b", b"/r"]) + wire.frame([b"failed", b"why", b""]),
        ),
    ),
}  # fmt: skip
"""By name."""
