"""Stands in for the supervisor's __main__: has it stop at a point, and then is it.

It is copied into an installation, beside the product's own, as `product_main`.
"""

import functools
import importlib
import inspect
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Function = Callable[..., Any]


class Point:
    """Where something happens, once for all supervisors of a root directory."""

    def __init__(self, order: dict[str, Any]) -> None:
        """Take what `tests.stress.chaos.points.prepare` wrote."""
        self._order = order
        self._calls = 0

    def install(self) -> None:
        """Wrap the function."""
        module, _, name = self._order["function"].partition(":")
        *path, name = name.split(".")
        owner = importlib.import_module(module)
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, name, self._wrapped(getattr(owner, name)))

    def _wrapped(self, function: Function) -> Function:
        before = self._order["side"] == "before"
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def asynchronous(*arguments: Any, **named: Any) -> Any:
                if before:
                    self._reach(None)
                answer = await function(*arguments, **named)
                if not before:
                    self._reach(answer)
                return answer

            return asynchronous

        @functools.wraps(function)
        def plain(*arguments: Any, **named: Any) -> Any:
            if before:
                self._reach(None)
            answer = function(*arguments, **named)
            if not before:
                self._reach(answer)
            return answer

        return plain

    def _reach(self, answer: Any) -> None:
        self._calls += 1
        if self._calls != self._order["call"]:
            return
        try:
            os.close(os.open(self._order["reached"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except OSError:
            return  # another supervisor was there before
        action = self._order["action"]
        if action == "delay":
            time.sleep(self._order["seconds"])
        elif action == "secret":
            self._strangers = list(_strangers(answer, int(self._order["seconds"] * 16)))
        else:
            os.kill(os.getpid(), signal.Signals["SIG" + action])


def _strangers(listening: socket.socket, count: int) -> Iterator[socket.socket]:
    """Connect without the secret: some are silent, some say something wrong, some go at once."""
    for number in range(count):
        sock = socket.create_connection(("127.0.0.1", listening.getsockname()[1]))
        if number % 3 == 1:
            sock.sendall(os.urandom(64))
        elif number % 3 == 2:
            sock.close()
        yield sock


def main(argv: list[str]) -> int:
    """Be the supervisor, with a point if there is one for its root directory."""
    package = os.path.abspath(__file__).removesuffix("/scrun/supervisor/__main__.py")
    sys.path.insert(0, package)
    root = dict(zip(argv[::2], argv[1::2], strict=True))["--root"]
    try:
        with open(f"{root}.point") as file:
            order = json.load(file)
    except FileNotFoundError:
        pass
    else:
        Point(order).install()
    product = importlib.import_module("scrun.supervisor.product_main")
    status: int = product.main(argv)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
