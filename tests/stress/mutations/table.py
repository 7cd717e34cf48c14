"""All deliberate faults. Pure."""

from collections.abc import Iterator

from tests.stress.mutations import client, networks, pools, security, shims
from tests.stress.mutations.mutation import Faults, Mutation

_SLURM = "supervisor/engines/slurm/"
_HERE = "tests/integration/"


def _all() -> Iterator[Mutation]:
    yield from _messages()
    yield from _allocation()
    yield from _doctor()
    yield from _paths()
    yield from _server()
    yield from _records()
    yield from _anchors()
    yield from _life()
    yield from shims.faults()
    yield from networks.faults()
    yield from security.faults()
    yield from pools.faults()
    yield from client.CLIENT
    yield from _plugins()


def _plugins() -> Iterator[Mutation]:
    tests = "tests/unit/supervisor/plugins/test_plugins.py"
    chosen = Faults("supervisor/plugins/choose.py", tests)
    yield chosen("an-engine-has-no-defaults", "if name not in AUTO:", "if name in AUTO:")
    yield chosen(
        "what-a-plugin-must-have-does-nothing",
        "or name in self.contract.__abstractmethods__:",
        "or False:",
    )
    yield chosen(
        "an-older-job-does-not-let-its-container-end",
        "return hasattr(self._own, _SAYS[name])",
        "return False",
    )
    yield chosen(
        "a-session-has-no-defaults",
        "return cast(Session, WholeSession(await self._own.session(program)))",
        "return cast(Session, await self._own.session(program))",
    )
    yield Faults("supervisor/contracts/engine.py", tests)(
        "who-deletes-a-container-without-hooks-keeps-its-job",
        "await self.release(job_id, child_env, record)",
        "pass",
    )


def _messages() -> Iterator[Mutation]:
    typed = Faults("scrun/core/typed.py", "tests/unit/scrun/core/test_typed.py")
    yield typed("types-are-learnt-at-once", "        with _learns:", "        if kind:")
    messages = "tests/unit/supervisor/engines/slurm/test_slurm_messages.py"
    grammar = Faults(_SLURM + "grammar.py", messages)
    yield grammar("part-of-a-line-counts", "pattern.fullmatch(line)", "pattern.search(line)")
    yield grammar(
        "what-a-plugin-says-counts",
        'f"{tool}: {pattern}", re.ASCII',
        'f"(?:{tool}: )?{pattern}", re.ASCII',
    )
    yield grammar(
        "a-job-that-is-over-is-an-error-of-scancel",
        'OVER = ("Job/step already completing or completed", "Invalid job id specified")',
        'OVER = ("Job/step already completing or completed", "Invalid job")',
    )
    state = Faults(_SLURM + "job_state.py", messages)
    yield state(
        "revoked-counts-more-than-refused",
        'return self.revoked and self.refusal in ("", *OVER)',
        "return self.revoked",
    )
    yield state(
        "another-jobs-end-counts",
        "return bool(self.job_id) and self.job_id in self._revoked",
        "return bool(self._revoked)",
    )
    yield state(
        "a-node-that-failed-is-a-cancelled-job",
        'self._failed_node = words["node"]',
        "pass",
    )
    yield state(
        "what-salloc-says-later-counts-more-than-the-job",
        "self.granted = self._certain = True",
        "self.granted = True",
    )
    yield state("a-refusal-is-not-the-end", "or bool(self.refusal)", "or False")


