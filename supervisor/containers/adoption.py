"""Decides what becomes of a container whose supervisor has died, from what that has left."""

import os
from contextlib import ExitStack

import msgspec

from scrun.core.errors import ScrunError
from scrun.core.paths import has_record
from scrun.model.identity import myself
from scrun.model.record import Record, read_record, write_record
from scrun.model.states import Ending, Phase, exited
from scrun.supervisor.containers.adopted import AdoptedContainer
from scrun.supervisor.containers.anchors import Anchor
from scrun.supervisor.containers.ledger import Ledger
from scrun.supervisor.containers.pods import Pods
from scrun.supervisor.containers.records import link
from scrun.supervisor.contracts.adoption import Adopts
from scrun.supervisor.contracts.create_request import CreateRequest, read_create_request
from scrun.supervisor.core.deposits import OWN, Deposits, Found
from scrun.supervisor.core.names import learn
from scrun.supervisor.core.threads import look
from scrun.supervisor.log.files import open_file
from scrun.supervisor.log.journal import Journal
from scrun.supervisor.plugins.choose_engine import Engines
from scrun.supervisor.plugins.choose_stager import Stagers

_LOST = "its supervisor died while it was being ended"


async def adopt(
    found: Found,
    root: str,
    name: str,
    engines: Engines,
    stagers: Stagers,
    pods: Pods,
    deposits: Deposits,
) -> AdoptedContainer | None:
    """Take over a container that lives; tell how one has ended that was about to be cleaned up.

    Args:
        found: What its supervisor has left; owned from now on.
        root: The directory of the records.
        name: The name of this supervisor's socket there.
        engines: Where it runs.
        stagers: Clean up what was staged.
        pods: For its job.
        deposits: Keeps it further.

    Returns:
        The container; None if the rest is to be done as for all that dead supervisors have left.

    Raises:
        ScrunError: It cannot be adopted; it is not.
        OSError: Likewise.
    """
    with ExitStack() as stack:
        stack.callback(found.close)
        directory = os.path.join(root, found.container)
        if not _is_same(directory, found.fds[f"{OWN}lock"]):
            return None  # it was removed, and perhaps made again for another one
        record = read_record(directory)
        if record.status == "stopped":
            return None
        if (ending := _known_ending(found)) is not None:
            await _finish(directory, record, found, ending)
            return None
        create_request = await look("the settings", _request_of, found, record)
        engine = await engines.choose(
            create_request.settings, create_request.child_env.environment
        )
        if not isinstance(engine, Adopts):
            raise ScrunError(f"engine {engine.name} adopts no containers")
        file = await open_file(create_request.settings.log)
        log = os.path.join(directory, "log")
        journal = Journal(
            log, create_request.settings.log, found.container, create_request.shown, file
        )
        deposit = deposits.new(found.container)
        deposit.hold(found.fds, **found.facts)
        deposit.begin()
        ledger = Ledger(directory, record, journal, found.take(f"{OWN}lock"), deposit)
        link(directory, name)  # first: who reads that its supervisor lives connects to it
        ledger.note(supervisor=myself())
        os.close(found.take(f"{OWN}request"))
        stack.pop_all()
    return AdoptedContainer(create_request, engine, stagers, ledger, pods, found)


def _is_same(directory: str, lock: int) -> bool:
    try:
        there = os.stat(os.path.join(directory, "lock"))
    except OSError:
        return False
    return has_record(directory) and os.path.samestat(there, os.fstat(lock))


def _request_of(found: Found, record: Record) -> CreateRequest:
    learn()
    memory = os.fstat(found.fds[f"{OWN}request"]).st_size
    content = os.pread(found.fds[f"{OWN}request"], memory, 0)
    create_request = read_create_request(content.split(b"\0"), "create", "run")
    settings = msgspec.structs.replace(create_request.settings, engine=record.engine)
    return msgspec.structs.replace(create_request, settings=settings)


def _known_ending(found: Found) -> Ending | None:
    """Return how a container has ended, or has to end; None if it lives."""
    facts = found.facts
    if "ending" in facts:
        return msgspec.convert(facts["ending"], Ending)
    if "status" in facts:
        code = os.waitstatus_to_exitcode(facts["status"])
        return exited(code if code >= 0 else 128 - code)
    if facts["phase"] in (Phase.STOPPING.name, Phase.STOPPED.name):
        return Ending(125, "scrun-failure", _LOST)
    return None


async def _finish(directory: str, record: Record, found: Found, ending: Ending) -> None:
    """Tell the engine how it has ended, and note that."""
    anchor = Anchor(found.take(f"{OWN}anchor"))
    anchor.end(ending.status)
    await anchor.close()
    told = {"org.scrun.reason": ending.reason, "org.scrun.exit_status": str(ending.status)}
    if ending.text:
        told["org.scrun.message"] = ending.text
    annotations = {**record.annotations, **told}
    write_record(directory, msgspec.structs.replace(record, annotations=annotations))
