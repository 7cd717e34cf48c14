"""What a container writes to its standard error while its job is pending, as srun does.

The engine shows the container as running, but there is no output. So it says what it waits
for: when that becomes known, when it changes, and when the wait is over. The log gets the same
lines from the engine.
"""

from collections.abc import Callable

from scrun.model.waiting import RATE_LIMITED, Waiting, waiting_line

_ASKING = "its job is not in the queue yet"


class Notices:
    """The notices of one container."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """`say`: writes a line to the container's standard error without waiting."""
        self._say = say
        self._open = False
        self._wrote = False
        self._job_id = ""
        self._news: Waiting | None = None
        self._granted = False
        self._slowed = False

    @property
    def pending(self) -> bool:
        """Whether the job is known to be pending."""
        return self._news is not None

    @property
    def reason(self) -> str:
        """What the container waits for, in words."""
        if self._news is not None:
            return waiting_line(self._job_id, self._news, explained=True)
        if self._granted:
            return f"job {self._job_id}: its bundle is being staged"
        if not self._job_id:
            return _ASKING
        return f"job {self._job_id} is queued"

    def begin(self) -> None:
        """Write from now on what the job waits for, as soon as that is known."""
        self._open = True
        if self._news is not None:
            self._write()

    def started(self) -> None:
        """Write at once what the job waits for: the container counts as running."""
        self._open = True
        self._write()

    def go_on(self, news: Waiting | None, *, started: bool, granted: bool) -> None:
        """Go on where another supervisor has died; what was written is not written again.

        Args:
            started: Whether the container counts as running.
            granted: Whether it was written that the job was allocated nodes.
        """
        self._news = news
        self._open = self._wrote = started
        self._granted = granted

    def queued(self, job_id: str) -> None:
        self._job_id = job_id

    def waits(self, news: Waiting | None) -> None:
        """Note what the job waits for; None: it no longer waits."""
        before, self._news = self._news, news
        if news is not None and _is_worth_a_line(before, news):
            self._write()

    def granted(self, nodes: str) -> None:
        """Note that the job has been allocated nodes."""
        is_news, self._granted = not self._granted, True
        if self._wrote and is_news:
            self._say(f"job {self._job_id} has been allocated {nodes}".rstrip())

    def close(self) -> None:
        self._open = False
        self._wrote = False

    def _write(self) -> None:
        if self._open:
            slowed = self._news is not None and self._news.reason == RATE_LIMITED
            if not (slowed and self._slowed):  # each tool may be slowed down for a moment
                self._wrote = True
                self._say(self.reason)
            self._slowed |= slowed


def _is_worth_a_line(before: Waiting | None, news: Waiting) -> bool:
    """Tell whether a change matters to the user; estimates change all the time."""
    return before is None or before.reason != news.reason or before.start is None is not news.start
