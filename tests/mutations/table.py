"""All deliberate faults. Pure."""

from collections.abc import Iterator

from tests.mutations.mutation import Mutation

_SLURM = "supervisor/engines/slurm/"


def _in(file: str, *tests: str) -> "_File":
    return _File(file, tests)


class _File:
    """Faults of one module that the same tests have to notice."""

    def __init__(self, file: str, tests: tuple[str, ...]) -> None:
        self._file = file
        self._tests = tests

    def __call__(self, name: str, old: str, new: str, *tests: str) -> Mutation:
        return Mutation(name, self._file, old, new, tests or self._tests)


def _all() -> Iterator[Mutation]:
    yield from _messages()
    yield from _allocation()
    yield from _paths()
    yield from _server()
    yield from _records()
    yield from _anchors()
    yield from _life()


def _messages() -> Iterator[Mutation]:
    said = "tests/unit/test_slurm_messages.py"
    grammar = _in(_SLURM + "grammar.py", said)
    yield grammar("part-of-a-line-counts", "pattern.fullmatch(line)", "pattern.search(line)")
    yield grammar(
        "what-a-plugin-says-counts",
        'f"{_tool}: {_level}(?:{_pattern})", re.ASCII',
        'f"(?:{_tool}: )?(?:{_level})(?:{_pattern})", re.ASCII',
    )
    yield grammar(
        "a-job-that-is-over-is-an-error-of-scancel",
        'OVER = ("Job/step already completing or completed", "Invalid job id specified")',
        'OVER = ("Job/step already completing or completed", "Invalid job")',
    )
    heard = _in(_SLURM + "messages.py", said)
    yield heard(
        "revoked-counts-more-than-refused",
        'return self.revoked and self.refusal in ("", *OVER)',
        "return self.revoked",
    )
    yield heard(
        "another-jobs-end-counts",
        "return bool(self.job_id) and self.job_id in self._revoked",
        "return bool(self._revoked)",
    )
    yield heard(
        "a-node-that-failed-is-a-cancelled-job",
        'self._failed_node = words["node"]',
        "pass",
    )
    yield heard(
        "what-salloc-says-later-counts-more-than-the-job",
        "self.granted = self._certain = True",
        "self.granted = True",
    )
    yield heard("a-refusal-is-not-the-end", "or bool(self.refusal)", "or False")


def _allocation() -> Iterator[Mutation]:
    status = "tests/integration/test_job_status.py"
    hold = _in(_SLURM + "allocation.py", status)
    yield hold(
        "the-job-ends-with-0-whatever-the-container-did",
        "status = _NOT_KNOWN if ending is None else ending.status",
        "status = 0",
    )
    yield hold(
        "a-killed-sallocs-job-is-forgotten",
        "await allocation.make_sure(salloc, began)",
        "pass",
        "tests/integration/test_salloc_killed.py",
    )
    yield hold(
        "a-jobs-loss-is-not-told",
        "watching.start_soon(allocation.watch, salloc)",
        "pass",
        "tests/integration/test_taken_away.py::test_cancelled_from_outside",
    )
    yield hold(
        "a-pending-job-outlives-its-supervisor",
        "nursery.start_soon(self._end_with_us, heard.job_id)",
        "pass",
        "tests/integration/test_scenario.py",
        "-k",
        "pending and slurm-user",
    )
    pending = _in(_SLURM + "pending.py", "tests/component/test_slurm_queue.py")
    yield pending(
        "the-pause-between-two-squeue-does-not-grow",
        "self._pause = min(max(_SECOND_PAUSE, 2 * self._pause), _LAST_PAUSE)",
        "self._pause = _SECOND_PAUSE",
    )
    yield pending(
        "each-job-asks-for-itself",
        'some = ",".join(jobs[first : first + _AT_ONCE])',
        "some = jobs[first]",
    )
    yield pending(
        "a-first-word-that-is-hopeless-counts",
        "in_vain_since = now\n",
        "return waiting\n",
    )
    yield pending("what-it-waited-for-stays", "request.waiting(None)", "pass")
    tools = _in(_SLURM + "tools.py", status)
    for kind in ("SLURM_", "SALLOC_", "SBATCH_", "SRUN_"):
        yield tools(
            f"{kind.lower()}variables-of-the-caller-reach-slurm",
            f'"{kind}", ' if kind != "SLURM_" else '("SLURM_", ',
            "" if kind != "SLURM_" else "(",
        )


def _paths() -> Iterator[Mutation]:
    paths = _in("scrun/paths.py", "tests/component/test_replaceable.py")
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
        "if not os.path.samestat(status, os.stat(path)):",
        "if False:",
    )
    yield paths("a-fifo-is-waited-for", "os.O_RDONLY | os.O_NONBLOCK", "os.O_RDONLY")


