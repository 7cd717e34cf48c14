"""The program of an `exec`: from a file that is not trusted, and from a command line."""

import json
from typing import Any

import pytest

from scrun.core.errors import BundleError, StateError, UsageError
from scrun.oci.process import (
    ExecOptions,
    checked,
    fitting_user,
    process_from_file,
    process_from_options,
)

MINIMAL: dict[str, Any] = {"args": ["id"], "cwd": "/"}


def text(**members: object) -> bytes:
    return json.dumps({**MINIMAL, **members}).encode()


def test_a_file_is_kept_as_it_came() -> None:
    """But for null, which is absent."""
    kept = {"unknown": {"a": [None]}, "rlimits": [], "scheduler": {"nice": 2**70}}
    raw, process = process_from_file(text(**kept, user=None, terminal=None), "p.json")
    assert raw == json.loads(text(**kept))
    assert (process.args, process.cwd, process.user.uid) == (["id"], "/", 0)


@pytest.mark.parametrize(
    "members",
    [
        {"user": None, "env": None, "capabilities": None, "terminal": None, "rlimits": None},
        {"user": {"uid": None, "gid": None, "additionalGids": None}},
        {"capabilities": {"bounding": None}},
        {"consoleSize": None},
    ],
)
def test_null_is_absent(members: dict[str, object]) -> None:
    process_from_file(text(**members), "p.json")


@pytest.mark.covers("scrun exec: --process")
@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"user": 5}, "user: expected object, got int"),
        ({"user": []}, "user: expected object, got array"),
        ({"user": {"uid": -1}}, "user.uid: expected int >= 0"),
        ({"user": {"uid": 2**32}}, "user.uid: expected int <= 4294967295"),
        ({"user": {"uid": 10**400}}, "user.uid: "),
        ({"user": {"uid": True}}, "user.uid: expected int, got boolean"),
        ({"user": {"uid": 1.5}}, "user.uid: expected int, got number"),
        ({"user": {"additionalGids": [1, "2"]}}, "user.additionalGids[1]: expected int"),
        ({"env": [1]}, "env[0]: expected string, got int"),
        ({"env": "A=1"}, "env: expected array, got string"),
        ({"env": ["A=1\0B=2"]}, "env[0]: contains a NUL character"),
        ({"args": []}, "args: is empty"),
        ({"args": [""]}, "args: is empty"),
        ({"args": None}, "args: is missing"),
        ({"args": "id"}, "args: expected array, got string"),
        ({"args": ["id", "a\0b"]}, "args[1]: contains a NUL character"),
        ({"cwd": None}, "cwd: is missing"),
        ({"cwd": ""}, "cwd: '': is not an absolute path"),
        ({"cwd": "home"}, "cwd: 'home': is not an absolute path"),
        ({"cwd": "/\0"}, "cwd: contains a NUL character"),
        ({"capabilities": []}, "capabilities: expected object, got array"),
        ({"capabilities": {"bounding": [1]}}, "capabilities.bounding[0]: expected string"),
        ({"rlimits": [{"type": "RLIMIT_CORE"}]}, "rlimits[0].soft: is missing"),
        ({"consoleSize": {"height": 1}}, "consoleSize.width: is missing"),
    ],
)
def test_a_wrong_member_is_named(members: dict[str, object], reason: str) -> None:
    with pytest.raises(BundleError) as caught:
        process_from_file(text(**members), "p.json")
    assert str(caught.value).startswith(f"p.json: {reason}")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "p.json: is not JSON: "),
        (b"{", "p.json: is not JSON: "),
        (b"\xff\xfe", "p.json: is not JSON: "),
        (b'{"args": ["\xff"], "cwd": "/"}', "p.json: is not JSON: "),
        # json.loads takes these two, and the runtime would get what it does not understand
        (b'{"args": ["\\ud800"], "cwd": "/"}', "p.json: \\ud800 is half of a character"),
        (b'{"args": ["a"], "cwd": "/", "x": NaN}', "p.json: is not JSON: "),
        (b"[]", "p.json: is not the description of a process"),
        (b"null", "p.json: is not the description of a process"),
        (b'"id"', "p.json: is not the description of a process"),
        (b"[" * 100_000, "p.json: is nested more than 100 levels deep"),
        (text(x=[[]]).replace(b"[[]]", b"[" * 100 + b"]" * 100), "p.json: x: is nested more than"),
        (b"[" * (1 << 24), "p.json: has more than 100000 values"),
        (b" " * (1 << 24), "p.json: is not JSON: "),
    ],
    ids=range(13),
)
def test_what_is_no_process(content: bytes, reason: str) -> None:
    with pytest.raises(BundleError) as caught:
        process_from_file(content, "p.json")
    assert str(caught.value).startswith(reason)
    assert "\n" not in str(caught.value)


