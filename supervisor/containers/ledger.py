"""Keeps the record of a container of ours on disk up to date."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from scrun.model.adoption import called_in
from scrun.model.identity import myself
from scrun.model.record import FORMAT, Record, render_state, write_record
from scrun.model.waiting import OF_WAITING, Waiting, annotations_of, waiting_line
from scrun.supervisor.containers.records import make_record
from scrun.supervisor.contracts.create_request import CreateRequest
from scrun.supervisor.contracts.engine import Job
from scrun.supervisor.contracts.staged import Staged
from scrun.supervisor.core.deposits import OWN, Deposit, no_deposit
from scrun.supervisor.core.ownership import release
from scrun.supervisor.core.threads import in_thread
from scrun.supervisor.log.journal import Journal

NODES = "org.scrun.nodes"
"""The annotation that says where a container runs, or will run."""


def first_record(create_request: CreateRequest, engine: str) -> Record:
    """Return the record of a container for which nothing was done yet."""
    return Record(
        id=create_request.id,
        bundle=create_request.bundle,
        created=now(),
        engine=engine,
        annotations={
            "org.scrun.engine": engine,
            **({"org.scrun.task": create_request.task} if create_request.task else {}),
        },
        engine_settings={
            "slurm_conf": create_request.settings.slurm.conf or "",
            "config_file": create_request.settings_file,
            **called_in(create_request.child_env.environment),
        },
        format=FORMAT,
        supervisor=myself(),
        goes_with_run=create_request.goes_with_run,
        audit=create_request.settings.log.audit or "",
        is_audited=False,
    )


def now() -> str:
    """Return the time in the format of records: RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Ledger:
    """A record that is written to disk whenever it changes.

    Attributes:
        record: The current record.
        directory: Its directory.
        journal: The container's.
        deposit: Keeps what it needs to outlive us.
        lock: The descriptor that holds its lock; -1 when it is released.
    """

    def __init__(
        self,
        directory: str,
        record: Record,
        journal: Journal,
        lock: int,
        deposit: Deposit | None = None,
    ) -> None:
        """Take over a record that is on disk already.

        Args:
            lock: The descriptor that holds its lock; closed by `close`.
            deposit: Keeps what the container needs to outlive us; None: nothing does.
        """
        self.deposit = deposit or no_deposit()
        self.record = record
        self.lock = lock
        self._is_behind = False  # what is on disk
        self.directory = directory
        self.journal = journal
        self._made = os.lstat(directory)

    @property
    def is_there(self) -> bool:
        """Whether its directory is still the original one.

        Somebody may have removed the root directory, and another supervisor may have made a record
        of this id in a new one.
        """
        try:
            return os.path.samestat(os.lstat(self.directory), self._made)
        except OSError:
            return False

    def make_again(self, socket: str) -> None:
        """Make the record again, if it was removed.

        Raises:
            ContainerExists: Another container has the id.
            SettingsError: It cannot be made.
        """
        if self.is_there:
            return
        lock = make_record(self.directory, socket, self.record)
        self.deposit.share({f"{OWN}lock": lock})
        if self.lock >= 0:
            release(self.lock)
        self.lock, self._made = lock, os.lstat(self.directory)

    async def close(self) -> None:
        """Release the lock: the record was removed, or belongs to another container."""
        self.deposit.end()
        if self.lock >= 0:
            lock, self.lock = self.lock, -1
            await in_thread(release, lock)  # which frees the file: that waits for the disk

    def note(
        self,
        *,
        annotations: Mapping[str, str] | None = None,
        later: bool = False,
        **changes: object,
    ) -> None:
        """Change fields of the record; annotations are added to the existing ones.

        Args:
            later: Whether to write that with the next change: nobody misses it until then.
        """
        if annotations is not None:
            changes["annotations"] = {**self.record.annotations, **annotations}
        self._become(msgspec.structs.replace(self.record, **changes), later=later)

    def job_is_known(self, job_id: str, owned: bool) -> None:
        """Record the job (see `supervisor.contracts.engine.JobRequest.on_job_id`)."""
        if job_id != self.record.job_id:
            self.journal.write("verbose", f"the job is {job_id}")
        known = {"org.scrun.job_id": job_id}
        # nobody has to release that of others; it is there, or its wait is written soon
        later = not (owned or (self.record.job_id and self.record.owns_job))
        self.note(job_id=job_id, owns_job=owned, annotations=known, later=later)

    def job_granted(self, job: Job, directory: str) -> str:
        """Note where the container will run, and what launches it.

        Returns:
            The nodes, as a Slurm node list.
        """
        nodes = job.environment.get("SLURM_JOB_NODELIST", "")
        annotations = {NODES: nodes}
        if job.launch:
            annotations["org.scrun.launch"] = job.launch
        self.note(staged=directory, annotations=annotations)
        return nodes

    def staged(self, staged: Staged) -> None:
        annotations = {"org.scrun.image": staged.image} if staged.image else {}
        self.note(moved=staged.moved, annotations=annotations)

    def job_waits(self, news: Waiting | None) -> None:
        """Record what the job waits for; None: it no longer waits."""
        known = self.record.annotations
        others = {key: text for key, text in known.items() if key not in OF_WAITING}
        self.note_all({**others, **annotations_of(news)})
        self.journal.live(waiting_line(self.record.job_id, news) if news else "")

    async def keep_what_is_left(self, *, job: bool, deleted: bool) -> None:
        """Keep in the record what may still exist, for `delete` or a successor; erase the rest.

        Args:
            job: Whether the job may still exist.
            deleted: Whether the record is removed next, if nothing does.
        """
        record = self.record
        there = bool(record.staged) and await in_thread(os.path.lexists, record.staged)
        if there:
            self.journal.write(
                "error", f"{record.staged}: could not be removed; `scrun delete` tries again"
            )
        owns_job = record.owns_job and (job or record.until_delete)
        self.note(
            owns_job=owns_job,
            staged=record.staged if there else "",
            stager=record.stager if there or record.moved else "",
            # if we are killed meanwhile, what has gone already is released once more
            later=deleted and not (owns_job or there or record.moved),
        )

    def note_all(self, annotations: Mapping[str, str]) -> None:
        self._become(msgspec.structs.replace(self.record, annotations=dict(annotations)))

    def state(self, status: str) -> bytes:
        record = self.record
        return render_state(
            record.oci_version, record.id, status, record.pid, record.bundle, record.annotations
        )

    def _become(self, record: Record, *, later: bool = False) -> None:
        changes = record != self.record
        self.record, self._is_behind = record, self._is_behind or changes
        # not to write saves a quarter of a millisecond, several times per container
        if later or not self._is_behind:
            return
        self._is_behind = False
        if not self.is_there:
            return
        try:
            write_record(self.directory, self.record)
        except OSError as error:  # a full disk ends no container
            self.journal.write("error", f"{self.directory}/state.json: {error.strerror}")
