"""Waits for descriptors, whatever their numbers: select(2) takes those below 1,024 only."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def ready(
    reads: "Iterable[int]", writes: "Iterable[int]" = (), seconds: "float | None" = None
) -> "tuple[set[int], set[int]]":
    """Wait for reading, writing, an end or a failure, perhaps some seconds; return which."""
    import select

    reads, writes = {*reads}, {*writes}
    poll = select.poll()
    for fd in reads | writes:
        wanted = (select.POLLIN if fd in reads else 0) | (select.POLLOUT if fd in writes else 0)
        poll.register(fd, wanted)
    found = poll.poll(None if seconds is None else max(0, int(seconds * 1000 + 0.999)))
    return (
        {fd for fd, events in found if fd in reads and events & ~select.POLLOUT},
        {fd for fd, events in found if fd in writes and events & ~select.POLLIN},
    )