FIRST: dict[str, Any] = {
    "args": ["init"],
    "cwd": "/home",
    "env": ["PATH=/bin", "TERM=xterm", "EMPTY="],
    "terminal": True,
    "consoleSize": {"height": 1, "width": 1},
    "user": {"uid": 5, "gid": 6, "umask": 7, "additionalGids": [8]},
    "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"]},
    "noNewPrivileges": False,
}


def from_options(first: dict[str, Any] = FIRST, **options: Any) -> dict[str, Any]:
    return process_from_options(ExecOptions(args=["id"], **options), first)


def test_the_rest_is_as_for_the_first_process() -> None:
    expected = {**FIRST, "args": ["id"], "terminal": False}
    del expected["consoleSize"]
    assert from_options() == expected


def test_the_container_is_not_changed() -> None:
    before = json.dumps(FIRST)
    from_options(env=["A=1"], groups=["3"], capabilities=["kill"], cwd="/", no_new_privileges=True)
    assert json.dumps(FIRST) == before


@pytest.mark.covers("scrun exec: joins the container, its surroundings and status")
@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({"cwd": "/tmp"}, {"cwd": "/tmp"}),
        ({"terminal": True}, {"terminal": True}),
        ({"no_new_privileges": True}, {"noNewPrivileges": True}),
        ({"user": "9"}, {"user": {"uid": 9, "gid": 0, "umask": 7}}),
        ({"user": "9:10"}, {"user": {"uid": 9, "gid": 10, "umask": 7}}),
        ({"user": "4294967295:007"}, {"user": {"uid": 2**32 - 1, "gid": 7, "umask": 7}}),
        (
            {"user": "9", "groups": ["1", "2"]},
            {"user": {"uid": 9, "gid": 0, "umask": 7, "additionalGids": [1, 2]}},
        ),
        ({"groups": ["9"]}, {"user": {**FIRST["user"], "additionalGids": [8, 9]}}),
        ({"env": ["A=1"]}, {"env": [*FIRST["env"], "A=1"]}),
        ({"env": ["TERM=dumb"]}, {"env": ["PATH=/bin", "EMPTY=", "TERM=dumb"]}),
        ({"env": ["A="]}, {"env": [*FIRST["env"], "A="]}),
        ({"env": ["A=b=c\n"]}, {"env": [*FIRST["env"], "A=b=c\n"]}),
        # getenv(3) finds the first of two: who typed both means the second
        ({"env": ["A=1", "B=2", "A=3"]}, {"env": [*FIRST["env"], "A=3", "B=2"]}),
    ],
)
def test_options(options: dict[str, Any], changed: dict[str, Any]) -> None:
    expected = {**FIRST, "args": ["id"], "terminal": False, **changed}
    del expected["consoleSize"]
    assert from_options(**options) == expected


def test_capabilities_are_added_to_no_set_that_programs_inherit() -> None:
    found = from_options(capabilities=["net_raw", "CAP_KILL", "NET_RAW"])["capabilities"]
    both = ["CAP_KILL", "CAP_NET_RAW"]
    added = ["CAP_NET_RAW", "CAP_KILL"]
    assert found == {"bounding": both, "effective": both, "permitted": added}


