"""What OCI runtimes write to their logs."""

import pytest

from scrun.supervisor.engines.failures import NotMade, not_started, read_log, with_remedy

RUNC = b"""\
{"level":"warning","msg":"no such counter","time":"2026-11-22T07:31:49Z"}
{"level":"error","msg":"exec: \\"/nope\\": no such file or directory","time":"07:31:49Z"}
"""
CRUN = b'{"msg":"open `/x`: No such file","level":"error","time":"2026-11-22T07:31:49.1Z"}\n'
CRUN_1_28 = b"""\
{
    "msg": "open `/x`: No such file",
    "level": "error",
    "time": "2026-11-22T07:31:49.1Z"
}
"""
LATER = b'{"msg": "later", "level": "error"}\n'


@pytest.mark.parametrize(
    ("content", "error", "others"),
    [
        (b"", "", b""),
        (RUNC, 'exec: "/nope": no such file or directory', b""),
        (CRUN, "open `/x`: No such file", b""),
        (CRUN_1_28, "open `/x`: No such file", b""),
        (CRUN_1_28 + LATER, "later", b""),
        (LATER + CRUN_1_28, "open `/x`: No such file", b""),
        (CRUN_1_28.replace(b"error", b"warning"), "", b""),
        (CRUN_1_28.rstrip(), "open `/x`: No such file", b""),
        (b'{"msg": "\\u00e4 \xc3\xa4 \xff", "level": "error"}', "\u00e4 \u00e4 \udcff", b""),
        # what crun 1.8 puts beside it: a terminal's last output
        (b"last words\r\n" + CRUN, "open `/x`: No such file", b"last words\r\n"),
        (b"last words$ " + CRUN, "open `/x`: No such file", b"last words$ "),
        (b"last words$ " + CRUN_1_28, "open `/x`: No such file", b"last words$ "),
        (b'{"a": {"msg": 1}}' + CRUN, "open `/x`: No such file", b'{"a": {"msg": 1}}'),
        (b"\xff{1}\r\n{2}\r\n", "", b"\xff{1}\r\n{2}\r\n"),
        (b'{"an": "entry"}\n', "", b'{"an": "entry"}\n'),
        (b'{"a":\n' * 5000, "", b'{"a":\n' * 5000),
        (b'{"msg": "cut of', "", b'{"msg": "cut of'),
    ],
)
def test_read_log(content: bytes, error: str, others: bytes) -> None:
    assert read_log(content) == (error, others)


@pytest.mark.parametrize("reason", ["Operation not permitted", "No space left on device"])
def test_what_to_do_where_users_can_make_no_namespaces(reason: str) -> None:
    """crun 1.21 with kernel.unprivileged_userns_clone=0, and with user.max_user_namespaces=0."""
    said = str(NotMade(f"clone: {reason}", shown=False))
    assert said.startswith(f"the container could not be created: clone: {reason} (users can make")
    assert "unprivileged_userns_clone=1" in said
    assert "user.max_user_namespaces" in said


def test_what_to_do_where_a_job_may_not_open_more_files() -> None:
    words = "open `/proc/self/fd`: Too many open files"
    for said in (str(NotMade(words, shown=False)), not_started(words).text):
        assert said.endswith(f": {words} (`ulimit -n` of who asked counts there, too: raise it)")


def test_what_to_do_where_users_can_open_no_terminals() -> None:
    """A node's devpts has ptmxmode=000 unless it is told otherwise."""
    words = "/dev/ptmx: Permission denied"
    said = str(NotMade(words, shown=False))
    assert said.startswith(f"the container could not be created: {words} (users can open")
    assert "chmod 666 /dev/ptmx" in said


def test_other_words_of_a_runtime_stay_as_they_are() -> None:
    for words in ("chdir: No space left on device", "clone: Invalid argument", ""):
        assert with_remedy(words) == words
