"""Documents of engines that did harm: a fault later on, or all of the memory."""

import json
from pathlib import Path

import pytest

from scrun.core.errors import LONGEST, BundleError
from scrun.core.paths import LIMIT
from scrun.model.record import Record, read_record, write_record
from scrun.oci.config import ANNOTATIONS_LIMIT, LONGEST_WORD, load_bundle, parse
from scrun.oci.document import LEVELS, VALUES, decode
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.staging.policy import fit
from tests.harness.bundle import VOLUMES
from tests.harness.limits import limited


def deep(levels: int) -> bytes:
    return b'{"x":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


def test_bounds() -> None:
    decode(deep(LEVELS), "x")
    with pytest.raises(BundleError, match=f"^x: x: is nested more than {LEVELS} levels deep"):
        decode(deep(LEVELS + 1), "x")
    decode(b"[" + b"1," * (VALUES - 2) + b"1]", "x")
    with pytest.raises(BundleError, match=f"^x: has more than {VALUES} values"):
        decode(b"[" + b"1," * VALUES + b"1]", "x")
    with pytest.raises(BundleError, match=r"^x: a\[1\].b: contains a NUL character"):
        decode(b'{"a":[1,{"b":"\\u0000"}]}', "x")


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (rb"\ud800", rb"\ud800"),
        (rb"\udc00x", rb"\udc00"),
        (rb"\ude00\ud83d", rb"\ude00"),
        (rb"\\ud83d \ud83d\ude00\uDBFF\u0041", rb"\uDBFF"),
        (rb"\\ud800\q", b""),
        (rb"\ud83d\ude00\q", b""),
    ],
)
def test_half_of_a_character(text: bytes, half: bytes) -> None:
    """JSON's grammar has it, and crun and runc read each something else."""
    with pytest.raises(BundleError) as caught:
        decode(b'{"a":"%b"}' % text, "x")
    found = str(caught.value)
    assert found.startswith(f"x: {half.decode()} is half of a character" if half else "x: is not")
    assert "\n" not in found


def test_half_of_a_character_behind_many_whole_ones() -> None:
    with limited(), pytest.raises(BundleError, match="is half of a character"):
        decode(b'{"a":"%b\\ud800"}' % (b"\\ud83d\\ude00" * 1_000_000), "x")


