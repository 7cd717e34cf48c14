"""What `create` is told while it waits, on its way from the journal to the terminal."""

import io
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from scrun.cli.parse import Parsed, parse
from scrun.client import progress, submit
from scrun.settings.file.load import Level, Log
from scrun.supervisor.containers.caller import frames, send_progress
from scrun.supervisor.contracts.create_request import CreateRequest, read_create_request
from scrun.supervisor.log.journal import Journal, Shown


@pytest.mark.parametrize(
    ("level", "text", "shown", "expected"),
    [
        ("info", "x", Shown(), b""),
        ("info", "x", Shown(stderr="error", log="error"), b""),
        ("info", "x", Shown(stderr="info"), b"\xffscrun: x\n\0"),
        ("verbose", "x", Shown(stderr="debug"), b"\xffscrun: x\n\0"),
        ("error", "x", Shown(stderr="debug"), b"\xffscrun: error: x\n\0"),
        ("debug3", "x", Shown(stderr="debug5"), b"\xffscrun: debug3: x\n\0"),
        ("verbose", "x", Shown(log="debug"), b"\xfeinfo x\0"),
        ("info", "x", Shown("info", "info"), b"\xfeinfo x\0\xffscrun: x\n\0"),
        (
            "info", "a\n\0\x1bb\udcff", Shown("info", "info"),
            b"\xfeinfo a\n\\0\x1bb\\udcff\0\xffscrun: a\n\0\xffscrun: \\x00\\x1bb\\udcff\n\0",
        ),
    ],
)  # fmt: skip
def test_a_message_on_the_wire(level: Level, text: str, shown: Shown, expected: bytes) -> None:
    assert frames(level, text, shown) == expected


def answered(data: bytes, parsed: Parsed) -> tuple[int, bytes]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.close()
        return submit._read_reply(ours, parsed)[:2]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    shown: list[bytes] = []
    monkeypatch.setattr(progress, "show", lambda message, _: shown.append(message))
    return shown


@pytest.mark.parametrize(
    ("data", "answer", "shown"),
    [
        (b"\0", (0, b""), []),
        (b"\1why\0not", (1, b"why\0not"), []),
        (b"\xffone\n\0\xfeinfo two\0\0", (0, b""), [b"\xffone\n", b"\xfeinfo two"]),
        (b"\xffone\n\0\1why", (1, b"why"), [b"\xffone\n"]),
    ],
)
def test_the_answer_comes_after_the_messages(
    seen: list[bytes], data: bytes, answer: tuple[int, bytes], shown: list[bytes]
) -> None:
    assert answered(data, parse(["create", "c1"])) == answer
    assert seen == shown


@pytest.mark.parametrize("data", [b"", b"\xff", b"\xffhalf", b"\xffwhole\0", b"\xffone\0\xfehalf"])
def test_a_supervisor_that_goes_without_an_answer(seen: list[bytes], data: bytes) -> None:
    with pytest.raises(ConnectionError):
        answered(data, parse(["create", "c1"]))


def test_what_is_for_the_log_is_appended_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parsed = parse(["--log", str(log), "--log-format", "text", "create", "c1"])
    progress.show(b"\xfeinfo one", parsed)
    progress.show(b"\xfedebug two\nlines", parsed)
    ends = [line.partition(" ")[2] for line in log.read_text().splitlines()]
    assert ends == ['level=info msg="one"', 'level=debug msg="two"', 'level=debug msg="lines"']


def test_a_standard_error_that_is_full_is_not_waited_for() -> None:
    readable, writable = os.pipe()
    for number in range(40):
        progress.write_if_possible(writable, b"%02d" % number + b"x" * 8000)
    os.close(writable)
    with open(readable, "rb") as pipe:
        got = pipe.read()
    assert got.startswith(b"00xx")
    assert len(got) == 64 * 1024


def test_a_closed_standard_error_is_no_error() -> None:
    readable, writable = os.pipe()
    os.close(readable)
    progress.write_if_possible(writable, b"x\n")
    os.close(writable)
    progress.write_if_possible(writable, b"x\n")


async def tell_all(
    tmp_path: Path, shown: Shown, send: Callable[[bytes], Awaitable[None]], count: int = 3
) -> None:
    journal = Journal(str(tmp_path / "log"), Log(), "c1", shown)
    try:
        async with send_progress(journal, send):
            for number in range(count):
                journal.write("error", f"{number}")
        journal.write("error", "afterwards")
    finally:
        journal.close()


async def test_all_that_is_said_in_the_block_arrives(tmp_path: Path) -> None:
    got = io.BytesIO()

    async def send(data: bytes) -> None:
        await trio.sleep(0.01)
        got.write(data)

    await tell_all(tmp_path, Shown(stderr="info"), send)
    assert got.getvalue() == b"".join(b"\xffscrun: error: %d\n\0" % n for n in range(3))


async def test_a_caller_that_asked_for_nothing_is_told_nothing(tmp_path: Path) -> None:
    async def send(data: bytes) -> None:
        raise AssertionError

    await tell_all(tmp_path, Shown(), send)