def _allocation() -> Iterator[Mutation]:
    hold = Faults(_SLURM + "allocation.py")
    yield hold(
        "the-job-ends-with-0-whatever-the-container-did",
        "status = _NOT_KNOWN if ending is None else ending.status",
        "status = 0",
        _HERE + "slurm/test_job_status.py::test_the_job_ends_as_its_container",
    )
    yield Faults(_SLURM + "allocation.py")(
        "a-killed-sallocs-job-is-forgotten",
        "await conversation.cancel_leftovers(salloc, began)",
        "pass",
        _HERE + "faults/test_salloc_killed.py::test_its_job_is_given_back",
    )
    yield hold(
        "a-jobs-loss-is-not-reported",
        "watching.start_soon(self.watch, salloc)",
        "pass",
        _HERE + "faults/test_taken_away.py::test_cancelled_from_outside",
    )
    yield hold(
        "a-pending-job-outlives-its-supervisor",
        "nursery.start_soon(self._cancel_with_supervisor, state.job_id)",
        "pass",
        _HERE + "faults/test_after_the_dead.py::test_a_pending_job_goes_with_its_supervisor",
    )
    pending = Faults(
        _SLURM + "pending.py", "tests/component/supervisor/engines/slurm/test_slurm_queue.py"
    )
    yield pending(
        "the-pause-between-two-squeue-does-not-grow",
        "self._pause = min(max(_SECOND_PAUSE, 2 * self._pause), _LAST_PAUSE)",
        "self._pause = _SECOND_PAUSE",
    )
    yield pending(
        "each-job-asks-for-itself",
        'asked, which = set(self._jobs), ["--me", "--all"]',
        'asked, which = {job_id}, ["--me", "--all"]',
    )
    yield pending("root-fetches-all-jobs-of-the-cluster", 'if real_id("uid") == 0:', "if False:")
    yield pending(
        "jobs-that-come-one-after-the-other-all-ask",
        "tokens = _ALONE if len(self._jobs) == 1 else _TOGETHER",
        "tokens = 1000",
    )
    yield pending(
        "a-slurmctld-that-limits-is-asked-on",
        "self._spared = trio.current_time() + _LAST_PAUSE",
        "pass",
    )
    yield pending(
        "another-users-answer-counts",
        "and status.st_uid == os.geteuid()",
        "",
    )
    yield pending("an-old-answer-counts", "time.time() - status.st_mtime < seconds", "1 < 2")
    yield pending(
        "another-clusters-answer-counts",
        'head = f"{command[0]} {self._tools.conf}\\n"',
        'head = ""',
    )
    yield pending("what-a-link-names-is-an-answer", "os.O_RDONLY | os.O_NOFOLLOW", "os.O_RDONLY")
    yield pending(
        "supervisors-keep-answers-for-themselves", 'if root and real_id("uid")', "if False"
    )
    yield pending(
        "what-did-not-fit-into-an-answer-is-missing", 'if answer[-1:] in ("", "\\n"):', "if True:"
    )
    said = Faults(
        _SLURM + "allocation.py",
        "tests/component/supervisor/engines/slurm/test_slurm_keepalive.py",
    )
    yield said("who-is-slowed-down-is-not-told", "self._request.on_waiting(news)", "pass")
    yield said(
        "why-a-queued-job-waits-is-forgotten",
        "if is_news and not (slowed and (state.is_queued or state.gone)):",
        "if is_news:",
    )
    yield Faults(
        "supervisor/containers/notices.py", "tests/unit/supervisor/containers/test_notices.py"
    )("each-moment-of-a-slowed-tool-is-told", "if not (slowed and self._slowed):", "if True:")
    yield pending(
        "a-first-word-that-is-hopeless-counts",
        "in_vain_since = now\n",
        "return waiting\n",
    )
    yield pending("what-it-waited-for-stays", "request.on_waiting(None)", "pass")
    signals = Faults(
        _SLURM + "signals.py", "tests/unit/supervisor/engines/slurm/test_slurm_signals.py"
    )
    yield signals("a-signal-is-not-tried-again-on-the-node", "_TRIES = 30", "_TRIES = 1")
    tools = Faults(
        _SLURM + "tools.py",
        "tests/unit/supervisor/engines/slurm/test_slurm_tools.py",
        _HERE
        + "slurm/test_job_status.py::test_options_of_slurms_tools_in_the_callers_environment",
    )
    for kind in ("SLURM_", "SALLOC_", "SBATCH_", "SRUN_"):
        yield tools(
            f"{kind.lower()}variables-of-the-caller-reach-slurm",
            f'"{kind}", ' if kind != "SLURM_" else '("SLURM_", ',
            "" if kind != "SLURM_" else "(",
        )


def _doctor() -> Iterator[Mutation]:
    room = Faults(
        "supervisor/programs/doctor/capacity.py",
        "tests/unit/supervisor/programs/doctor/test_doctor_capacity.py",
    )
    yield room("the-last-wall-is-the-first", "wall = walls(host)[0]", "wall = walls(host)[-1]")
    yield room("ports-in-use-are-free", "last - first + 1 - host.listening", "last - first + 1")
    yield room("connections-take-ports", 'for row in rows if row[3] == "0A"', "for row in rows")
    yield room("every-site-limits", 'if "rl_enable" not in words:', "if not words:")


