"""The screen of `scrun top`, with Textual: nothing but this module imports that.

Whatever is shown comes as plain text: a name may look like markup, or hold control characters.
"""

import asyncio  # noqa: TID253  # Textual has it in any case
import os
import signal
import subprocess
import termios
import threading
import tty
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static

from scrun.commands import pool
from scrun.commands.top import Look
from scrun.commands.top_rows import (
    HEAD,
    POD_HEAD,
    SORTS,
    Line,
    Pod,
    cells_of,
    cells_of_pod,
    chosen,
    details,
    fit,
    pods_of,
    spark,
    summary,
    today,
)
from scrun.core.text import one_line, printable
from scrun.model.record import read_record

_FULL = 100.0  # percent of a processor, which fills a bar
_LINES = "1000"  # of a log, at first
_COLOURS = {
    "running": Style(color="green"), "created": Style(color="cyan"),
    "creating": Style(color="cyan"), "paused": Style(color="yellow"),
    "stopped": Style(dim=True), "unknown": Style(color="red"),
}  # fmt: skip
_WAITS, _PLAIN, _BOLD = Style(color="yellow"), Style(), Style(bold=True)
_CHOSEN = Style(reverse=True)
_WIDEST = 40
"""The most characters of a column but the last."""


class Kind(NamedTuple):
    """A kind of what is listed: columns, those at the right, and which matter most."""

    head: tuple[str, ...]
    numbers: frozenset[str]
    order: tuple[str, ...]


_SPARKS = ("CPU ", "MEM ")
_HEAD = (*HEAD[:4], _SPARKS[0], HEAD[4], _SPARKS[1], *HEAD[5:])
_NUMBERS = frozenset(("CPU%", "MEMORY", "MEMORY%", "THREADS", "AGE", "CONTAINERS", "RUNNING"))
KINDS = {
    "containers": Kind(_HEAD, _NUMBERS, (
        "CONTAINER", "CPU%", "MEMORY", "STATUS", "INFO", *_SPARKS, "JOB", "NODES", "AGE", "POD",
        "MEMORY%", "THREADS",
    )),
    "pods": Kind(POD_HEAD, _NUMBERS, (
        "POD", "CPU%", "MEMORY", "RUNNING", "CONTAINERS", "WAITS", "NODES", "JOB",
    )),
    "pools": Kind(pool.HEAD, frozenset(("CONTAINERS", "CPUS", "MEMORY", "GPUS", "WAITING")), (
        "POOL", "NODE", "CONTAINERS", "STATE", "CPUS", "MEMORY", "GPUS", "WAITING", "JOB",
    )),
}  # fmt: skip
_INFO = 12
"""The least that `INFO` needs to be of use."""

Item = Line | Pod | tuple[str, ...]


