"""The words that name ports for `scrun forward`."""

import pytest

from scrun.commands.forward import Forwarded, read_forwarded
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
