"""Waits for descriptors, whatever their numbers: select(2) takes those below 1,024 only."""

_MOST = (1 << 31) - 1
"""The most milliseconds that poll(2) takes: 24 days."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def ready(
    reads: "Iterable[int]",
    writes: "Iterable[int]" = (),
    seconds: "float | None" = None,
    ends: "Iterable[int]" = (),
) -> "tuple[set[int], set[int]]":
    """Wait for reading, writing, an end or a failure, perhaps some seconds; return which.

    Of `ends` only an end or a failure counts, as of a pipe that nobody reads any more: these are
    among the first. After 24 days it returns in any case, with nothing, if seconds are given.
    """
    import select

    reads, writes, ends = {*reads}, {*writes}, {*ends}
    poll = select.poll()
    for fd in reads | writes | ends:
        wanted = (select.POLLIN if fd in reads else 0) | (select.POLLOUT if fd in writes else 0)
        poll.register(fd, wanted)
    pause = None if seconds is None else max(0, int(min(seconds * 1000 + 0.999, _MOST)))
    found = poll.poll(pause)
    return (
        {fd for fd, events in found if fd in reads | ends and events & ~select.POLLOUT},
        {fd for fd, events in found if fd in writes and events & ~select.POLLIN},
    )
