"""The collection of garbage, which is useless while much is made that stays.

A full collection looks at every object. While the containers of another supervisor are adopted,
nothing is garbage, and the interpreter would look at all of them again whenever they are a quarter
more: that was two fifths of the time for a thousand.
"""

import gc

import trio


def pause_collections() -> None:
    """Collect nothing, until `collect_again` is called."""
    gc.disable()


async def collect_again(after: float) -> None:
    """Collect, some seconds later, as there may be much to do, and go on to do so."""
    try:
        await trio.sleep(after)
    finally:
        gc.enable()
    gc.collect()  # else all of it counts as new, and is looked at once for each generation
