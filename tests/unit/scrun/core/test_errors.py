"""The tree of errors is what its docstring draws."""

import inspect
import re

import pytest

from scrun.core import errors
from scrun.core.errors import (
    ContainerExists,
    ScrunError,
    SettingsError,
    StateError,
    UnknownContainer,
    closest,
    described,
)

CLASSES = [entry for entry in vars(errors).values() if inspect.isclass(entry)]


def test_the_docstring_draws_the_tree() -> None:
    drawn: list[tuple[str, str]] = []
    parents: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    ([│├└─ ]*)([A-Z]\w+) {2,}", line)
        if match:
            depth = len(match[1]) // 4
            parents[depth] = match[2]
            drawn.append((match[2], parents[depth - 1] if depth else "Exception"))
    real = [(entry.__name__, entry.__base__.__name__) for entry in CLASSES if entry.__base__]
    assert sorted(drawn) == sorted(real)


@pytest.mark.parametrize("entry", CLASSES)
def test_every_class_is_made_from_its_message_and_fails_the_command(
    entry: type[ScrunError],
) -> None:
    error = entry("the reason")
    assert isinstance(error, ScrunError)
    assert str(error) == "the reason"
    assert 0 < error.exit_code < 126  # those above mean something to engines
    assert error.show_traceback is False
    assert entry.__doc__


def test_messages_that_engines_look_for() -> None:
    # containerd: "does not exist" is not found
    assert str(UnknownContainer.named("c1", "/r")).startswith("container does not exist")
    assert "c1" in str(UnknownContainer.named("c1", "/r"))
    assert str(ContainerExists.named("c1")).startswith("container with id c1 already exists")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (StateError("the reason"), "the reason"),
        (ExceptionGroup("g", [OSError(5, "x"), StateError("the reason")]), "the reason"),
        (OSError(13, "Permission denied", "/x"), "/x: Permission denied"),
        (
            ExceptionGroup("g", [ExceptionGroup("h", [OSError(24, "Too many open files")])]),
            "Too many open files; it may not have more (ulimit -n)",
        ),
        (
            OSError(11, "Resource temporarily unavailable", "/bin/sh"),
            "/bin/sh: Resource temporarily unavailable; the user has as many processes as "
            "permitted (ulimit -u)",
        ),
        (
            RuntimeError("can't start new thread"),
            "no more threads can be started; the user has as many processes as permitted "
            "(ulimit -u)",
        ),
        (KeyError("x"), "internal error: KeyError: 'x'"),
    ],
)
def test_what_is_no_error_of_ours_is_put_in_a_line(error: Exception, text: str) -> None:
    assert described(error) == text


def test_another_directory_is_a_remedy_only_where_it_helps() -> None:
    limit = OSError(24, "Too many open files", "/r/a.lock")
    assert str(SettingsError.of_root("/r", limit)) == (
        "root directory /r: a.lock: Too many open files; it may not have more (ulimit -n)"
    )
    full = OSError(28, "No space left on device", "/r")
    remedy = "name another one by --root, or `root` in scrun.toml"
    assert (
        str(SettingsError.of_root("/r", full)) == f"root directory /r: {full.strerror}; {remedy}"
    )
    assert str(SettingsError.of_root("/r", full, "s")) == (
        f"root directory /r: s: {full.strerror}; {remedy}"
    )


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("strat", "start"),
        ("lsit", "list"),
        ("nodlist", "nodelist"),
        ("acount", "account"),
        ("mem", "memory"),
        ("memory_of_node", "memory"),
        ("cpus", "cpus_per_task"),
        ("user", ""),
        ("image", ""),
        ("container", ""),
        ("remove", ""),
        ("q", ""),
    ],
)
def test_the_word_that_was_meant(word: str, meant: str) -> None:
    """Not one that is merely a little alike: `gpus` for `cpus`, `time` for `image`."""
    known = ["start", "list", "nodelist", "account", "memory", "gpus", "cpus_per_task", "clusters"]
    assert closest(word, [*known, "time", "constraint", "resume", "qos"]) == meant
