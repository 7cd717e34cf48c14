"""Who has started this supervisor, and waits to hear that it serves, or why not."""

import contextlib
import os


class Starter:
    """Two descriptors of the command that starts a supervisor; both are used once.

    Once they are closed their numbers are somebody else's: nothing is written to them any more.
    """

    def __init__(self, ready: int | None = None, lock: int | None = None) -> None:
        """Take them over.

        Args:
            ready: Where to tell; None when nobody waits.
            lock: A descriptor that holds the lock of the supervisor's name.
        """
        self._ready = ready
        self._lock = lock

    @property
    def fds(self) -> list[int]:
        """Those that are open."""
        return [fd for fd in (self._ready, self._lock) if fd is not None]

    @property
    def waits(self) -> bool:
        """Whether somebody is still to be told."""
        return self._ready is not None

    def tell(self, text: str) -> None:
        """Say that the supervisor is ready, or why it will not be, and let the lock go.

        Who is told already is told nothing more.
        """
        ready, lock, self._ready, self._lock = self._ready, self._lock, None, None
        if lock is not None:
            os.close(lock)
        if ready is not None:
            with contextlib.suppress(OSError):  # who has started us was killed meanwhile
                os.write(ready, text.encode(errors="replace"))
            os.close(ready)
