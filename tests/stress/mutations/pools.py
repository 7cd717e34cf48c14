"""Deliberate faults of pools. Pure."""

from collections.abc import Iterator

from tests.stress.mutations.mutation import Faults, Mutation

_CONTAINERS = "supervisor/containers/"
_TESTS = "tests/component/supervisor/containers/"
_SLURM = "tests/integration/slurm/test_pool.py::"


def faults() -> Iterator[Mutation]:
    yield from _queue()
    yield from _descriptors()
    yield from _nodes()
    yield from _map()
    yield from _automatic()
    room = Faults(
        "supervisor/engines/slurm/room.py", "tests/unit/supervisor/engines/slurm/test_room.py"
    )
    yield room(
        "memory-for-each-processor-counts-once",
        "_PER_CPU, wanted) * processors",
        "_PER_CPU, wanted)",
    )
    yield room("a-type-of-gpu-is-not-looked-at", "_GRES.fullmatch(text)", "_GRES.match(text)")
    yield room("callers-gpus-are-a-node-s", "len({*names}) == len(names) == count", "True")
    yield room("who-has-no-gpu-sees-all", ' or "-1")', ")")
    yield room("an-image-sees-all-gpus", 'f"{_NVIDIA}={own}" if', "item if")
    yield room("any-time-limit-will-do", " or seconds > limit * _MOST_OF_IT", "")
    bound = "tests/integration/slurm/test_pool_bound.py::"
    yield Faults("supervisor/shim/making.py", bound + "test_each_has_processors_of_its_own")(
        "containers-of-a-pool-share-processors",
        "ours.difference(*(one.processors for one in others))",
        "ours",
    )
    yield Faults(_CONTAINERS + "pools.py", bound + "test_a_successor_knows_whose_gpus_they_are")(
        "a-successor-forgets-gpus", "convert(facts.get(GPUS, []), list[str])", "[]"
    )
    yield room(
        "a-node-without-memory-has-no-room",
        "(processors, memory or math.inf",
        "(processors, memory",
    )
    claims = Faults(_CONTAINERS + "claims.py", _TESTS + "test_claims.py")
    yield claims("a-dead-claim-counts", "if is_its and is_locked(path):", "if is_its:")
    yield claims(
        "a-dead-supervisor-s-claim-is-on-its-way",
        "if is_dead(owner) and is_locked(os.path.join(root, name)):",
        "if is_dead(owner):",
    )
    yield claims("a-claim-is-not-locked", "fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass")
    yield Faults(_CONTAINERS + "successor.py", _SLURM + "test_it_outlives_its_supervisor")(
        "a-successor-cancels-a-pool", " or is_claimed(root, job_id)", ""
    )
    yield Faults(_CONTAINERS + "adoption.py", _SLURM + "test_it_outlives_its_supervisor")(
        "a-pool-without-containers-is-let-go",
        "if left.is_of_job and not left.is_of_pool and",
        "if left.is_of_job and",
    )


def _queue() -> Iterator[Mutation]:
    pools = Faults(_CONTAINERS + "pools.py", _TESTS + "test_pools.py")
    yield pools(
        "a-successor-has-no-pool-yet",
        "            await self._arrive(wish.pool)",
        "            pass",
        _TESTS + "test_pools.py::test_a_container_arrives_before_its_pool",
    )
    yield pools(
        "nobody-passes",
        "                place.waits(news)\n                continue",
        "                place.waits(news)\n                break",
    )
    yield pools(
        "all-are-looked-at-for-each-that-comes", "if new is None else [new]", "if True else [new]"
    )
    yield pools("the-emptier-node-is-taken", "min(fitting, key", "max(fitting, key")
    yield pools(
        "who-waits-is-not-told", "            self.request.on_waiting(news)", "            pass"
    )
    yield pools(
        "one-that-has-gone-keeps-its-place",
        "                del self._queue[place]\n                self._adapt()",
        "                self._adapt()",
    )
    yield pools("a-wish-is-an-order", "        if wish.is_asked:", "        if True:")
    yield pools(
        "a-busy-node-goes-first", "(node.room is not None, node.containers)", "-node.containers"
    )


