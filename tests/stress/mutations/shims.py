"""Deliberate faults of the shim, and of the supervisor's end of its connection. Pure."""

from collections.abc import Iterator

from tests.stress.mutations.mutation import Faults, Mutation

_SHIM = "supervisor/shim/"
_WIRE = "supervisor/wire/"
_NODES = "supervisor/nodes/"
_PARTS = "tests/component/supervisor/"


def faults() -> Iterator[Mutation]:
    yield from _connection()
    yield from _seals()
    yield from _streams()
    yield from _containers()
    yield from _files()
    yield from _tasks()
    yield from _copying()
    yield from _live_files()
    yield from _races()
    yield from _usage()


def _usage() -> Iterator[Mutation]:
    tests = _PARTS + "shim/test_usage.py"
    usage = Faults(_SHIM + "usage.py", tests)
    yield usage("of-several-programs-the-smallest-counts", "max(part[", "min(part[")
    yield usage(
        "any-control-group-is-a-container-s-own", "items() if path not in shared", "items()"
    )
    yield Faults(_SHIM + "usage.py", "tests/unit/supervisor/shim/test_usage.py")(
        "any-control-group-is-a-step-s", "if _STEP in path", "if path"
    )
    yield Faults(_SHIM + "containers.py", tests)(
        "a-step-s-memory-is-its-last-container-s", "if self.made == 1:", "if True:"
    )
    yield Faults(_SHIM + "containers.py", tests)(
        "an-exec-has-used-nothing", "container.spent.append(", "target.spent.append("
    )
    stats = Faults("scrun/commands/stats.py", "tests/unit/scrun/commands/test_stats.py")
    yield stats(
        "processor-time-that-is-gone-was-given-back", "max(0.0, now.cpu", "min(0.0, now.cpu"
    )
    yield stats("a-node-that-has-booted-has-a-rate", "if passed > 0", "if passed")
    efficiency = Faults("scrun/model/efficiency.py", "tests/unit/scrun/model/test_efficiency.py")
    yield efficiency(
        "who-has-no-usage-has-used-nothing",
        'for row in found if row["cpu_percent"] is not None]',
        "for row in found]",
    )
    yield efficiency("the-largest-process-is-all", "not least and ", "")
    yield efficiency("a-clock-asks-for-a-processor", "/ _NOISE", "/ 1")
    report = Faults("scrun/commands/report.py", "tests/unit/scrun/commands/test_report.py")
    yield report("a-wait-before-it-began", "or end < begin", "")
    yield report("an-odd-line-ends-the-report", "RecursionError, UnicodeError", "UnicodeError")
    yield report(
        "the-audit-counts-more", 'row["container"], row["created"]] =', 'row["container"], ""] ='
    )
    yield Faults("supervisor/sessions/inspection.py", "tests/unit/supervisor/sessions")(
        "the-last-node-s-clock-counts", "uptimes[0]", "uptimes[-1]"
    )
    yield Faults("scrun/model/usage.py", "tests/unit/scrun/model/test_usage.py")(
        "what-is-not-known-of-a-task-is-zero", "or len(known) < len(found)", ""
    )


def _copying() -> Iterator[Mutation]:
    tests = "tests/integration/commands/test_cp.py::"
    copying = Faults(_SHIM + "copying.py")
    yield copying(
        "a-copy-follows-links",
        "_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC",
        "tests/component/supervisor/shim/test_copying.py::test_nothing_goes_through_a_link",
    )
    yield copying(
        "a-copy-is-of-the-node",
        "            enter_files(pid)",
        "            pass",
        tests + "test_a_tree",
    )
    yield copying(
        "a-copy-gives-its-caller-the-owner-s-rights",
        "_PERMISSIONS, _OF_FOLDERS = 0o777, 0o1777",
        "_PERMISSIONS, _OF_FOLDERS = 0o7777, 0o7777",
        tests + "test_a_tree",
    )
    yield copying(
        "a-copy-that-is-cut-off-stays",
        "                self._remove(new)\n                raise\n            break",
        "                raise\n            break",
        tests + "test_a_container_that_ends_meanwhile",
    )
    yield copying(
        "a-copy-replaces-a-device",
        "self._check_replaceable(name)",
        "pass",
        "tests/component/supervisor/shim/test_copying.py::test_a_device_stays",
    )
    yield copying(
        "a-damaged-archive-is-complete",
        "        except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError):",
        "        except ZeroDivisionError:",
        "tests/component/supervisor/shim/test_copying.py::test_damage_is_not_the_end",
    )
    yield copying(
        "a-name-in-an-archive-leads-out",
        'if name.startswith("/") or ".." in parts or "\\0" in name:',
        "if False:",
        "tests/component/supervisor/shim/test_copying.py",
    )
    yield Faults("supervisor/nodes/connection.py")(
        "an-archive-into-a-container-never-comes",
        'begins = verb in ("create", "exec", "copy", "files")',
        'begins = verb in ("create", "exec", "files")',
        tests + "test_a_tree",
    )


