"""Faults of the client in C."""

from tests.stress.mutations.mutation import Faults

_TESTS = "tests/component/scrun/native/test_client.py"
_FUZZED = "tests/component/scrun/native/test_fuzzed.py"
_ANCHOR = "tests/component/scrun/anchor/test_anchor.py"

_wire = Faults("scrun/native/wire.c", _TESTS)
_main = Faults("scrun/native/main.c", _TESTS)
_settings = Faults("scrun/native/settings.c", _TESTS)
_file = Faults("scrun/native/pid_file.c", _TESTS)
_anchor = Faults("scrun/native/anchor.c", _TESTS, _ANCHOR)
_container = Faults("scrun/native/container.c", _TESTS)
_bounds = Faults("scrun/native/settings.c", _FUZZED)
_words = Faults("scrun/native/container.c", _FUZZED)

CLIENT = (
    _wire("client-peer-unchecked", " || peer.uid != geteuid()", ""),
    _wire("client-owner-unchecked", " || status.st_uid != geteuid()", ""),
    _wire("client-answer-without-limit", "reply->size > LONGEST", "reply->size > (size_t)-1"),
    _wire("client-interrupted-receive", "< 0 && errno == EINTR)\n\t\t;\n\tif (part < 0)",
          "< 0 && errno == ENOSYS)\n\t\t;\n\tif (part < 0)"),
    _main("client-an-id-is-a-path", '0123456789_+.-");\n\treturn size &&',
          '0123456789_+.-/");\n\treturn size &&'),
    _main("client-dots-are-an-id", ' && strcmp(text, "..")', ""),
    _main("client-choices-unchecked", "&& !is_one_of(found->metavar, value))", "&& !value)"),
    _main("client-flag-with-a-value", "if (value) /* --flag=false */", "if (!found->name)"),
    _main("client-error-printed", "if (reply.data[0] ||", "if ("),
    _main("client-asks-twice", 'step_aside(call, "again", -1);\n\tif (reply.error)',
          "step_aside(call, NULL, -1);\n\tif (reply.error)"),
    _settings("client-believes-other-files", "if (!is_unchanged(fields[at], fields[at + 1]))",
              "if (!fields[at])"),
    _settings("client-believes-an-open-file", "status.st_mode & 077 ||", ""),
    _settings("client-believes-an-open-directory", "if (!is_safe(directory) ||", "if ("),
    _bounds("client-more-fields-than-room", "at < content + length && count < 64;",
            "at < content + length;"),
    _words("client-more-words-than-room", "calloc(length + 2, sizeof *argv)",
           "calloc(8, sizeof *argv)"),
    _file("client-pid-file-unlocked", "!flock(file->lock, LOCK_EX | LOCK_NB)", "!(0)"),
    _file("client-replaces-a-locked-pid-file", "return !is_locked ||", "return true ||"),
    _anchor("client-anchor-keeps-descriptors", "if (number != 9 || fds[5] < 0)", "if (0)"),
    _anchor("client-anchor-in-our-network", "CLONE_NEWUTS | CLONE_NEWNET |", "CLONE_NEWUTS |"),
    _anchor("client-any-line-is-a-status", "is_status ? atoi(told) : LOST", "atoi(told)"),
    _anchor("client-signals-untaken", "if (on_behalf && ends && first && now", "if (0 && now"),
    _container("client-not-confirmed", '(void)!send(sock, "", 1, MSG_NOSIGNAL);', ""),
    _container("client-in-a-job", 'getenv("SLURM_JOB_ID") ||', ""),
    _container("client-beside-pods", 'has_pods || !strncmp(entry->d_name, "@pod-", 5)', "0"),
    _container("client-looks-for-pods-of-others", 'if (!getenv("_OCI_SYNCPIPE"))', "if (0)"),
    _container("client-killed-runtime-is-fine", "-WTERMSIG(state)", "0"),
)  # fmt: skip
"""Faults of the program that engines call."""