def _paths() -> Iterator[Mutation]:
    paths = Faults("scrun/core/paths.py", "tests/component/scrun/core/test_replaceable.py")
    yield paths(
        "owners-on-the-way-do-not-matter",
        "if uid not in owners and not _is_outer_root(status, above):",
        "if False:",
    )
    yield paths("everybody-may-write", "if mode & stat.S_IWOTH:", "if False:")
    yield paths(
        "groups-may-write",
        "if mode & stat.S_IWGRP and not _is_private(path, status.st_gid):",
        "if False:",
    )
    yield paths(
        "links-are-not-followed",
        'todo += target.split("/")[::-1]',
        "todo += []",
    )
    yield paths(
        "nobody-is-root-everywhere",
        "return above.st_uid == _NOBODY or above.st_dev != status.st_dev",
        "return True",
    )
    yield paths(
        "a-file-that-was-replaced-while-it-was-read",
        "if (now.st_ino, now.st_dev) != (status.st_ino, status.st_dev):",
        "if False:",
    )
    yield paths("a-fifo-is-waited-for", "posix.O_RDONLY | posix.O_NONBLOCK", "posix.O_RDONLY")


def _server() -> Iterator[Mutation]:
    server = Faults("supervisor/daemon/server.py")
    requests = Faults("supervisor/daemon/requests.py")
    calls = "tests/component/supervisor/daemon/test_server.py::"
    yield server(
        "half-a-request-is-waited-for",
        "_REQUEST_DEADLINE = 10.0",
        "_REQUEST_DEADLINE = 3600.0",
        calls + "test_half_a_request_is_not_waited_for",
    )
    yield requests(
        "everybody-may-call",
        "return uid in (0, os.geteuid())",
        "return True",
        calls + "test_another_user_gets_nothing",
    )
    yield requests(
        "root-may-not-call",
        "return uid in (0, os.geteuid())",
        "return uid == os.geteuid()",
        calls + "test_root_may_call_everybody",
    )
    yield requests(
        "a-request-of-any-length",
        "if length > wire.LIMIT:",
        "if False:",
        calls + "test_a_frame_that_is_too_long_is_not_waited_for",
    )
    yield requests(
        "any-number-of-descriptors",
        "or len(fds) > MOST:",
        "or False:",
        calls + "test_descriptors_beside_every_part_of_a_request",
    )
    yield server(
        "descriptors-are-kept",
        "os.close(fd)\n            self._busy",
        "pass\n            self._busy",
        calls + "test_descriptors_beside_other_requests",
    )
    yield server(
        "the-socket-stays",
        "os.unlink(self._path)",
        "pass",
        calls + "test_goes_when_it_is_idle",
    )
    yield server(
        "the-lock-stays",
        "(OSError):\n                os.unlink(path)",
        "(OSError):\n                pass",
        calls + "test_leaves_nothing_when_it_is_told_to_go",
    )
    yield server(
        "a-fault-in-a-connection-is-everybodys",
        'except Exception as error:\n            fault("a connection", error)',
        'except ZeroDivisionError as error:\n            fault("a connection", error)',
        "tests/component/supervisor/log/test_own_log.py::test_a_fault_in_a_connection_is_its_own",
    )
    yield server(
        "sigterm-does-not-wait-for-what-is-undone",
        "await (self._containers.leave() if leave else self._containers.end_all())",
        "pass",
        _HERE + "faults/test_stopping.py::test_it_waits_for_what_is_undone",
    )
    yield server(
        "sigterm-waits-for-ever",
        "with trio.move_on_after(self._stop_timeout) as patience:",
        "with trio.CancelScope() as patience:",
        _HERE + "faults/test_stopping.py::test_what_is_not_undone_then_is_left_to_the_next_one",
    )