def _automatic() -> Iterator[Mutation]:
    auto = Faults(_CONTAINERS + "automatic.py", _TESTS + "test_pool_auto.py")
    yield auto("it-grows-at-once", "pool.waits_since + _PATIENCE if staying else now", "now")
    yield auto("more-nodes-than-it-may", "pool.size < self._most and", "True and")
    yield auto(
        "many-jobs-are-pending",
        " and all(node.room is not None for node in staying)",
        "",
    )
    yield auto("nodes-stay", "min(due, *self._ends(), math.inf)", "due")
    yield auto("slurm-is-asked-again-soon", "AGAIN = 60.0", "AGAIN = 6.0")
    yield auto("requests-of-the-first-are-the-pool-s", " if name not in TABLE}", "}")
    pools = Faults(_CONTAINERS + "pools.py", _TESTS + "test_pool_auto.py")
    yield pools(
        "who-was-stopped-gets-a-job",
        "wish.is_asked or pool.call.name != AUTO or pool.is_stopped",
        "wish.is_asked or pool.call.name != AUTO",
    )


def _nodes() -> Iterator[Mutation]:
    node = Faults(_CONTAINERS + "pool_node.py", _TESTS + "test_pools.py")
    yield node("any-time-is-enough", "self._allocation.lasts(seconds)", "True")
    yield node("room-does-not-come-back", "self._used -= taken.room", "pass")
    yield node(
        "a-record-owns-a-pool-s-job",
        "request.on_job_id(job_id, False)",
        "request.on_job_id(job_id, True)",
    )
    yield node(
        "one-that-retires-takes-more",
        "allocation.is_open and not self.is_retiring",
        "allocation.is_open",
    )
    yield node(
        "others-come-before-those-who-were-there", "usable and self._has_all and", "usable and"
    )
    yield node("a-claim-stays", "            self.claim.end()", "            pass")
    yield node(
        "a-lost-node-stays",
        "        self.ended = ending.text\n        self.retire()",
        "        self.ended = ending.text",
    )


def _map() -> Iterator[Mutation]:
    mapped = Faults("scrun/commands/map.py", "tests/component/scrun/commands/test_map.py")
    yield mapped(
        "what-has-failed-does-not-run-again",
        'for each in same if ended[each][0] == "0"}',
        "for each in same}",
    )
    yield mapped(
        "a-line-that-has-changed-is-done", " and digest(tasks[each]) == ended[each][1]}", "}"
    )
    yield mapped(
        "two-maps-use-a-directory", "fcntl.flock(noted, fcntl.LOCK_EX | fcntl.LOCK_NB)", "pass"
    )
    yield mapped(
        "an-ignored-signal-ends-a-map", " if signal.getsignal(each) != signal.SIG_IGN}", "}"
    )
    yield mapped("an-interrupted-map-goes-on", "< at_once and not self._ends", "< at_once")
    yield mapped(
        "a-map-hears-nothing-while-it-begins", "in self._wait(0 if more else seconds)",
        "in ([] if more else self._wait(seconds))",
    )  # fmt: skip
    yield mapped("one-more-try", "tries[number] <= retries", "tries[number] <= retries + 1")
    yield mapped("what-a-map-runs-outlives-it", '"--pdeathsig", "TERM"', '"--pdeathsig", "clear"')
    yield mapped(
        "a-full-disk-ends-a-map-at-once",
        "        except OSError as error:\n            if not",
        "        except KeyError as error:\n            if not",
    )
    yield mapped("files-of-others-are-overwritten", "os.listdir(directory) and", "False and")
    yield Faults("scrun/commands/map.py", "tests/unit/scrun/commands/test_map_lines.py")(
        "a-line-may-be-detached", ' or found.count("detach")', ""
    )


def _descriptors() -> Iterator[Mutation]:
    deposits = Faults(
        "supervisor/core/deposits.py", "tests/component/supervisor/core/test_deposits.py"
    )
    yield deposits("what-is-shared-is-a-duplicate", "more.keys() - self._shared", "[*more]")
    yield deposits(
        "another-keeper-lacks-what-is-made",
        "self._say(self._held, made=True)",
        "self._say(self._held)",
    )
    yield deposits(
        "a-duplicate-stays-when-it-is-shared",
        "self._let_go((*gone, *more))",
        "self._let_go(gone)",
    )
    idle = _SLURM + "test_descriptors_of_idle_containers"
    yield Faults("supervisor/containers/phases.py", idle)(
        "the-log-of-an-idle-container-is-open", "self._journal.rest()", "pass"
    )
    yield Faults("supervisor/nodes/restartable_streams.py", idle)(
        "a-stream-has-a-duplicate",
        "keeping.share({name: plain.fd})",
        "keeping.hold({name: plain.fd})",
    )