def minimal(**members: object) -> bytes:
    base = {"ociVersion": "1.0.2", "process": {"args": ["sh"], "cwd": "/"}, "root": {"path": "r"}}
    return json.dumps({**base, **members}).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (minimal(process={"args": ["sh", "a" * LONGEST_WORD + "é"], "cwd": "/"}),
         "process.args[1]: is longer than"),
        (minimal(process={"args": ["sh", *["a" * 100_000] * 16], "cwd": "/"}),
         "process.args: are longer than 1500000 bytes together"),
        (minimal(process={"args": ["sh"], "cwd": "/", "env": ["A=" + "b" * LONGEST_WORD]}),
         "process.env[0]: is longer than"),
        (minimal(annotations={"a": "é" * (ANNOTATIONS_LIMIT // 2)}), "annotations: are larger"),
        (minimal(annotations={f"a{n}": "" for n in range(10_001)}),
         "annotations: has 10001 annotations, at most 10000 are possible"),
        (minimal(process={"args": ["sh"], "cwd": "/", "env": [f"A{n}=" for n in range(90_000)]}),
         "process.env: has 90000 variables, at most 10000 are possible"),
        (minimal(process={"args": ["sh"], "cwd": "/", "env": ["A=" + "b" * 100_000] * 16}),
         "process.env: is longer than 1500000 bytes together"),
        (minimal(annotations={"a\0b": "c"}), "annotations.a\\u0000b: contains a NUL character"),
        (minimal(linux={"devices": [{}]}), "linux.devices[0].path: is missing"),
        (minimal(linux={"devices": [{"path": "/dev/\0"}]}), "linux.devices[0].path: contains"),
        (minimal(linux={"seccomp": 5}), "linux.seccomp: expected object, got int"),
        (minimal(linux={"sysctl": {"net.x": 5}}), "linux.sysctl.net.x: expected string, got int"),
        (minimal(x=0).replace(b'"x": 0', b'"x": ' + b"[" * 400 + b"]" * 400), "x: is nested"),
        (minimal(x=0).replace(b'"x": 0', b'"x": 1' + b"0" * 5000), "has an integer that is too"),
        (minimal(process={"args": ["a"], "cwd": "x" * 10_000_000}), "process.cwd: xxx"),
    ],
    ids=range(15),
)  # fmt: skip
def test_config_that_did_harm_later(content: bytes, reason: str) -> None:
    with limited(), pytest.raises(BundleError) as caught:
        parse(content)
    assert str(caught.value).startswith(f"config.json: {reason}")
    assert len(str(caught.value)) < 2100


@pytest.mark.parametrize(
    "members",
    [
        {"linux": None},
        {"linux": {"namespaces": None, "devices": None, "sysctl": None, "seccomp": None}},
        {"process": {"args": ["sh"], "cwd": "/", "user": {"uid": None, "gid": None}}},
        {"mounts": [{"destination": "/x", "type": None, "options": None}]},
    ],
    ids=range(4),
)
def test_null_is_absent_to_staging_too(members: dict[str, object]) -> None:
    raw, _ = parse(minimal(**members))
    target = Target(elsewhere=False, uid=1000, gid=100, rootless=True)
    plan = fit(
        raw, bundle="/b", staged="/s", rootfs="/r", place=VOLUMES, target=target, sources={}
    )
    user = plan.config["process"].get("user", {})
    [mapping] = plan.config["linux"]["uidMappings"]
    assert mapping == {"containerID": user.get("uid", 0), "hostID": 1000, "size": 1}


def test_no_annotations_make_a_record_that_cannot_be_read(tmp_path: Path) -> None:
    text = "\x7f" * (ANNOTATIONS_LIMIT - 1)
    _, config = parse(minimal(annotations={"a": text}))
    directory = str(tmp_path)
    write_record(directory, Record(id="c", annotations=config.annotations))
    assert read_record(directory).annotations == {"a": text}


@pytest.mark.parametrize("fill", [b"", b"[]," * 1000])
def test_a_file_of_100_megabytes(tmp_path: Path, fill: bytes) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.write(minimal(x=0)[:-2] + fill * (100_000_000 // len(fill)) if fill else b"{")
        file.truncate(100_000_000)
    with limited(1, 100), pytest.raises(BundleError, match=r"config\.json: is larger than 16 MiB"):
        load_bundle(str(tmp_path))


def test_a_file_of_16_mebibytes_of_values() -> None:
    content = minimal(x=0).replace(b"0}", b"[" + b'{"a":1},' * (LIMIT // 8 - 25) + b"0]}")
    assert len(content) <= LIMIT
    with limited(1, 20), pytest.raises(BundleError, match=f"has more than {VALUES} values"):
        parse(content)


def test_the_largest_that_is_taken() -> None:
    """All of it in one text."""
    content = minimal(x="a" * (LIMIT - 200))
    with limited(2, 200):
        parse(content)


def test_capabilities_of_an_unknown_kind() -> None:
    sets = {"bounding": ["CAP_KILL"], "newer": [{}, ["CAP_KILL"]]}
    raw, _ = parse(minimal(process={"args": ["sh"], "cwd": "/", "capabilities": sets}))
    target = Target(elsewhere=False, uid=0, gid=0, rootless=False, capabilities=frozenset())
    plan = fit(
        raw, bundle="/b", staged="/s", rootfs="/r", place=VOLUMES, target=target, sources={}
    )
    assert plan.config["process"]["capabilities"] == {**sets, "bounding": []}


def test_what_is_lost_is_not_all_listed() -> None:
    mounts = [{"destination": "/x" * 5000, "type": "mqueue"} for _ in range(2000)]
    raw, _ = parse(minimal(mounts=mounts))
    target = Target(elsewhere=True, uid=1000, gid=100, rootless=True)
    with limited():
        plan = fit(
            raw, bundle="/b", staged="/s", rootfs="/r", place=VOLUMES, target=target, sources={}
        )
    assert len(plan.notes) == 1001
    assert max(map(len, plan.notes)) <= LONGEST