def _records() -> Iterator[Mutation]:
    records = Faults(
        "supervisor/containers/records.py",
        "tests/component/supervisor/daemon/test_server.py::test_removes_what_others_left_that_were_killed",
    )
    yield records(
        "what-is-mounted-is-removed",
        "remove(folder, name, os.fstat(folder).st_dev)",
        "__import__('shutil').rmtree(os.path.join(root, name))",
        "tests/component/supervisor/containers/test_removal.py",
    )
    yield records(
        "sockets-of-the-dead-stay",
        "_remove_if_dead(root, name)\n        except",
        "pass\n        except",
    )
    yield records(
        "sockets-of-the-living-go",
        "wire.connect(root, name).close()\n        except wire.NOBODY:",
        "raise FileNotFoundError\n        except wire.NOBODY:",
    )
    ownership = Faults(
        "supervisor/core/ownership.py",
        "tests/component/supervisor/containers/test_ownership.py",
        _HERE + "faults/test_stopping.py::test_nobody_undoes_what_another_one_is_undoing",
    )
    yield ownership(
        "two-own-a-record",
        "fcntl.LOCK_EX | fcntl.LOCK_NB)\n        fcntl.flock(lock, fcntl.LOCK_EX",
        "fcntl.LOCK_SH | fcntl.LOCK_NB)\n        fcntl.flock(lock, fcntl.LOCK_SH",
    )
    orphans = Faults("supervisor/containers/orphans.py")
    yield orphans(
        "an-orphans-job-is-not-cancelled",
        "await engine.release(record.job_id, ChildEnv(environment), directory)",
        "pass",
        _HERE + "faults/test_after_the_dead.py::test_delete_cancels_the_job",
    )
    yield orphans(
        "delete-forgets-an-orphans-job",
        "await undo(directory, engines, stagers, deleting=True, deleter=deleter)",
        "pass",
        _HERE + "faults/test_stopping.py::test_it_ends_in_time_while_slurm_does_not_answer",
    )
    yield orphans(
        "any-word-is-a-job",
        'if not re.fullmatch("[0-9]{1,10}", record.job_id)',
        "if False",
        "tests/unit/scrun/model/test_bad_records.py",
        _HERE + "faults/test_bad_input.py::test_a_record_whose_job_is_none",
    )
    yield orphans(
        "any-directory-is-a-record",
        'if not os.path.islink(os.path.join(directory, "supervisor")):',
        "if False:",
        _HERE + "faults/test_paths.py::test_only_records_are_removed",
    )


def _anchors() -> Iterator[Mutation]:
    scenario = _HERE + "commands/test_scenario.py::"
    anchors = Faults("supervisor/containers/anchors.py", "tests/unit/stress/test_fuzz_streams.py")
    yield anchors(
        "an-anchors-death-ends-nothing",
        'container.end(killed(signal.SIGKILL, "the anchor was killed"))',
        "pass",
        _HERE + "faults/test_paths.py::test_root_directory_is_removed",
    )
    yield anchors(
        "who-ignores-term-goes-on",
        "await trio.sleep_until(over)",
        "await trio.sleep_forever()",
        scenario + "test_signals_that_end_the_anchor_end_the_container",
    )
    yield anchors(
        "a-second-term-is-no-other",
        "again=end_requested",
        "again=False",
        scenario + "test_a_second_signal_to_the_anchor_is_not_waited_for",
    )
    yield Faults(_SLURM + "job.py")(
        "whom-slurm-tells-has-no-time-to-end",
        "lets_end = True",
        "lets_end = False",
        _HERE + "slurm/test_slurm_signals.py::test_cancelled",
    )
    tasks = "tests/integration/slurm/test_slurm_signals_of_tasks.py::"
    yield anchors(
        "what-handles-a-signal-ends-in-a-step-too",
        "not (container.in_step and await container.handles(number))",
        "True",
        tasks + "test_they_go_on_after_signals_that_they_handle",
    )
    yield anchors(
        "slurm-tells-twice",
        "elif container.in_step and is_repeated(number):",
        "elif False:",
        tasks + "test_they_are_told_once_of_their_end",
    )
    yield anchors(
        "signals-go-nowhere",
        "await container.kill(number)",
        "pass",
        scenario + "test_signals_to_the_anchor_are_passed_on",
    )
    yield anchors(
        "any-word-is-a-signal",
        "return [known[text] for text in texts if text in known], rest[-_LINE:]",
        "return [known[text] for text in texts], rest[-_LINE:]",
    )
    yield anchors("half-a-line-grows", "rest[-_LINE:]", "rest")


