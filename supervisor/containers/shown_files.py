"""Has a container's files shown to engines while it runs."""

from collections.abc import Callable
from functools import partial

import trio

from scrun.supervisor.containers.show_files import show
from scrun.supervisor.contracts.staged import View
from scrun.supervisor.core.nurseries import Tasks
from scrun.supervisor.log.journal import Journal


class ShownFiles:
    """The files of one container.

    Attributes:
        shown: Set when engines can see them, or never will.
    """

    def __init__(self, beside: Tasks, journal: Journal, alive: Callable[[], bool]) -> None:
        """Begin with none.

        Args:
            beside: Tasks that end with the container.
            journal: Where messages go.
            alive: Whether its anchor lives.
        """
        self.shown = trio.Event()
        self.shown.set()
        self._beside = beside
        self._journal = journal
        self._alive = alive

    def begin_to_show(self, anchor: int, view: View | None) -> None:
        """Show them to engines, which look for them while it runs.

        Args:
            anchor: The pid of its anchor.
            view: See `show`.
        """
        self.shown = trio.Event()
        if not self._beside.begin(partial(self._show, anchor, view, self.shown)):
            self.shown.set()

    async def _show(self, anchor: int, view: View | None, shown: trio.Event) -> None:
        try:
            await show(anchor, view, self._journal, self._alive)
        finally:
            shown.set()