class Rows(ScrollView, can_focus=True):
    """Lists items, and draws only those that are seen: there may be thousands."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False), Binding("down", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False), Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False), Binding("end", "move(1000000)", show=False),
    ]  # fmt: skip

    class Moved(Message):
        """Another item is chosen, or others are seen."""

    def __init__(self) -> None:
        super().__init__()
        self._kind = KINDS["containers"]
        self._sort = ""
        self._widths: list[int] = []
        self._at = 0
        self.items: Sequence[Item] = ()

    @property
    def chosen(self) -> Item | None:
        return self.items[self._at] if self.items else None

    @property
    def seen(self) -> Sequence[Item]:
        first = self.scroll_offset.y
        return self.items[first : first + max(1, self.size.height - 1)]

    def show(self, kind: Kind, items: Sequence[Item], sort: str) -> None:
        """Show other items; the cursor stays at the top, or on the item that it was moved to."""
        before = self.chosen
        if kind is not self._kind:
            self._kind, self._at = kind, 0
            self.on_resize()
            self.scroll_to(y=0, animate=False)
        elif before is not None and self._at:
            names = [_name_of(item) for item in items]
            name = _name_of(before)
            self._at = names.index(name) if name in names else self._at
        self.items, self._sort = items, sort
        self._at = max(0, min(self._at, len(items) - 1))
        # one line more: the names of the columns, which stay
        self.virtual_size = Size(self.size.width, len(items) + 1)
        self._follow()
        self.refresh()

    def on_resize(self, _: Resize | None = None) -> None:
        self._widths = []

    def on_click(self, event: Click) -> None:
        if event.y:
            self._go(self.scroll_offset.y + event.y - 1)

    def action_move(self, by: int) -> None:
        self._go(self._at + by)

    def action_page(self, by: int) -> None:
        self._go(self._at + by * max(1, self.size.height - 2))

    def _go(self, at: int) -> None:
        self._at = max(0, min(at, len(self.items) - 1))
        self._follow()
        self.refresh()
        self.post_message(self.Moved())

    def _follow(self) -> None:
        first, room = self.scroll_offset.y, max(1, self.size.height - 1)
        if not first <= self._at < first + room:
            y = self._at if self._at < first else self._at - room + 1
            self.scroll_to(y=y, animate=False, force=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.post_message(self.Moved())

    def render_line(self, y: int) -> Strip:
        """Draw a line of the screen; the first one has the names of the columns."""
        width = self.size.width
        if y == 0:
            self._measure()
            text = self._line(tuple(map(self._titled, self._kind.head)), width)
            return Strip([Segment(text, _BOLD)], width)
        number = self.scroll_offset.y + y - 1
        if number >= len(self.items):
            return Strip.blank(width)
        item = self.items[number]
        style = _style_of(item)
        if number == self._at:
            style += _CHOSEN
        return Strip([Segment(self._line(_cells(item), width), style)], width)

    def _titled(self, name: str) -> str:
        is_sorted = self._sort and name.startswith(_TITLES.get(self._sort, "-"))
        return f"{name}*" if is_sorted and name not in _SPARKS else name

    def _measure(self) -> None:
        """Widen the columns for what is seen; they do not get narrower while that changes."""
        rows = [tuple(map(self._titled, self._kind.head)), *map(_cells, self.seen)]
        widths = [min(_WIDEST, max(map(cell_len, column))) for column in zip(*rows, strict=True)]
        before = self._widths or [0] * len(widths)
        self._widths = [max(pair) for pair in zip(widths, before, strict=True)]

    def _line(self, cells: tuple[str, ...], width: int) -> str:
        head = self._kind.head
        widths = [min(one, _INFO) if name == "INFO" else one
                  for name, one in zip(head, self._widths, strict=True)]  # fmt: skip
        order = [head.index(name) for name in self._kind.order]
        shown = fit(widths, width, order)
        parts = []
        for number in shown:
            room = width if number == shown[-1] else widths[number]
            parts.append(_padded(cells[number], room, right=head[number] in self._kind.numbers
                                 and number != shown[-1]))  # fmt: skip
        return set_cell_size("  ".join(parts), width)


_TITLES = {"cpu": "CPU%", "memory": "MEMORY", "name": "CONTAINER", "age": "AGE",
           "status": "STATUS"}  # fmt: skip


def _padded(text: str, width: int, *, right: bool) -> str:
    if (length := cell_len(text)) > width:
        return set_cell_size(text, max(width - 1, 0)) + "…"
    return " " * (width - length) + text if right else text + " " * (width - length)


def _name_of(item: Item) -> str:
    if isinstance(item, Line):
        return item.id
    return item.name if isinstance(item, Pod) else item[1]


def _cells(item: Item) -> tuple[str, ...]:
    if isinstance(item, Line):
        cells, used = cells_of(item), item.used
        cpu = spark(used.cpus, _FULL)
        memory = spark(used.memories, used.limit or 0)
        cells = (*cells[:4], cpu, cells[4], memory, *cells[5:])
    else:
        cells = cells_of_pod(item) if isinstance(item, Pod) else item
    return tuple(map(printable, cells))


def _style_of(item: Item) -> Style:
    if isinstance(item, Line):
        return _WAITS if item.waits else _COLOURS.get(item.status, _PLAIN)
    return _WAITS if isinstance(item, Pod) and item.waits else _PLAIN


class Confirm(ModalScreen[str]):
    """Asks which signal a container gets; returns its name, or nothing."""

    CSS = """
    Confirm { align: center middle; }
    Confirm > Static { width: auto; max-width: 100%; border: round; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "dismiss('TERM')"), Binding("k", "dismiss('KILL')"),
        Binding("escape,n,q", "dismiss('')"),
    ]  # fmt: skip

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name_shown = name

    def compose(self) -> ComposeResult:
        text = f"Send {printable(self._name_shown)} a signal?\nt: TERM\nk: KILL\nEsc: none"
        yield Static(text, markup=False)