def _live_files() -> Iterator[Mutation]:
    tests = _PARTS + "shim/test_live_files.py"
    served = Faults(_SHIM + "live_files.py", tests)
    yield served(
        "a-link-is-followed-to-another-directory",
        "_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW",
        "_FOLDER = os.O_PATH | os.O_DIRECTORY",
    )
    asked = Faults(_SHIM + "asked_files.py", tests)
    yield asked("a-fifo-is-read", "if not stat.S_ISREG(os.fstat(fd).st_mode):", "if False:")
    yield asked(
        "a-name-may-be-a-path", 'if name in (b"", b".", b"..") or b"/" in name:', "if False:"
    )
    yield served("a-name-is-for-ever-one-file", "file.seen != seen and number != PROC", "False")
    yield served("numbers-of-a-dead-program-count", 'os.urandom(4), "little")', 'b"", "little")')
    with_kernel = _PARTS + "containers/test_live_files.py"
    yield served("room-is-kept", "if handle.has_room:", "if False:", with_kernel)
    yield served("forgotten-files-are-kept", "            del self._files[number]\n", "")
    relay = Faults("supervisor/containers/live_files.py", with_kernel)
    yield relay(
        "who-asks-a-stopped-shim-waits",
        "                self._fail_all()\n                self._tell()",
        "                self._tell()",
    )
    yield relay("a-node-undoes-a-mount-here", "or _is_proc(code, number, request):", "or False:")
    yield relay(
        "a-list-undoes-a-mount-here",
        "            _FILE.pack_into(answer, at, 0)\n",
        "            pass\n",
    )
    yield relay("an-error-may-be-none", "return -_ERRORS < error < 0 and", "return")
    yield relay("words-count-for-ever", "+ _QUIET, since + _LONGEST)", "+ _QUIET, float('inf'))")
    yield relay("files-are-programs", " | ns.NO_PROGRAMS", "")
    yield relay("no-program-ends", "_IDLE if idle else", "float('inf') if idle else")


def _races() -> Iterator[Mutation]:
    tests = "tests/component/supervisor/shim/test_containers.py::"
    making = Faults(_SHIM + "making.py")
    yield making(
        "exec-does-not-wait-until-it-may-enter",
        "if self._delay(call, reply, _namespaces_of(container), self.exec):",
        "if False:",
        tests + "test_exec_in_one_that_nobody_may_enter_yet",
    )
    yield making(
        "a-mount-point-of-another-task-is-an-error",
        "if status and again and has_raced(target.place):",
        "if False:",
        tests + "test_another_task_makes_a_mount_point",
    )
    yield making(
        "words-of-a-call-that-is-made-again-are-the-program-s",
        "target.stdio.words()  # else they are the program's",
        "pass",
        tests + "test_another_task_makes_a_mount_point",
    )


def _connection() -> Iterator[Mutation]:
    frames = Faults(_WIRE + "seals.py", "tests/unit/supervisor/wire/test_frames.py")
    yield frames("a-frame-of-any-length", "if length > self._longest(kind):", "if False:")
    beginning = _PARTS + "shim/test_beginning.py::"
    yield Faults(_SHIM + "dial.py", beginning + "test_somebody_without_the_secret")(
        "a-supervisor-need-not-know-the-secret",
        "if not compare_digest(",
        "if False and not compare_digest(",
    )
    yield from _door()
    yield from _lies()
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