def _life() -> Iterator[Mutation]:
    scenario = _HERE + "commands/test_scenario.py::"
    waiting = _HERE + "slurm/test_waiting.py::"
    phases = Faults("supervisor/containers/phases.py")
    creation = Faults("supervisor/containers/creation.py")
    tree = Faults("supervisor/containers/tree.py")
    yield phases(
        "the-last-reason-counts",
        "if self._ending is None:\n            self._ending = ending\n            if ending.text:",
        "if True:\n            self._ending = ending\n            if ending.text:",
        _HERE + "faults/test_stopping.py::test_it_keeps_its_name_until_everything_is_undone",
    )
    yield phases(
        "an-end-cancels-nothing",
        "self.become(Phase.STOPPING)\n        self._scope.cancel()",
        "self.become(Phase.STOPPING)",
        scenario + "test_delete_running",
    )
    yield phases(
        "an-end-is-no-transition",
        "else:\n            self.become(Phase.STOPPING)\n        self._scope",
        "else:\n            pass\n        self._scope",
        _HERE + "faults/test_stopping.py::test_it_keeps_its_name_until_everything_is_undone",
    )
    yield phases(
        "the-anchor-is-not-informed",
        "self._anchor.end(ending.status)",
        "pass",
        scenario + "test_exit_status",
    )
    yield creation(
        "create-waits-for-its-job",
        "if container.phase is Phase.CREATING and not (container.ending or self.making):",
        "if False:",
        waiting + "test_it_is_started_when_its_job_is_there",
    )
    yield creation(
        "create-does-not-wait-at-all",
        "with trio.move_on_after(self._create_request.settings.create_timeout):",
        "with trio.move_on_after(0):",
        waiting + "test_a_patient_create_waits",
    )
    yield phases(
        "what-the-job-is-is-not-on-disk",
        "self._ledger.job_is_known(job_id, owned)",
        "pass",
        _HERE + "faults/test_stopping.py::test_it_ends_in_time_while_slurm_does_not_answer",
    )
    yield phases(
        "staging-that-failed-is-a-success",
        'status = self._ending.status or TAKEN["scrun-failure"]',
        "status = self._ending.status",
        _HERE + "staging/test_lua_staging.py::test_a_stage_out_that_fails_is_no_success",
    )
    left = _HERE + "faults/test_what_is_left.py::"
    yield tree(
        "a-job-that-could-not-be-given-back-is-forgotten",
        "keep_what_is_left(job=self._job_may_be_left)",
        "keep_what_is_left(job=False)",
        left + "test_a_job_that_no_process_could_give_back",
    )
    yield phases(
        "a-job-is-forgotten-when-no-process-can-be-started",
        "self._job_may_be_left = True",
        "self._job_may_be_left = False",
        left + "test_a_job_that_no_process_could_give_back",
    )
    ledger = Faults(
        "supervisor/containers/ledger.py",
        "tests/unit/supervisor/containers/test_ledger.py::test_what_may_be_left_is_kept",
    )
    yield ledger(
        "the-job-of-somebody-else-is-left",
        "owns_job=record.owns_job and (job",
        "owns_job=(job",
    )
    yield ledger(
        "a-staged-bundle-that-is-there-is-forgotten",
        "staged=record.staged if there else",
        "staged=",
        left + "test_a_staged_bundle_that_could_not_be_removed",
    )
    yield ledger(
        "who-has-staged-is-forgotten",
        'stager=record.stager if there or record.moved else ""',
        'stager=record.stager if there else ""',
    )
    yield Faults("supervisor/engines/local/engine.py")(
        "what-the-runtime-knows-stays-when-its-keepalive-is-killed",
        "if lost.is_set() and (job is None or not job.stays):",
        "if False:",
        left + "test_a_job_whose_keepalive_is_killed",
    )
    yield Faults("supervisor/engines/local/site_job.py")(
        "a-signal-does-not-wait-for-run-time-start",
        "await self._first.begun.wait()",
        "pass",
        _HERE + "faults/test_outlived.py::test_a_signal_waits_for_the_start",
    )


MUTATIONS: tuple[Mutation, ...] = tuple(_all())