class Looked(Message):
    """What somebody has seen who has looked at the root directory."""

    def __init__(
        self, lines: list[Line] | None, nodes: list[tuple[str, ...]], error: str = ""
    ) -> None:
        super().__init__()
        self.lines, self.nodes, self.error = lines, nodes, error


class Said(Message):
    """What a command has said."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text


class Top(App[int]):
    """The screen."""

    CSS = """
    Screen { layout: vertical; }
    #head, #details { height: 1; width: 100%; text-wrap: nowrap; text-overflow: ellipsis; }
    #head { text-style: bold; }
    Rows { height: 1fr; }
    Input { border: none; height: 1; padding: 0; display: none; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "leave", "Quit"), Binding("tab", "next_kind", "Pods/pools", priority=True),
        Binding("s", "next_sort", "Sort"), Binding("r", "backwards", "Reverse"),
        Binding("slash", "filter", "Filter"), Binding("l", "logs", "Logs"),
        Binding("m", "messages", "Messages"), Binding("e", "shell", "Shell"),
        Binding("k", "kill", "Kill"), Binding("escape", "all", show=False),
        Binding("ctrl+c", "leave", show=False, priority=True),
    ]  # fmt: skip

    def __init__(
        self, look: Look, words: Sequence[str], pause: float, sort: str, wanted: str
    ) -> None:
        """Make it; `words` call scrun for the same root, `pause` is seconds between two looks.

        It begins sorted by `sort`, with those that have the text `wanted`.
        """
        super().__init__(ansi_color=True)
        self._look, self._words, self._pause = look, words, pause
        self._sort, self._backwards, self._wanted = sort, False, wanted
        self._kind = "containers"
        self._rows = Rows()
        self._head = Static("", id="head", markup=False)
        self._details = Static("", id="details", markup=False)
        self._field = Input(
            placeholder="a part of a name, a status, a node", select_on_focus=False
        )
        self._lines: list[Line] = []
        self._pools: list[tuple[str, ...]] = []
        self._said = self._error = ""
        self._over, self._now = threading.Event(), threading.Event()
        self._away = False  # another program has the terminal

    def shown(self) -> int:
        """Show it until it is left; return the exit status."""
        # with nohup, too: a screen without its terminal is of no use
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        return self.run() or 0

    def compose(self) -> ComposeResult:
        yield self._head
        yield self._rows
        yield self._details
        yield self._field
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._rows.focus()
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.action_leave)
        threading.Thread(target=self._go_on_looking, daemon=True).start()

    def on_unmount(self) -> None:
        self._over.set()
        self._now.set()
        self._look.usage.close()

    # The looks

    def _go_on_looking(self) -> None:
        pause = min(1.0, self._pause)  # one look knows no processor time
        while not self._over.is_set():
            if not self._away:
                self._end_without_terminal()
                self._look_once()
            self._now.wait(pause)
            self._now.clear()
            pause = self._pause

    def _look_once(self) -> None:
        try:
            lines = self._look.containers()
            nodes = self._look.pools() if self._kind == "pools" else []
            self.post_message(Looked(lines, nodes))
        except Exception as error:  # say it, and look again
            self.post_message(Looked(None, [], one_line(str(error))))

    def _end_without_terminal(self) -> None:
        """End if the terminal is gone: Textual would read, or wait, for ever."""
        if self.is_headless:
            return
        try:
            termios.tcgetattr(0)
        except termios.error:
            os._exit(128 + signal.SIGHUP)

    def on_looked(self, message: Looked) -> None:
        self._error = message.error
        if message.lines is not None:
            self._lines, self._pools = message.lines, message.nodes
        self._draw()
        self._ask()

    def _ask(self) -> None:
        """Have those asked that are seen, and others if what they use decides who is seen."""
        if self._away or self._kind == "pools":
            return
        seen = [item.id for item in self._rows.seen if isinstance(item, Line)]
        is_sorted = self._sort in ("cpu", "memory") or self._kind == "pods"
        self._look.usage.ask(seen, others=is_sorted)

    def _draw(self) -> None:
        lines = chosen(self._lines, self._sort, self._wanted, backwards=self._backwards)
        items: Sequence[Item] = lines
        if self._kind == "pods":
            items = pods_of(lines)
        elif self._kind == "pools":
            items = self._pools
        is_sorted = self._kind == "containers"
        self._rows.show(KINDS[self._kind], items, self._sort if is_sorted else "")
        text = f"{today()} {summary(lines)}"
        if self._kind != "containers":
            text = f"{self._kind}: {len(items)} | {text}"
        if self._wanted:
            text += f" | with {self._wanted!r}"
        self._head.update(printable(text))
        self._describe()

    def _describe(self) -> None:
        item = self._rows.chosen
        text = self._said or self._error or (details(item) if isinstance(item, Line) else "")
        self._details.update(printable(text))

    def on_rows_moved(self) -> None:
        self._said = ""
        self._describe()

    def on_said(self, message: Said) -> None:
        self._said = message.text
        self._describe()
        self._now.set()

    # What keys do

    def action_leave(self) -> None:
        self.exit(0)

    def action_next_kind(self) -> None:
        kinds = [*KINDS]
        self._kind = kinds[(kinds.index(self._kind) + 1) % len(kinds)]
        self._draw()
        self._now.set()

    def action_next_sort(self) -> None:
        sorts = [*SORTS]
        self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
        self._draw()

    def action_backwards(self) -> None:
        self._backwards = not self._backwards
        self._draw()

    def action_filter(self) -> None:
        field = self._field
        field.value, field.styles.display = self._wanted, "block"
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        self._field.styles.display = "none"
        self._rows.focus()

    def action_all(self) -> None:
        self._wanted = self._said = ""
        self.on_input_submitted()
        self._draw()

    def _container(self) -> Line | None:
        item = self._rows.chosen
        return item if isinstance(item, Line) else None

    def action_logs(self) -> None:
        if line := self._container():
            self._lend("logs", "--follow", "--tail", _LINES, line.id)

    def action_messages(self) -> None:
        if line := self._container():
            self._lend("logs", "--messages", "--follow", "--tail", _LINES, line.id)

    def action_shell(self) -> None:
        if line := self._container():
            self._lend("shell", line.id)

    def action_kill(self) -> None:
        line = self._container()
        if line is None:
            return

        def then(name: str | None) -> None:
            if name:
                threading.Thread(target=self._kill, args=(line, name), daemon=True).start()

        self.push_screen(Confirm(line.name), then)

    def _kill(self, line: Line, name: str) -> None:
        """Send a signal, and say what has become of that; it may take its time."""
        try:
            directory = os.path.join(self._look.root, line.id)
            if not os.path.lexists(directory):
                text = f"{line.name}: is gone: nothing was sent"
            elif read_record(directory).created != line.stamp:
                text = f"{line.name}: is another container by now: nothing was sent"
            else:
                done = subprocess.run(
                    [*self._words, "kill", line.id, name],
                    stdin=subprocess.DEVNULL, capture_output=True, check=False,
                )  # fmt: skip
                said = one_line(done.stderr.decode(errors="replace"))
                text = said if done.returncode else f"{line.name}: {name} was sent"
        except Exception as error:
            text = one_line(str(error))
        self.post_message(Said(text))

    def _lend(self, *words: str) -> None:
        """Let a command have the terminal until it ends."""
        self._away = True
        try:
            with self.suspend():
                _call([*self._words, *words])
        finally:
            self._away = False
        self._now.set()


def _call(words: list[str]) -> None:
    """Run a command at the terminal; what it has said stays until somebody presses a key."""
    ignored: Callable[..., None] = lambda *_: None  # noqa: E731  # a handler: exec resets it
    before = signal.signal(signal.SIGINT, ignored)
    try:
        os.write(1, b"\x1b[H\x1b[2J")
        subprocess.run(words, check=False)
        os.write(1, b"\r\n-- any key: back to scrun top --")
        termios.tcflush(0, termios.TCIFLUSH)
        attributes = termios.tcgetattr(0)
        try:
            tty.setcbreak(0)
            os.read(0, 64)
        finally:
            termios.tcsetattr(0, termios.TCSANOW, attributes)
    except (OSError, termios.error):
        pass  # the terminal is gone, which the next look notices
    finally:
        signal.signal(signal.SIGINT, before)
