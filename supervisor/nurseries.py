"""Nurseries that nobody sees from outside, and errors that come out of them as what they are.

A nursery raises a group, even of one error (trio's strict exception groups). Whoever calls a
context manager that has one inside does not know of it, and catches the error by its type.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from scrun.errors import leaves


@asynccontextmanager
async def unwrapped() -> AsyncIterator[trio.Nursery]:
    """Open a nursery whose only error is raised as itself, and not as a group of one.

    A cancellation beside that error goes with it: an error that comes out of a cancelled block
    does so without any nursery. Several errors stay a group.
    """
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        errors = [leaf for leaf in leaves(group) if not isinstance(leaf, trio.Cancelled)]
        if len(errors) != 1:
            raise
        (error,) = errors
        context = error.__context__
        try:
            raise error
        finally:
            # else a traceback would show the group, which has this very error in it
            error.__context__ = context
            del error, errors
