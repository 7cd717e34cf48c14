"""The record of a container of ours: what is known of it, on disk at every moment."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from scrun.model.record import FORMAT, Record, write_record
from scrun.model.waiting import OF_WAITING, Waiting, annotations_of, waiting_line
from scrun.oci.state import render_state
from scrun.supervisor.containers.records import make_record
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.core.identity import myself
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.journal import Journal


def first_record(create_request: CreateRequest, engine: str) -> Record:
    """Write down what is known of a container before anything is done for it."""
    return Record(
        id=create_request.id,
        bundle=create_request.bundle,
        created=now(),
        engine=engine,
        annotations={"org.scrun.engine": engine},
        engine_settings={
            "slurm_conf": create_request.settings.slurm.conf or "",
            "config_file": create_request.settings_file,
        },
        format=FORMAT,
        supervisor=myself(),
    )


def now() -> str:
    """Return the time as a record has it: RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Ledger:
    """A record that is written down whenever it changes.

    Attributes:
        record: As it is.
        directory: Where it is.
        journal: The container's.
    """

    def __init__(self, directory: str, record: Record, journal: Journal, lock: int) -> None:
        """Take over a record that is written down already.

        Args:
            directory: Of the record.
            record: It.
            journal: Where it is told that it could not be written, and what waits.
            lock: The descriptor that holds its lock; closed by `close`.
        """
        self.record = record
        self._lock = lock
        self.directory = directory
        self.journal = journal
        self._made = os.lstat(directory)

    @property
    def is_there(self) -> bool:
        """Whether its directory is still the one that it had at first.

        Somebody may have removed the root directory, and another supervisor made a record of this
        id in a new one.
        """
        try:
            return os.path.samestat(os.lstat(self.directory), self._made)
        except OSError:
            return False

    def make_again(self, socket: str) -> None:
        """Make the record again, if it was removed.

        Args:
            socket: The name of the supervisor that serves the container.

        Raises:
            ContainerExists: Another container has the id.
            SettingsError: It cannot be made.
        """
        if self.is_there:
            return
        lock = make_record(self.directory, socket, self.record)
        self.close()
        self._lock, self._made = lock, os.lstat(self.directory)

    def close(self) -> None:
        """Give the record up: it is removed, or somebody else's."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def note(self, *, annotations: Mapping[str, str] | None = None, **changes: object) -> None:
        """Put something down; annotations are added to those that there are."""
        if annotations is not None:
            changes["annotations"] = {**self.record.annotations, **annotations}
        self._become(msgspec.structs.replace(self.record, **changes))

    def job_is_known(self, job_id: str, owned: bool) -> None:
        """Put the job down (see `supervisor.contracts.engine.Request.known`)."""
        if job_id != self.record.job_id:
            self.journal.write("verbose", f"the job is {job_id}")
        self.note(job_id=job_id, owns_job=owned, annotations={"org.scrun.job_id": job_id})

    def job_waits(self, news: Waiting | None) -> None:
        """Put down what the job waits for; None: it does not any more."""
        known = self.record.annotations
        others = {key: text for key, text in known.items() if key not in OF_WAITING}
        self.note_all({**others, **annotations_of(news)})
        self.journal.live(waiting_line(self.record.job_id, news) if news else "")

    async def keep_what_is_left(self, *, job: bool) -> None:
        """Erase what is gone, and keep what may be there still: for a `delete`, or a successor.

        Args:
            job: Whether the job may be there.
        """
        record = self.record
        there = await in_thread(_is_there, record.staged)
        if there:
            self.journal.write(
                "error", f"{record.staged}: is not removed yet; `scrun delete` goes on with it"
            )
        self.note(
            owns_job=record.owns_job and (job or record.until_delete),
            staged=record.staged if there else "",
            stager=record.stager if there or record.moved else "",
        )

    def note_all(self, annotations: Mapping[str, str]) -> None:
        """Replace all annotations."""
        self._become(msgspec.structs.replace(self.record, annotations=dict(annotations)))

    def state(self, status: str) -> bytes:
        """Return the answer to `state`."""
        record = self.record
        return render_state(
            record.oci_version, record.id, status, record.pid, record.bundle, record.annotations
        )

    def _become(self, record: Record) -> None:
        if record == self.record:  # a quarter of a millisecond, some times for each container
            return
        self.record = record
        if not self.is_there:
            return
        try:
            write_record(self.directory, self.record)
        except OSError as error:  # a full disk ends no container
            self.journal.write("error", f"{self.directory}/state.json: {error.strerror}")


def _is_there(path: str) -> bool:
    return bool(path) and os.path.lexists(path)
