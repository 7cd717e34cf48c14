"""The words that name ports for `scrun forward`."""

import socket

import pytest

from scrun.commands.forward import Forwarded, listening, read_forwarded
from scrun.core.errors import UsageError


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("80", Forwarded("127.0.0.1", 80, 80)),
        ("0:80", Forwarded("127.0.0.1", 0, 80)),
        ("8080:80", Forwarded("127.0.0.1", 8080, 80)),
        ("10.0.0.1:80", Forwarded("10.0.0.1", 80, 80)),
        ("10.0.0.1:0:80", Forwarded("10.0.0.1", 0, 80)),
        ("login:8080:80", Forwarded("login", 8080, 80)),
        ("[::1]:80", Forwarded("::1", 80, 80)),
        ("[::1]:8080:80", Forwarded("::1", 8080, 80)),
        ("65535", Forwarded("127.0.0.1", 65535, 65535)),
    ],
)
def test_a_port(text: str, found: Forwarded) -> None:
    assert read_forwarded(text) == found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "'' is not a port"),
        ("http", "'http' is not a port"),
        ("65536", "'65536' is not a port"),
        ("-1", "'-1' is not a port"),
        ("0", "a container has no port 0"),
        ("8080:0", "a container has no port 0"),
        ("8080:", "'' is not a port"),
        ("a:b:80", "'b' is not a port"),
        ("::1:80", "an IPv6 address needs brackets"),
        ("\u0661", "is not a port"),
    ],
)
def test_what_is_not_a_port(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_forwarded(text)


@pytest.mark.parametrize("address", ["a" * 64, "a..b", "192.0.2.1"])
def test_what_is_not_an_address_of_this_machine(address: str) -> None:
    assert refused(address, 8080).endswith("; name an address of this machine")


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert refused("127.0.0.1", port).endswith(" in use; 0:PORT takes any free port")


def refused(address: str, port: int) -> str:
    """What is said where nobody can listen."""
    with pytest.raises(OSError, match=f"{port}") as raised:
        listening(Forwarded(address, port, 80))
    assert raised.value.filename == f"{address}:{port}"
    return str(raised.value.strerror)