def test_nulls_of_the_container_are_absent() -> None:
    nulls = {**MINIMAL, "user": None, "env": None, "capabilities": None, "consoleSize": None}
    found = from_options(nulls, groups=["3"], env=["A=1"], capabilities=["kill"])
    assert found["user"] == {"additionalGids": [3]}
    assert found["env"] == ["A=1"]
    assert found["capabilities"]["permitted"] == ["CAP_KILL"]
    members = {"user": {"additionalGids": None}, "capabilities": {"bounding": None}}
    found = from_options({**MINIMAL, **members}, groups=["3"], capabilities=["kill"])
    assert found["user"]["additionalGids"] == [3]
    assert found["capabilities"]["bounding"] == ["CAP_KILL"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"user": "root"}, "user 'root': has to be a number"),
        ({"user": ""}, "user '': has to be a number"),
        ({"user": ":5"}, "user '': has to be a number"),
        ({"user": "5:"}, "group '': has to be a number"),
        ({"user": "5:wheel"}, "group 'wheel': has to be a number"),
        ({"user": "5:6:7"}, "group '6:7': has to be a number"),
        ({"user": "-1"}, "user '-1': has to be a number"),
        ({"user": "+1"}, "user '+1': has to be a number"),
        ({"user": "4294967296"}, "user '4294967296': has to be a number"),
        ({"user": "1" * 5000}, "user '1111"),  # int() has a limit of its own
        ({"user": "٣"}, "user '٣': has to be a number"),
        ({"user": "²"}, "user '²': has to be a number"),
        ({"groups": ["1", "x"]}, "group 'x': has to be a number"),
        ({"env": ["A"]}, "--env 'A': NAME=VALUE expected"),
        ({"env": ["=A"]}, "--env '=A': NAME=VALUE expected"),
        ({"env": [""]}, "--env '': NAME=VALUE expected"),
    ],
    ids=range(16),
)
def test_options_that_make_no_sense(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        from_options(**options)
    assert str(caught.value).startswith(reason)


@pytest.mark.parametrize("member", ["args", "env"])
def test_words_that_are_not_utf_8_cannot_be_told_to_a_runtime(member: str) -> None:
    with pytest.raises(BundleError, match=rf"^exec x: {member}\[1\]: is not UTF-8"):
        checked({**MINIMAL, member: ["id", "A=\udcff"]}, "exec x")


def mapped(**members: list[tuple[int, int]]) -> dict[str, Any]:
    ranges = {
        f"{kind}Mappings": [
            {"containerID": first, "hostID": 1000, "size": size} for first, size in entries
        ]
        for kind, entries in members.items()
    }
    return {"linux": ranges}


@pytest.mark.parametrize(
    ("user", "container"),
    [
        ({"uid": 7, "gid": 7}, {}),
        ({"uid": 7, "gid": 7}, {"linux": None}),
        ({"uid": 7, "gid": 7}, {"linux": {"uidMappings": None, "gidMappings": []}}),
        ({}, mapped(uid=[(0, 1)], gid=[(0, 1)])),
        (None, mapped(uid=[(0, 1)], gid=[(0, 1)])),
        ({"uid": None}, mapped(uid=[(0, 1)])),
        ({"uid": 5}, mapped(uid=[(5, 1)])),
        ({"uid": 65536}, mapped(uid=[(0, 1), (1, 65536)])),
        ({"uid": 2**32 - 1}, mapped(uid=[(0, 2**32 - 1), (2**32 - 1, 1)])),
    ],
)
def test_a_user_that_exists(user: dict[str, Any] | None, container: dict[str, Any]) -> None:
    process = {**MINIMAL, "user": user}
    fitting_user(process, container)
    assert process == {**MINIMAL, "user": user}


@pytest.mark.parametrize(
    ("user", "container", "words"),
    [
        ({"uid": 1}, mapped(uid=[(0, 1)]), "uid 1 does not exist in the container"),
        ({"uid": 0}, mapped(uid=[(5, 1)]), "it has only uid 5: take"),
        ({"uid": 70000}, mapped(uid=[(0, 1), (1, 65536)]), "it has only uid 0, 1-65536: take"),
        ({}, mapped(uid=[(5, 1)]), "uid 0 does not exist"),
        ({"uid": 0, "gid": 3}, mapped(uid=[(0, 1)], gid=[(2, 1)]), "gid 3 does not exist"),
        ({"uid": 2}, mapped(uid=[(0, 2)]), "uid 2 does not exist"),
        ({"uid": 0}, mapped(uid=[(0, 0)]), "uid 0 does not exist"),
    ],
)
def test_a_user_that_does_not(user: dict[str, Any], container: dict[str, Any], words: str) -> None:
    with pytest.raises(StateError) as caught:
        fitting_user({**MINIMAL, "user": user}, container)
    assert words in str(caught.value)


def test_groups_that_cannot_be_set_are_removed() -> None:
    user = {"uid": 0, "gid": 0, "additionalGids": [4]}
    many = {"user": dict(user)}
    fitting_user(many, mapped(gid=[(0, 1), (1, 65536)]))
    assert many["user"] == user
    single = {"user": dict(user)}
    fitting_user(single, mapped(gid=[(0, 1)]))
    assert single["user"] == {"uid": 0, "gid": 0}