def _door() -> Iterator[Mutation]:
    door = Faults(_SHIM + "door.py", _PARTS + "shim/test_door.py")
    yield door(
        "a-proof-is-not-compared", "if not compare_digest(", "if False and not compare_digest("
    )
    yield door("anything-is-a-knock", "if not self._is_knock(said) or", "if")
    yield door("a-knock-may-be-copied", " or said in self._seen:", ":")
    yield door("500-s-to-knock", "TO_KNOCK = 1.0", "TO_KNOCK = 500.0")
    yield door("500-s-to-prove", "TO_PROVE = 5.0", "TO_PROVE = 500.0")
    yield door("who-is-late-stays", "if one.until <= now]", "if False]")
    yield door(
        "any-number-is-unproved",
        "if len(self._unknown()) > self._most:",
        "if False:",
    )
    yield door("who-has-knocked-makes-room", "if not visitor.is_known]", "]")
    yield door("the-newest-goes", "self._send_away(unknown[:1])", "self._send_away(unknown[-1:])")
    yield door(
        "out-of-descriptors-is-told-all-the-time",
        "self._epoll.modify(self._listener.fileno(), 0)",
        "pass",
    )
    yield door("strangers-have-no-name", 'else f"user {user}"', "else host")
    yield door("names-without-end", "and len(self._names) >= _MOST_NAMES", "and False")
    yield door("a-shims-own-attempts-are-strangers", "_FORGIVEN = 4", "_FORGIVEN = 0")
    yield Faults(_SHIM + "dial.py", _PARTS + "shim/test_door.py")(
        "who-is-turned-away-gives-up", "again.append((", "list(("
    )
    yield Faults(_NODES + "beginning.py", _PARTS + "nodes/test_dialing.py")(
        "strangers-keep-a-node-away", " and nobody_else:", ":"
    )


