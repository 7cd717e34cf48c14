"""The record of a container of ours: what is known of it, on disk at every moment."""

import os
from collections.abc import Mapping

import msgspec

from scrun.oci.state import render_state
from scrun.record import Record, write_record
from scrun.waiting import OF_WAITING, Waiting, annotations_of, waiting_line
from supervisor.journal import Journal


class Ledger:
    """A record that is written down whenever it changes.

    Attributes:
        record: As it is.
    """

    def __init__(self, directory: str, record: Record, journal: Journal) -> None:
        """Write a record for the first time.

        Args:
            directory: Of the record.
            record: It.
            journal: Where it is told that it could not be written.
        """
        self.record = record
        self._directory = directory
        self._made = os.lstat(directory)
        self._journal = journal
        self._write()

    @property
    def is_there(self) -> bool:
        """Whether its directory is still the one that it had at first.

        Somebody may have removed the root directory, and another supervisor made a record of this
        id in a new one.
        """
        try:
            return os.path.samestat(os.lstat(self._directory), self._made)
        except OSError:
            return False

    def note(self, *, annotations: Mapping[str, str] | None = None, **changes: object) -> None:
        """Put something down; annotations are added to those that there are."""
        if annotations is not None:
            changes["annotations"] = {**self.record.annotations, **annotations}
        self.record = msgspec.structs.replace(self.record, **changes)
        self._write()

    def job_is_known(self, job_id: str, owned: bool) -> None:
        """Put the job down (see `supervisor.engines.base.Request.known`)."""
        if job_id != self.record.job_id:
            self._journal.write("verbose", f"the job is {job_id}")
        self.note(job_id=job_id, owns_job=owned, annotations={"org.scrun.job_id": job_id})

    def job_waits(self, news: Waiting | None) -> None:
        """Put down what the job waits for; None: it does not any more."""
        known = self.record.annotations
        others = {key: text for key, text in known.items() if key not in OF_WAITING}
        self.note_all({**others, **annotations_of(news)})
        self._journal.live(waiting_line(self.record.job_id, news) if news else "")

    def note_all(self, annotations: Mapping[str, str]) -> None:
        """Replace all annotations."""
        self.record = msgspec.structs.replace(self.record, annotations=dict(annotations))
        self._write()

    def state(self, status: str) -> bytes:
        """Return the answer to `state`."""
        record = self.record
        return render_state(
            record.oci_version, record.id, status, record.pid, record.bundle, record.annotations
        )

    def _write(self) -> None:
        if not self.is_there:
            return
        try:
            write_record(self._directory, self.record)
        except OSError as error:  # a full disk ends no container
            self._journal.write("error", f"{self._directory}/state.json: {error.strerror}")
