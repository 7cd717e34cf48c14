"""What a container tells on its standard error while it waits for its job, as srun does.

Whoever has started it sees it run, by the engine's account, and no output. So it says what it
waits for: when that becomes known, when it changes, and when the waiting is over. The log has
the same lines, from whoever has heard them.
"""

from collections.abc import Callable

from scrun.model.waiting import Waiting, waiting_line

_ASKING = "its job is not in the queue yet"


class Notices:
    """The lines of one container."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Say nothing yet.

        Args:
            say: Writes a line to the container's standard error; must not wait.
        """
        self._say = say
        self._open = False
        self._told = False
        self._job_id = ""
        self._news: Waiting | None = None
        self._granted = False

    @property
    def pending(self) -> bool:
        """Whether the job is known to wait."""
        return self._news is not None

    @property
    def reason(self) -> str:
        """What the container waits for, in words."""
        if self._granted:
            return f"job {self._job_id}: its bundle is being staged"
        if not self._job_id:
            return _ASKING
        if self._news is None:
            return f"job {self._job_id} is queued"
        return waiting_line(self._job_id, self._news, explained=True)

    def begin(self) -> None:
        """Say from now on what is waited for, as soon as it is known."""
        self._open = True
        if self._news is not None:
            self._tell()

    def started(self) -> None:
        """Say at once what is waited for: the container counts as running."""
        self._open = True
        self._tell()

    def queued(self, job_id: str) -> None:
        """Hear of the job."""
        self._job_id = job_id

    def waits(self, news: Waiting | None) -> None:
        """Hear what the job waits for; None: it does not any more."""
        before, self._news = self._news, news
        if news is not None and _is_worth_a_line(before, news):
            self._tell()

    def granted(self, nodes: str) -> None:
        """Hear that the job is there, on some nodes."""
        self._granted = True
        if self._told:
            self._say(f"job {self._job_id} has been allocated {nodes}".rstrip())

    def close(self) -> None:
        """Say nothing any more."""
        self._open = False
        self._told = False

    def _tell(self) -> None:
        if self._open:
            self._told = True
            self._say(self.reason)


def _is_worth_a_line(before: Waiting | None, news: Waiting) -> bool:
    """Tell whether somebody who watches wants to know; estimates move all the time."""
    return before is None or before.reason != news.reason or before.start is None is not news.start