def _lies() -> Iterator[Mutation]:
    lies = _PARTS + "nodes/test_lying_nodes.py"
    connection = Faults(_NODES + "connection.py", lies)
    yield connection("any-status-is-an-end", "if not is_end(ended.status):", "if False:")
    yield connection(
        "ends-of-unknown-targets-are-kept", "if waiting is None or waiting.came:", "if False:"
    )
    yield connection("the-last-answer-counts", "        if self.came:\n            return\n", "")
    yield connection("replies-of-any-length", "if len(payload) > waiting.longest:", "if False:")
    messages = Faults(_NODES + "messages.py", lies)
    yield messages("any-signal-number-ends", " and signal <= _LAST_SIGNAL", "")
    yield messages("statuses-below-0", "return 0 <= status <= 0xFF00 and", "return")
    yield messages(
        "every-reply-is-a-scripts", "REPLY: LONGEST if script else LONGEST_REPLY", "REPLY: LONGEST"
    )
    yield messages("events-of-any-length", "EVENT: LONGEST_EVENT", "EVENT: LONGEST")
    yield messages("as-much-credit-as-it-says", "ge=0, le=WINDOW", "ge=0")
    yield messages("any-number-of-lives", "ge=1, le=_MOST_TIMES", "ge=1")
    yield messages("words-without-end", "msgspec.Meta(max_length=4096)", "msgspec.Meta()")
    yield Faults(_NODES + "streams.py", lies)(
        "credit-without-end", "if self._allowed + count > WINDOW:", "if False:"
    )
    yield Faults(_NODES + "counted.py", lies)(
        "input-from-anywhere", "min(max(position, done - self._size, 0), done)", "position"
    )
    calls = _PARTS + "shim/test_any_calls.py::test_what_is_no_call_ends_it"
    link = Faults(_SHIM + "link.py", calls)
    yield link(
        "nonsense-is-a-traceback", "except BrokenFrame as error:", "except KeyError as error:"
    )
    yield link("nonsense-is-an-end", "self.is_nonsense = True", "pass")
    yield Faults(_SHIM + "json_text.py", "tests/unit/supervisor/shim/test_json_text.py")(
        "deep-json-is-a-traceback",
        "    except RecursionError:\n        raise ValueError",
        "    except KeyError:\n        raise ValueError",
    )
    yield Faults("scrun/core/rights.py", "tests/unit/scrun/core/test_ready.py")(
        "a-second-descriptor-comes", "_socket.CMSG_LEN(most * 4)", "_socket.CMSG_SPACE(most * 4)"
    )
    plan = Faults("supervisor/staging/ways.py", "tests/unit/supervisor/staging/test_ways.py")
    yield plan("others-files-are-on-the-node", "not (root.rootless and root.owners)", "True")
    yield plan("the-runtime-mounts-first", "return found + [(", "return found[:0] + [(")
    yield plan(
        "a-refused-mount-is-tried-again", "return (way.how, way.on_node) != (", "return () != ("
    )
    yield plan(
        "a-store-is-sought-twice", 'return tried.source == "there" != way.source', "return True"
    )
    yield plan("images-are-sent-in-vain", 'way.source == "sent" != tried.source', "True")
    yield Faults(
        "supervisor/staging/overlaid.py",
        "tests/component/supervisor/staging/test_on_node.py::test_a_node_keeps_nothing_of_an_attempt",
    )("a-node-keeps-an-attempt", "if made := [place", "if made := [0 and place")
    own = "tests/component/supervisor/staging/test_stored.py::"
    copies = Faults(
        "supervisor/staging/copies.py", own + "test_names_of_one_file_in_its_own_layer"
    )
    yield copies("names-of-one-file-are-copies", "if known is None:", "if True:")
    yield copies(
        "a-link-to-what-is-not-the-file", "_Linked(path, status", '_Linked(b"folder", status'
    )
    yield copies(
        "what-is-too-much-to-copy-is-copied",
        "        self._entries -= 1\n",
        "",
        "tests/component/supervisor/staging/test_plain.py",
    )
    policy = "tests/unit/supervisor/staging/test_staging_policy.py"
    yield Faults("supervisor/staging/policy.py", policy)(
        "an-image-gives-the-runtime-orders", "and name not in PASSED:", "and name in PASSED:"
    )
    yield Faults("supervisor/staging/policy.py", policy)(
        "groups-that-are-not-mapped-stay", "(there if is_there(group) else lost)", "there"
    )
    yield Faults("supervisor/staging/mounts.py", policy)(
        "a-copy-for-each-mount", "whole = next(above, volume)", "pass"
    )
    caller = "tests/component/supervisor/containers/test_caller.py"
    yield Faults("supervisor/containers/caller.py", caller)(
        "a-callers-line-without-end", "if len(rest) > _LONGEST_LINE:", "if False:"
    )


