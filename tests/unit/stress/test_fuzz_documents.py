"""Documents of engines with one thing wrong: what is wrong is named, or does no harm."""

import json
import os
import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrun.core.errors import BundleError, ScrunError, StateError, UsageError
from scrun.model.record import read_record
from scrun.oci.config import parse
from scrun.oci.document import VALUES, decode
from scrun.oci.process import process_from_file
from scrun.oci.resources import read_resources
from scrun.supervisor.staging.policy import fit
from tests.harness.bundle import VOLUMES
from tests.harness.limits import limited
from tests.harness.strategies import JSON, Mutated, mutate, mutated, named, paths
from tests.stress.fuzz.base import written
from tests.stress.fuzz.documents import TARGETS as ALL_TARGETS
from tests.stress.fuzz.seeds import FULL, RECORD
from tests.stress.fuzz.targets import TARGETS

# by these kinds the whole document is none, or too much; a byte is told where it can be
OF_ALL = {
    "huge integer": "has an integer that is too large (byte ",
    "surrogate": "\\ud800 is half of a character",
    "wide": f"has more than {VALUES} values",
}


def names(message: str, place: str) -> bool:
    """Whether an error is about a place, or what it is in, or what is in it."""
    member = message.partition(": ")[0].rstrip(":")
    return place.startswith(member) or member.startswith(place)


def check_named(found: Mutated, error: ScrunError, begins: str) -> None:
    message = str(error)
    assert message.startswith(begins)
    message = message.removeprefix(begins)
    if found.kind in OF_ALL:
        assert message.startswith(OF_ALL[found.kind])
    else:
        assert names(message, found.place), (found.kind, found.place, message[:200])


@given(mutated(FULL))
def test_config(found: Mutated) -> None:
    with limited():
        TARGETS["config"].check(found.text)
        try:
            parse(found.text)
        except BundleError as error:
            check_named(found, error, "config.json: ")
        else:
            assert found.kind not in OF_ALL
            assert found.kind not in ("deep", "NUL")


@given(mutated(FULL["process"]))
def test_process(found: Mutated) -> None:
    with limited():
        TARGETS["process"].check(found.text)
        try:
            process_from_file(found.text, "p.json")
        except BundleError as error:
            check_named(found, error, "p.json: ")
        else:
            assert found.kind not in OF_ALL


@given(mutated(FULL["linux"]["resources"]))
def test_resources(found: Mutated) -> None:
    with limited():
        TARGETS["resources"].check(found.text)
    try:
        read_resources(found.text, "r.json")
    except UsageError as error:
        message = str(error).removeprefix("r.json: ")
        # which tells the place in it
        of_all = message.startswith(("is not JSON: ", "has more than 10000 values"))
        assert of_all or names(message, found.place)


@given(mutated(RECORD))
def test_record(found: Mutated) -> None:
    with limited():
        TARGETS["record"].check(found.text)
    path = written("c1/state.json", found.text)
    try:
        read_record(os.path.dirname(path))
    except StateError as error:
        if found.kind not in OF_ALL:
            check_named(found, error, f"{path}: ")


TYPED = (
    "ociVersion", "process", "process.args", "process.args[1]", "process.cwd", "process.env",
    "process.env[0]", "process.user.uid", "process.user.additionalGids[0]", "process.terminal",
    "process.rlimits[0].soft", "process.capabilities.bounding[0]", "process.consoleSize.width",
    "root", "root.path", "root.readonly", "hostname", "mounts", "mounts[1].destination",
    "mounts[1].options[0]", "hooks.prestart[0].path", "annotations", "annotations.SCRUN_NTASKS",
    "linux.namespaces[1].path", "linux.uidMappings[0].size", "linux.devices[0].path",
    "linux.sysctl", "linux.sysctl.kernel.shm_rmid_forced", "linux.seccomp", "linux.resources",
)  # fmt: skip


@pytest.mark.parametrize("place", TYPED)
def test_a_wrong_type_is_named_exactly(place: str) -> None:
    path = next(path for path in paths(FULL) if named(path) == place)
    wrongs: tuple[object, ...] = ({"x": [1]}, 1.5, [[]])
    for wrong in wrongs:
        found = mutate(FULL, path, "other type", wrong)
        if place in ("linux.seccomp", "linux.resources") and isinstance(wrong, dict):
            continue
        with pytest.raises(BundleError) as caught:
            parse(found.text)
        message = str(caught.value).removeprefix("config.json: ")
        assert re.match(re.escape(place) + r"[.:\[]", message), message


@given(mutated(FULL), st.sampled_from(ALL_TARGETS))
def test_of_members_with_one_name_the_last_counts(found: Mutated, place: object) -> None:
    """And the runtime on the node gets that one alone, whichever it would have taken."""
    del place
    if found.kind != "twice":
        return
    try:
        raw, _ = parse(found.text)
    except BundleError:
        return
    plan = fit(
        raw,
        bundle="/b",
        staged="/s",
        rootfs="/r",
        place=VOLUMES,
        target=ALL_TARGETS[2],
        sources={},
    )
    pairs: list[list[str]] = []

    def note(members: list[tuple[str, object]]) -> dict[str, object]:
        pairs.append([name for name, _ in members])
        return dict(members)

    json.loads(msgspec.json.encode(plan.config), object_pairs_hook=note)
    assert all(len(keys) == len(set(keys)) for keys in pairs)


@given(JSON)
@example({"a": [None, {"b": None}], "c": 10**30})
def test_what_is_read_is_written_as_the_same(value: object) -> None:
    content = json.dumps(value).encode()

    def present(value: object) -> object:
        if isinstance(value, dict):
            return {key: present(inner) for key, inner in value.items() if inner is not None}
        return [present(inner) for inner in value] if isinstance(value, list) else value

    if "\\u0000" not in json.dumps(value):
        assert decode(content, "x") == present(value)
