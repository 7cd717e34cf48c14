"""Documents of engines and images, and the records of containers."""

import copy
import json
import os
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import trio

from scrun.commands import list as listing
from scrun.commands.update import _merged
from scrun.core.errors import BundleError, SettingsError, StagingError, StateError, UsageError
from scrun.core.paths import LIMIT
from scrun.core.pods import pod_of
from scrun.core.text import printable
from scrun.model.record import Record, read_record, stopped_state, write_record
from scrun.oci import process as processes
from scrun.oci.config import Bundle, Config, parse
from scrun.oci.lookup import find_program
from scrun.oci.resources import changes, read_resources
from scrun.settings.slurm.outputs import ScriptFacts, output_variables
from scrun.settings.slurm.request_sources import gather, read_flags, read_requests
from scrun.settings.slurm.requests import salloc_arguments, srun_arguments
from scrun.supervisor.children.node_scripts import process_variables
from scrun.supervisor.contracts.engine import NodeAnswer
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.sessions.inspection import statistics
from scrun.supervisor.staging.policy import fit
from scrun.supervisor.staging.survey import read_mounts, survey
from tests.harness.bundle import VOLUMES
from tests.stress.fuzz.base import RELEASES, check_error, scratch, written

TARGETS = (
    Target(elsewhere=True, uid=1000, gid=100, rootless=True, link_rootfs=True),
    Target(elsewhere=True, uid=0, gid=0, rootless=False),
    Target(elsewhere=False, uid=0, gid=0, rootless=False, cgroups=True, host_only=(), rlimits={}),
    Target(elsewhere=False, uid=0, gid=0, rootless=False, host_only=(), capabilities=frozenset()),
    Target(elsewhere=False, uid=1000, gid=100, rootless=True, maps_root=True, host_only=()),
)
"""Where a container may run."""


CONTAINER = {
    "process": {"args": ["sh"], "cwd": "/", "env": ["PATH=/bin"]},
    "linux": {
        "uidMappings": [{"containerID": 0, "hostID": 1000, "size": 1}],
        "gidMappings": [{"containerID": 0, "hostID": 100, "size": 1}],
    },
}


def config(data: bytes) -> None:
    """config.json, up to what a node gets of it."""
    try:
        raw, typed = parse(data)
    except BundleError as error:
        check_error(error)
        return
    before = copy.deepcopy(raw)
    for target in TARGETS:
        _staged(raw, target)
    assert raw == before
    _requests(typed)
    _recorded(typed)
    _looked_up(raw, typed)
    options = processes.ExecOptions(
        args=["true"], env=["A=b"], groups=["5"], capabilities=["kill"]
    )
    _executed(processes.process_from_options(options, raw["process"]), raw)
    trio.run(_events, typed.linux.resources)
    pod_of("/nowhere", written("config.json", data))


def _staged(raw: dict[str, Any], target: Target) -> None:
    try:
        sources = survey(
            raw,
            "/nowhere",
            "/nowhere/rootfs",
            target,
            "/nowhere/staged",
            read_mounts(),
            container="c",
            limit=VOLUMES.limit,
        )
        plan = fit(
            raw,
            bundle="/b",
            staged="/s",
            rootfs="/s/rootfs",
            place=VOLUMES,
            target=target,
            sources=sources,
        )
    except StagingError as error:
        check_error(error)
        return
    content = msgspec.json.encode(plan.config)
    again, _ = parse(content)
    assert again["root"]["path"] == "/s/rootfs"
    assert again["process"]["args"] == raw["process"]["args"]
    for note in plan.notes:
        printable(note).encode()


def _requests(typed: Config) -> None:
    flags = read_flags(typed, resources=True)
    try:
        wanted = gather({}, read_requests(typed.annotations, typed.process.env), {}, flags)
        for release in RELEASES:
            words = salloc_arguments(wanted.requests, release)
            words += srun_arguments(wanted.requests, release)
            assert all(word.startswith("-") and "\0" not in word for word in words)
    except SettingsError as error:
        check_error(error)


def _recorded(typed: Config) -> None:
    record = Record(id="c", oci_version=typed.oci_version, annotations=typed.annotations)
    write_record(str(scratch()), record)
    assert os.path.getsize(scratch() / "state.json") < LIMIT
    assert read_record(str(scratch())) == record
    json.loads(stopped_state(record))
    variables = output_variables(_told(typed))
    assert not any("=" in name or "\0" in name + value for name, value in variables.items())


def _told(typed: Config) -> ScriptFacts:
    texts = dict.fromkeys(
        ("bundle", "submission_bundle", "socket", "spool_dir", "submission_config_file", "user",
         "group", "root", "rootfs_path", "submission_rootfs_path", "container_id"), "/x",
    )  # fmt: skip
    return ScriptFacts(
        oci_version=typed.oci_version, annotations=typed.annotations, pid=1, pid_file=None,
        user_id=0, group_id=0, log_file=None, log_format="text", **texts,
    )  # fmt: skip


def _looked_up(raw: dict[str, Any], typed: Config) -> None:
    rootfs = str(scratch() / "rootfs")
    find_program(Bundle("/nowhere", "/nowhere/config.json", typed, raw, rootfs))


def _executed(process: dict[str, Any], container: dict[str, Any]) -> None:
    try:
        processes.checked(process, "exec c")
        processes.fitting_user(process, container)
        pieces = process_variables(process)
    except (BundleError, StateError) as error:
        check_error(error)
        return
    assert json.loads("".join(pieces.values())) == process
    words = [f"{name}={piece}" for name, piece in pieces.items()]
    assert all(len(word) < 1 << 17 and word.isascii() for word in words)


class _NoProcesses:
    environment: ClassVar[dict[str, str]] = {}

    async def inspect(self, script: Callable[[str], str]) -> list[NodeAnswer]:
        return [NodeAnswer("node", 0, "units 100 4096 1.00\n")]


async def _events(resources: dict[str, Any]) -> None:
    json.loads(await statistics(_NoProcesses(), "c", resources))  # type: ignore[arg-type]


def process(data: bytes) -> None:
    """The file of `exec --process`."""
    try:
        raw, typed = processes.process_from_file(data, "p.json")
    except BundleError as error:
        check_error(error, begins="p.json: ")
        return
    assert raw["args"] == typed.args
    _executed(raw, CONTAINER)


def resources(data: bytes) -> None:
    """`linux.resources` of an `update`."""
    try:
        found = read_resources(data, "r.json")
    except UsageError as error:
        check_error(error, begins="r.json: ")
        return
    merged = _merged(found, {"memory": {"limit": 1}})
    assert read_resources(json.dumps(merged).encode(), "r.json") == merged
    present = {"memory": {"limit": 5}, "cpu": {"shares": 7}}
    for change in changes(found, present):
        change.encode(errors="replace")
    assert changes(found, found) == []


def record(data: bytes) -> None:
    """state.json, of whichever version."""
    directory = scratch() / "records" / "c1"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "state.json").write_bytes(data)
    rows = listing.rows(str(directory.parent), ["c1"])
    listing.table(rows).encode(errors="replace")
    json.loads(json.dumps(rows, ensure_ascii=False).encode("utf-8", "replace"))
    try:
        found = read_record(str(directory))
    except StateError as error:
        check_error(error, ends="; delete the container")
        return
    assert rows[0]["status"] in (found.status, "stopped")
    json.loads(stopped_state(found))
    write_record(str(directory), found)
    assert read_record(str(directory)) == found