async def test_a_caller_that_is_gone(tmp_path: Path) -> None:
    async def send(data: bytes) -> None:
        raise BrokenPipeError

    await tell_all(tmp_path, Shown(stderr="info"), send)


async def test_a_caller_that_does_not_read_costs_a_bounded_memory(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def send(data: bytes) -> None:
        got.append(data)

    await tell_all(tmp_path, Shown(stderr="info"), send, 5000)
    assert len(got) <= 257


DEFAULT = ("info", None, "quiet", "quiet", "quiet")
LOG = ["--log", "/l"]


@pytest.mark.covers("scrun(1) GLOBAL OPTIONS: --debug, --verbose, --log, --log-format")
@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        # level, file level, on stderr, in --log, to syslog
        ([], {}, DEFAULT),
        (LOG, {}, DEFAULT),
        (["--debug"], {}, ("debug", "debug", "debug", "quiet", "quiet")),
        (["-v"], {}, ("verbose", "verbose", "verbose", "quiet", "quiet")),
        (["-vv"], {}, ("debug", "debug", "debug", "quiet", "quiet")),
        (["-vvvvvvvvvv"], {}, ("debug5", "debug5", "debug5", "quiet", "quiet")),
        (["--log-level", "warning"], {}, ("info", "info", "info", "quiet", "quiet")),
        ([*LOG, "--debug"], {}, ("debug", "debug", "quiet", "debug", "quiet")),
        ([*LOG, "-v"], {}, ("verbose", "verbose", "quiet", "verbose", "quiet")),
        ([], {"SCRUN_DEBUG": "DEBUG2"}, ("debug2", None, "debug2", "quiet", "debug2")),
        (LOG, {"SCRUN_DEBUG": "5"}, ("debug", None, "quiet", "debug", "debug")),
        (LOG, {"SCRUN_FILE_DEBUG": "Verbose"}, ("info", "verbose", "quiet", "verbose", "quiet")),
        (LOG, {"SCRUN_STDERR_DEBUG": "info"}, ("info", None, "info", "quiet", "quiet")),
        ([], {"SCRUN_STDERR_DEBUG": "9"}, ("info", None, "debug5", "quiet", "quiet")),
        (["-v"], {"SCRUN_STDERR_DEBUG": "5"}, ("verbose", "verbose", "debug", "quiet", "quiet")),
        (["-v"], {"SCRUN_FILE_DEBUG": "5"}, ("verbose", "verbose", "verbose", "quiet", "quiet")),
        (["--debug"], {"SCRUN_SYSLOG_DEBUG": "3"}, ("debug", "debug", "debug", "quiet", "info")),
        (
            [],
            {"SCRUN_DEBUG": "5", "SCRUN_STDERR_DEBUG": "info", "SCRUN_SYSLOG_DEBUG": "error"},
            ("debug", None, "info", "quiet", "error"),
        ),
        (LOG, {"SCRUN_DEBUG": "quiet"}, ("quiet", None, "quiet", "quiet", "quiet")),
        (LOG, {"SCRUN_DEBUG": ""}, DEFAULT),
    ],
)  # fmt: skip
def test_levels_asked_for(
    tmp_path: Path, words: list[str], variables: dict[str, str], expected: tuple[str | None, ...]
) -> None:
    order = requested(tmp_path, "", words, variables)
    log = order.settings.log
    found = (log.level, log.file_level, order.shown.stderr, order.shown.log, log.syslog_level)
    assert found == expected


def test_levels_of_the_settings_file(tmp_path: Path) -> None:
    text = '[log]\nlevel = "debug"\nfile_level = "error"\nstderr_level = "info"\n'
    order = requested(tmp_path, text, LOG, {})
    assert order.shown == Shown(stderr="info")
    assert order.settings.log.file_level == "error"
    order = requested(tmp_path, text, LOG, {"SCRUN_FILE_DEBUG": "verbose"})
    assert order.shown == Shown(stderr="info", log="verbose")


def test_the_file_of_the_environment(tmp_path: Path) -> None:
    order = requested(tmp_path, "", [], {"SCRUN_LOG_FILE": "/f"})
    assert order.settings.log.file == "/f"
    assert order.shown == Shown(failure_in_file=True)


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ([], "text"),
        (["--log-format", "json"], "json"),
        (["--log-format", "json", "--log", "/l"], "text"),
    ],
)
def test_the_format_is_that_of_log_where_there_is_one(
    tmp_path: Path, words: list[str], form: str
) -> None:
    assert requested(tmp_path, "", words, {}).settings.log.format == form


def requested(
    tmp_path: Path, settings: str, words: list[str], variables: dict[str, str]
) -> CreateRequest:
    file = tmp_path / "scrun.toml"
    file.write_text(settings)
    # an oci.conf of this machine's cluster would have levels, too
    own = {"SCRUN_CONFIG": str(file), "SLURM_CONF": str(tmp_path / "slurm.conf")}
    environment = {**variables, **own}
    command = [*words, "create", "c1"]
    fields = [b"1", b"22", b"/", b"%d" % len(command), *map(str.encode, command)]
    fields += [f"{name}={value}".encode() for name, value in environment.items()]
    return read_create_request(fields, "create")