def _server() -> Iterator[Mutation]:
    server = _in("supervisor/server.py", "tests/component/test_server.py")
    yield server(
        "half-a-request-is-waited-for", "_REQUEST_DEADLINE = 10.0", "_REQUEST_DEADLINE = 3600.0"
    )
    yield server("everybody-may-call", "return uid in (0, os.geteuid())", "return True")
    yield server(
        "root-may-not-call", "return uid in (0, os.geteuid())", "return uid == os.geteuid()"
    )
    yield server("a-request-of-any-length", "if length > wire.LIMIT:", "if False:")
    yield server("any-number-of-descriptors", "or len(fds) > DESCRIPTORS:", "or False:")
    yield server(
        "descriptors-are-kept",
        "os.close(fd)\n            self._busy",
        "pass\n            self._busy",
    )
    yield server("the-socket-stays", "os.unlink(self._path)", "pass")
    yield server("the-lock-stays", "os.unlink(path)", "pass")
    yield server(
        "a-fault-in-a-connection-is-everybodys",
        'except Exception as error:\n            fault("a connection", error)',
        'except ZeroDivisionError as error:\n            fault("a connection", error)',
        "tests/component/test_nurseries.py",
        "tests/component/test_server.py",
        "tests/component/test_own_log.py",
    )
    stopping = "tests/integration/test_stopping.py"
    yield server(
        "sigterm-does-not-wait-for-what-is-undone",
        "await self._containers.end_all()",
        "pass",
        stopping,
    )
    yield server(
        "sigterm-waits-for-ever",
        "with trio.move_on_after(self._stop_timeout) as patience:",
        "with trio.CancelScope() as patience:",
        stopping,
    )


def _records() -> Iterator[Mutation]:
    stopping = "tests/integration/test_stopping.py"
    records = _in(
        "supervisor/records.py",
        "tests/component/test_server.py",
        "tests/component/test_records.py",
    )
    yield records(
        "what-is-mounted-is-removed",
        "remove(folder, name, os.fstat(folder).st_dev)",
        "__import__('shutil').rmtree(os.path.join(root, name))",
        "tests/component/test_removal.py",
        "tests/component/test_records.py",
        "tests/integration/test_disks.py",
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
    ownership = _in("supervisor/ownership.py", stopping)
    yield ownership(
        "two-own-a-record", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB"
    )
    orphans = _in("supervisor/orphans.py", "tests/integration/test_job_status.py", stopping)
    yield orphans(
        "an-orphans-job-is-not-cancelled",
        "await engine.release(record.job_id, Setting(environment), directory)",
        "pass",
        "tests/integration/test_salloc_killed.py",
        "tests/integration/test_nodes.py",
        "tests/integration/test_stopping.py",
    )
    yield orphans(
        "any-word-is-a-job",
        'if not re.fullmatch("[0-9]{1,10}", record.job_id)',
        "if False",
        "tests/unit/test_bad_records.py",
        "tests/integration/test_bad_input.py",
    )
    yield orphans(
        "any-directory-is-a-record",
        'if not os.path.islink(os.path.join(directory, "supervisor")):',
        "if False:",
        "tests/integration/test_bad_input.py",
        "tests/integration/test_paths.py",
    )


def _anchors() -> Iterator[Mutation]:
    scenario = ("tests/integration/test_scenario.py", "-k", "local-root")
    anchors = _in("supervisor/anchors.py", *scenario)
    yield anchors(
        "an-anchors-death-ends-nothing",
        'container.end(killed(signal.SIGKILL, "the anchor was killed"))',
        "pass",
    )
    yield anchors(
        "who-ignores-term-goes-on", "await trio.sleep(_GRACE)", "await trio.sleep_forever()"
    )
    yield anchors(
        "a-second-term-is-no-other",
        "elif number in FATAL and (asked or container.phase is not Phase.RUNNING):",
        "elif number in FATAL and container.phase is not Phase.RUNNING:",
    )
    yield anchors("signals-go-nowhere", "await container.kill(number)", "pass")
    yield anchors(
        "any-word-is-a-signal",
        "return [known[text] for text in texts if text in known], rest[-_LINE:]",
        "return [known[text] for text in texts], rest[-_LINE:]",
        "tests/unit/test_fuzz_streams.py",
    )
    yield anchors(
        "half-a-line-grows",
        "rest[-_LINE:]",
        "rest",
        "tests/unit/test_fuzz_streams.py",
    )


def _life() -> Iterator[Mutation]:
    local = ("tests/integration/test_scenario.py", "-k", "local-root or slurm-user")
    waiting = "tests/integration/test_waiting.py"
    phases = _in("supervisor/phases.py", *local)
    creation = _in("supervisor/creation.py", waiting)
    life = _in("supervisor/life.py", "tests/integration/test_lua_staging.py")
    yield phases(
        "the-last-reason-counts",
        "if self._ending is None:\n            self._ending = ending\n            if ending.text:",
        "if True:\n            self._ending = ending\n            if ending.text:",
    )
    yield phases("an-end-cancels-nothing", "self._scope.cancel()", "pass")
    yield phases(
        "an-end-is-no-transition",
        "else:\n            self.become(Phase.STOPPING)\n        self._scope",
        "else:\n            pass\n        self._scope",
        "tests/integration/test_stopping.py",
    )
    yield phases("the-anchor-is-not-told", "self._anchor.end(ending.status)", "pass")
    yield creation(
        "create-waits-for-its-job",
        "if container.phase is Phase.CREATING and not (container.ending or self.making):",
        "if False:",
    )
    yield creation(
        "create-does-not-wait-at-all",
        "with trio.move_on_after(self._order.settings.create_timeout):",
        "with trio.move_on_after(0):",
    )
    yield phases(
        "what-the-job-is-is-not-on-disk",
        "self._ledger.job_is_known(job_id, owned)",
        "pass",
        "tests/integration/test_job_status.py",
        "tests/integration/test_salloc_killed.py",
    )
    yield life(
        "staging-that-failed-is-a-success",
        'status = self._ending.status or TAKEN["scrun-failure"]',
        "status = self._ending.status",
    )


MUTATIONS: tuple[Mutation, ...] = tuple(_all())
