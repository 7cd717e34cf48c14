"""The config.json of a container of an image."""

import json
from typing import Any

import pytest

from scrun.cli.grammar import COMMANDS
from scrun.commands.run_image import _VARIABLES
from scrun.commands.spec import spec
from scrun.core.errors import UsageError
from scrun.images.store import Defaults
from scrun.oci.config import parse
from scrun.pull.container import (
    Wishes,
    all_variables,
    config_of,
    mount_of,
    variables,
    words_of,
)
from scrun.settings.slurm.requests import TABLE

IMAGE = Defaults(("entry",), ("cmd",), ("PATH=/bin", "A=1"), "/w", 5, 6, (7,))


def made(defaults: Defaults = IMAGE, **wishes: Any) -> dict[str, Any]:
    config = config_of(defaults, Wishes(**wishes), spec())
    parse(json.dumps(config).encode())
    return config


@pytest.mark.parametrize(
    ("wishes", "args"),
    [
        ({}, ["entry", "cmd"]),
        ({"command": ("a", "b")}, ["entry", "a", "b"]),
        ({"entrypoint": ()}, ["cmd"]),
        ({"entrypoint": (), "command": ("a",)}, ["a"]),
        ({"entrypoint": ("e",)}, ["e"]),
        ({"entrypoint": ("e",), "command": ("a",)}, ["e", "a"]),
    ],
)
def test_the_command_line(wishes: dict[str, Any], args: list[str]) -> None:
    assert made(**wishes)["process"]["args"] == args


@pytest.mark.parametrize(
    "wishes",
    [
        {"command": ("a", "x\udcff")},
        {"env": ("A=x\udcff",)},
        {"cwd": "/x\udcff"},
        {"home": "/x\udcff"},
        {"mounts": (mount_of("/:/x\udcff"),)},
    ],
)
def test_what_json_cannot_hold(wishes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"run: b'[^']*x\\xff': is not UTF-8, as config.json has"):
        made(**wishes)


def test_the_callers_variables() -> None:
    given = {"A": "b", "ODD": "x\udcff", "SLURM_JOB_ID": "1", "HOME": "/h"}
    assert all_variables(given) == ("A=b",)


@pytest.mark.parametrize("image", [IMAGE, Defaults(("entry",))])
@pytest.mark.parametrize("user", ["", "8:9"])
def test_what_the_caller_passes_on(image: Defaults, user: str) -> None:
    """As srun does: the umask, and the groups, unless the image's user has its own."""
    config = made(image, user=user, umask=0o027)
    assert config["process"]["user"]["umask"] == 0o027
    kept = config.get("annotations", {}).get("run.oci.keep_original_groups")
    assert kept == (None if image is IMAGE and not user else "1")


def test_an_image_without_a_command() -> None:
    with pytest.raises(UsageError, match="the image names no command: write one after it"):
        made(Defaults())


def test_what_the_image_says_counts() -> None:
    process = made()["process"]
    assert process["user"] == {"uid": 5, "gid": 6, "additionalGids": [7], "umask": 0o022}
    assert process["cwd"] == "/w"
    assert {"PATH=/bin", "A=1"} <= set(process["env"])
    assert not process["terminal"]


def test_what_the_user_says_counts_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "vt100")
    mounts = (mount_of("/etc:/e"),)
    config = made(
        env=("A=2", "B="), cwd="/x", user="8", home="/tmp", read_only=True, terminal=True,
        mounts=mounts,
    )  # fmt: skip
    process = config["process"]
    assert process["user"] == {"uid": 8, "gid": 0, "umask": 0o022}
    assert {"A=2", "B=", "HOME=/tmp", "TERM=vt100"} <= set(process["env"])
    assert len({entry.partition("=")[0] for entry in process["env"]}) == len(process["env"])
    assert (process["cwd"], process["terminal"]) == ("/x", True)
    assert config["root"] == {"path": "rootfs", "readonly": True}
    assert config["mounts"][-1] == mounts[0]
    assert "/tmp" in [mount["destination"] for mount in config["mounts"]]


@pytest.mark.parametrize(
    ("text", "source", "target", "options"),
    [
        ("/etc", "/etc", "/etc", ["rbind"]),
        ("/etc:/e", "/etc", "/e", ["rbind"]),
        ("/etc:/e:ro", "/etc", "/e", ["rbind", "ro"]),
        ("/etc:/e:bind+ro,nosuid", "/etc", "/e", ["bind", "ro", "nosuid"]),
        ("/etc/../etc/:/e", "/etc", "/e", ["rbind"]),
        ("/only/nodes:/e", "/only/nodes", "/e", ["rbind"]),
    ],
)
def test_mounts(text: str, source: str, target: str, options: list[str]) -> None:
    mount = mount_of(text)
    assert (mount["source"], mount["destination"], mount["options"]) == (source, target, options)


@pytest.mark.parametrize("text", ["", ":/x", "/etc:x", "/etc:/x:wrong"])
def test_wrong_mounts(text: str) -> None:
    with pytest.raises(UsageError, match=f"--mount {text}: "):
        mount_of(text)


def test_variables() -> None:
    assert variables(("A=1", "B", "C", "D="), {"B": "2"}) == ("A=1", "B=2", "D=")
    with pytest.raises(UsageError, match="--env =1: has no name"):
        variables(("=1",), {})


def test_entrypoints() -> None:
    assert words_of("a 'b c'") == ("a", "b c")
    assert words_of('["a", "b c"]') == ("a", "b c")
    assert words_of("") == ()
    for wrong in ("'", "[1]", "["):
        with pytest.raises(UsageError, match="neither words nor JSON"):
            words_of(wrong)


@pytest.mark.parametrize("user", ["me", "1:me", "-1", "1:2:3", "²"])
def test_users_are_numbers(user: str) -> None:
    with pytest.raises(UsageError, match="is not a number: write UID or UID:GID"):
        made(user=user)


def test_each_request_is_known() -> None:
    options = {option[0] for option in COMMANDS["run"][2]}
    assert set(_VARIABLES) <= options
    assert set(_VARIABLES.values()) <= set(TABLE)
