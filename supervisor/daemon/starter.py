"""The command that started this supervisor, and waits until it serves or fails."""

import contextlib
import os


class Starter:
    """Two descriptors of the starting command; each is used once and closed.

    Their numbers may be reused after that, so nothing must be written to them any more.
    """

    def __init__(self, ready: int | None = None, lock: int | None = None) -> None:
        """Take over the descriptors.

        Args:
            ready: Where to report readiness; None if nobody waits.
            lock: Holds the lock of the supervisor's name.
        """
        self._ready = ready
        self._lock = lock

    @property
    def fds(self) -> list[int]:
        return [fd for fd in (self._ready, self._lock) if fd is not None]

    @property
    def waits(self) -> bool:
        """Whether the starter still waits for a report."""
        return self._ready is not None

    def tell(self, text: str) -> None:
        """Report that the supervisor is ready, or why it failed, and release the lock.

        Only the first call reports anything.
        """
        ready, lock, self._ready, self._lock = self._ready, self._lock, None, None
        if lock is not None:
            os.close(lock)
        if ready is not None:
            with contextlib.suppress(OSError):  # our starter was killed meanwhile
                os.write(ready, text.encode(errors="replace"))
            os.close(ready)
