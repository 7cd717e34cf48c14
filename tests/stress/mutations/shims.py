"""Deliberate faults of the shim, and of the supervisor's end of its connection. Pure."""

from collections.abc import Iterator

from tests.stress.mutations.mutation import Faults, Mutation

_SHIM = "supervisor/shim/"
_NODES = "supervisor/nodes/"
_PARTS = "tests/component/supervisor/"


def faults() -> Iterator[Mutation]:
    """All of them."""
    yield from _connection()
    yield from _streams()
    yield from _containers()
    yield from _files()


def _connection() -> Iterator[Mutation]:
    frames = Faults(_SHIM + "frames.py", "tests/unit/supervisor/shim/test_frames.py")
    yield frames("a-frame-of-any-length", "or length > LONGEST:", "or False:")
    beginning = _PARTS + "shim/test_beginning.py::"
    yield Faults(_SHIM + "dial.py", beginning + "test_somebody_without_the_secret")(
        "a-supervisor-need-not-know-the-secret",
        "if not compare_digest(",
        "if False and not compare_digest(",
    )
    yield Faults(_NODES + "dialing.py", _PARTS + "nodes/test_dialing.py::test_a_wrong_secret")(
        "a-shim-need-not-know-the-secret",
        "if not compare_digest(",
        "if False and not compare_digest(",
    )
    main = Faults(_SHIM + "main.py")
    yield main(
        "a-connection-that-breaks-at-first-ends-it",
        "if not self._is_heard and self._direct is not None:",
        "if False:",
        beginning + "test_the_connection_fails_before_the_first_call",
    )
    yield main(
        "anything-is-an-id",
        'if not isinstance(call.get(name, ""), str):',
        "if False:",
        _PARTS + "shim/test_any_calls.py",
    )
    yield main(
        "it-waits-for-no-successor",
        "self._alone = self._loop.after(patience, self._broken)",
        "self._broken()",
        beginning + "test_another_supervisor_gets_what_was_not_written",
    )


def _streams() -> Iterator[Mutation]:
    streams = Faults(_SHIM + "streams.py")
    yield streams(
        "a-slow-reader-stops-nobody",
        "elif self._deaf or self._window > 0:",
        "elif True:",
        _PARTS + "shim/test_containers.py::test_a_slow_reader_stops_the_writer",
    )
    again = _PARTS + "shim/test_beginning.py::test_another_supervisor_gets_what_was_not_written"
    yield streams("what-may-be-lost-is-not-kept", "self._kept.append(data)", "pass", again)
    yield streams(
        "an-end-is-not-told-again",
        "        if self._over:\n            self._streams.link.send(END",
        "        if False:\n            self._streams.link.send(END",
        again,
    )
    yield streams(
        "an-end-comes-twice",
        "        if self._over:\n            return\n",
        "",
        _PARTS + "shim/test_any_calls.py",
    )
    yield Faults(_NODES + "incoming.py", _PARTS + "nodes/test_streams.py::test_too_much")(
        "a-shim-may-send-any-number-of-bytes", "if self._window < 0:", "if False:"
    )


def _containers() -> Iterator[Mutation]:
    without = _PARTS + "shim/test_without_crun.py::"
    containers = _PARTS + "shim/test_containers.py::"
    runtime = Faults(_SHIM + "runtime.py")
    yield runtime(
        "hooks-of-poststop-are-forgotten",
        'hooks.get("poststop") or ',
        "",
        without + "test_hooks_are_run",
    )
    yield runtime(
        "hooks-of-poststart-are-forgotten",
        'hooks.get("poststart") or ',
        "",
        without + "test_hooks_are_run_at_its_start",
    )
    yield runtime(
        "a-started-container-is-created-still",
        "os.unlink(fifo)",
        "pass",
        without + "test_it_starts_without",
    )
    yield runtime(
        "a-script-is-crun",
        "self._is_crun = False",
        "self._is_crun = True",
        without + "test_a_script_is_run",
    )
    yield runtime(
        "crun-is-run-for-nothing",
        "self._is_crun = True",
        "pass",
        without + "test_it_forgets_without",
        without + "test_it_starts_without",
    )
    targets = Faults(_SHIM + "targets.py")
    yield targets(
        "what-crun-has-just-made-stays",
        "if is_called_with(pid, pid_file_of(self.place)):",
        "if False:",
        without + "test_while_it_is_created",
    )
    yield targets(
        "processes-of-others-are-killed",
        'if _namespace(pid, "mnt") == self._mounts)',
        "if True)",
        containers + "test_daemons_without_a_pid_namespace",
    )
    yield Faults(_SHIM + "making.py", without + "test_while_it_waits_for_another")(
        "what-waits-is-not-answered", 'reply({"error": "it has been deleted"})', "pass"
    )
    images = _PARTS + "shim/test_images.py::"
    yield Faults(_SHIM + "images.py", images + "test_its_server_is_killed")(
        "who-has-no-files-goes-on", "self._lost(mounted.user)", "pass"
    )


def _files() -> Iterator[Mutation]:
    left = _PARTS + "shim/test_program.py::test_what_a_dead_shim_left_is_removed"
    yield Faults(_SHIM + "files.py", left)(
        "the-living-are-removed", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"
    )
    cache = _PARTS + "shim/test_cache.py::"
    yield Faults(
        _SHIM + "room.py", cache + "test_what_was_not_used_for_the_longest_time_makes_room"
    )(
        "an-image-that-is-used-is-removed",
        "        if not lock(fd, fcntl.LOCK_EX):\n            return False\n",
        "",
    )
    yield Faults(_SHIM + "cache.py", cache + "test_nothing_is_left_of_one_that_does_not_come")(
        "half-an-image-is-published", "if words == [WHOLE] and", "if words and"
    )