def _seals() -> Iterator[Mutation]:
    unit = "tests/unit/supervisor/shim/"
    seals = Faults(_WIRE + "seals.py", "tests/unit/supervisor/wire/test_seals.py")
    yield seals(
        "a-header-need-not-be-right",
        "        if not compare_digest(self._tag(self._heads",
        "        if False and not compare_digest(self._tag(self._heads",
    )
    yield seals(
        "a-payload-need-not-be-right", "        if tail and not", "        if False and not"
    )
    yield seals(
        "frames-have-no-numbers",
        "state.update(_NUMBER.pack(self._number))",
        "state.update(_NUMBER.pack(0))",
    )
    yield seals("both-directions-have-one-key", 'who + b"\'s frames"', 'b"frames"')
    yield seals("connections-have-one-key", "'s frames\", both)", '\'s frames", b"")')
    yield seals(
        "bytes-of-streams-have-no-tag",
        "(self._streams or kind != DATA)",
        "kind != DATA",
        _PARTS + "nodes/test_relay.py",
    )
    yield seals(
        "a-part-of-a-frame-is-passed-on",
        "self._in_parts and not tail:",
        "self._in_parts:",
    )
    link = Faults(_SHIM + "link.py", unit + "test_link.py")
    yield link(
        "a-shims-last-frame-may-be-left-out", "            self._put(QUIET)", "            pass"
    )
    yield link("a-shim-waits-for-the-rest-of-a-frame", "self._refuse(NO_REST)", "pass")
    ours = Faults(_NODES + "link.py", _PARTS + "nodes/test_link.py")
    yield ours(
        "a-supervisors-last-frame-may-be-left-out",
        "            self.put(QUIET)",
        "            pass",
    )
    yield ours(
        "silence-is-shown-again-and-again",
        "if self._is_shown or not quiet:",
        "if not quiet:",
    )
    yield ours(
        "a-supervisor-waits-for-the-rest-of-a-frame",
        "if not self._used.quiet or not reader.is_within:",
        "if True:",
    )
    beginning = _PARTS + "shim/test_beginning.py::"
    yield Faults(_SHIM + "arrival.py", beginning + "test_other_code_over_srun")(
        "any-code-is-run", 'if sum_of(code) not in call["code"]:', "if False:"
    )
    yield Faults(_SHIM + "courier.py", _PARTS + "shim/test_cache.py")(
        "another-image-is-published",
        "if self._came.hexdigest() != self._expected:",
        "if False:",
    )
    yield Faults(_SHIM + "main.py", beginning + "test_what_is_forged_is_told_over_srun")(
        "what-is-forged-is-not-told", "self._direct.is_nonsense:", "False:"
    )
    yield Faults(_NODES + "resumed.py", _PARTS + "nodes/test_resumed.py")(
        "nobody-seals-what-is-adopted",
        "seals = sealing if is_new else None",
        "seals = None",
    )
    sessions = Faults(
        "supervisor/engines/slurm/shim_session.py",
        _PARTS + "engines/slurm/test_shim_session.py",
    )
    yield sessions(
        "a-program-that-cannot-be-run-ends-its-exec-in-a-fault",
        "except NotMade as error:",
        "except ShimLost as error:",
    )
    yield sessions(
        "streams-that-were-left-get-other-numbers",
        "child_env, journal, ends, fields",
        "child_env, journal, ends",
    )
    yield sessions(
        "an-adopted-exec-gets-no-signals",
        """            running()
            yield streams
""",
        """            yield streams
""",
    )
    left = Faults(
        _NODES + "restartable_streams.py", _PARTS + "nodes/test_counted_sink.py::test_a_file"
    )
    yield left("an-output-that-was-left-is-opened-anew", "if name in self._sinks:", "if False:")
    yield left("what-was-left-is-kept-no-further", "keeping.share({name: fd", "print({name: fd")


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
    yield Faults(_NODES + "streams.py", _PARTS + "nodes/test_streams.py::test_too_much")(
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
        _SHIM + "cache.py", cache + "test_what_was_not_used_for_the_longest_time_makes_room"
    )(
        "an-image-that-is-used-is-removed",
        "        if not _lock(fd, fcntl.LOCK_EX):\n            return False\n",
        "",
    )
    yield Faults(_SHIM + "cache.py", cache + "test_nothing_is_left_of_one_that_does_not_come")(
        "half-an-image-is-published",
        'why = "".join(words) or',
        'self._complete()\n                why = "".join(words) or',
    )


def _tasks() -> Iterator[Mutation]:
    slurm = "supervisor/engines/slurm/"
    step = Faults(slurm + "shim_step.py", _PARTS + "engines/slurm/test_ranks_step.py")
    yield step(
        "a-node-that-cannot-connect-to-us-is-not-noticed",
        "return any(UNREACHED in words for words in self._words)",
        "return False",
    )
    yield step(
        "one-task-that-was-told-to-end-stands-for-all",
        "all(rank.is_dismissed for rank in self._ranks)",
        "any(rank.is_dismissed for rank in self._ranks)",
    )
    yield step(
        "a-task-that-ends-before-all-are-there-is-not-noticed",
        "if not self._ranks and (state.missing < self._tasks or state.launch_failed):",
        "if False:",
    )
    yield Faults(slurm + "launching.py", "tests/unit/supervisor/engines/slurm/test_launch.py")(
        "no-shim-is-waited-for", 'self._asked == "shim" or nodes in self._with)', "True)"
    )
    yield Faults("supervisor/core/nurseries.py", _PARTS + "core/test_nurseries.py")(
        "one-that-fails-cancels-the-others", "if cancels:", "if True:"
    )
    yield Faults(
        slurm + "shim_job.py",
        "tests/integration/slurm/test_nodes.py::test_the_highest_status_counts",
    )("the-lowest-status-of-several-tasks-counts", "max(statuses, ", "min(statuses, ")
