"""The policy of built-in staging: what a config.json becomes, and what is said about it."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scrun.core.errors import StagingError
from scrun.oci.userns import BothIds, Ids, Maps, Range, mappings
from scrun.supervisor.contracts.target import Target
from scrun.supervisor.staging import policy
from scrun.supervisor.staging.mounts import MountSource, Notes, Plan
from scrun.supervisor.staging.policy import OBEYED, PASSED, fit
from tests import CHECKOUT
from tests.harness.bundle import VOLUMES

BUNDLES = sorted((CHECKOUT / "tests" / "data" / "bundles").glob("*.json"))
SLURM_USER = Target(elsewhere=True, uid=1000, gid=100, rootless=True)
SLURM_ROOT = Target(elsewhere=True, uid=0, gid=0, rootless=False)
LOCAL_ROOT = Target(
    elsewhere=False, uid=0, gid=0, rootless=False, cgroups=True, host_only=(), rlimits={}
)
LOCAL_USER = Target(elsewhere=False, uid=1000, gid=100, rootless=True, host_only=(), rlimits={})
TARGETS = [SLURM_USER, SLURM_ROOT, LOCAL_ROOT, LOCAL_USER]

each_bundle = pytest.mark.parametrize("path", BUNDLES, ids=lambda path: path.stem)
each_target = pytest.mark.parametrize(
    "target", TARGETS, ids=["slurm-user", "slurm-root", "local-root", "local-user"]
)


def load(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((BUNDLES[0].parent / f"{name}.json").read_bytes())
    return config


def fitted(
    config: Mapping[str, Any], target: Target, sources: Mapping[str, MountSource] | None = None
) -> Plan:
    return fit(
        config,
        bundle="/bundle",
        staged="/shared/staged",
        rootfs="/bundle/rootfs",
        place=VOLUMES,
        target=target,
        sources=sources or {},
    )


def mount_at(plan: Plan, destination: str) -> dict[str, Any] | None:
    found = [mount for mount in plan.config["mounts"] if mount["destination"] == destination]
    return found[0] if found else None


def bind(source: str | None, destination: str = "/x", **more: object) -> dict[str, Any]:
    mount: dict[str, Any] = {"destination": destination, "type": "bind", "options": ["rbind"]}
    return mount | ({"source": source} if source is not None else {}) | more


def namespaces(*types: str, **paths: str) -> dict[str, Any]:
    listed: list[dict[str, str]] = [{"type": name} for name in types]
    listed += [{"type": name, "path": path} for name, path in paths.items()]
    return {"linux": {"namespaces": listed}}


@each_bundle
@each_target
def test_fitting_changes_nothing_of_the_submitted_config(path: Path, target: Target) -> None:
    config = json.loads(path.read_bytes())
    fitted(config, target)
    assert config == json.loads(path.read_bytes())


@each_bundle
@each_target
def test_fitting_what_fits_changes_nothing(path: Path, target: Target) -> None:
    shm = next(
        (
            mount["source"]
            for mount in json.loads(path.read_bytes())["mounts"]
            if mount["source"].endswith("/shm") and mount["type"] == "bind"
        ),
        "none",
    )
    sources = {shm: MountSource(kind="directory", private=True, capacity=65536000)}
    once = fitted(json.loads(path.read_bytes()), target, sources)
    twice = fitted(once.config, target, sources)
    assert twice.config == once.config
    assert twice.volumes == ()


@each_bundle
@pytest.mark.parametrize("target", [SLURM_USER, LOCAL_USER], ids=["slurm", "local"])
def test_an_ordinary_user_is_the_only_one_mapped(path: Path, target: Target) -> None:
    config = json.loads(path.read_bytes())
    user = config["process"]["user"]
    linux = fitted(config, target).config["linux"]
    assert [n for n in linux["namespaces"] if n["type"] == "user"] == [{"type": "user"}]
    assert linux["uidMappings"] == [{"containerID": user["uid"], "hostID": 1000, "size": 1}]
    assert linux["gidMappings"] == [{"containerID": user["gid"], "hostID": 100, "size": 1}]


LENT = Ids(1000, (Range(0, 1000, 1), Range(1, 165536, 65536)), lent=True)
SLURM_PODMAN = msgspec.structs.replace(SLURM_USER, ids=BothIds(LENT, LENT))


def test_all_users_that_are_lent() -> None:
    """What one user cannot have stays: groups, owners of mounts, a range of groups for ping."""
    config: dict[str, Any] = {
        "process": {"user": {"uid": 33, "gid": 33, "additionalGids": [44, 70000]}},
        "mounts": [{"destination": "/dev/pts", "type": "devpts", "options": ["gid=5"]}],
        "linux": {
            "namespaces": [{"type": "network"}],
            "sysctl": {"net.ipv4.ping_group_range": "0 0"},
        },
    }
    plan = fitted(config, SLURM_PODMAN)
    linux = plan.config["linux"]
    assert linux["uidMappings"] == linux["gidMappings"] == mappings(LENT.known)
    assert plan.config["process"]["user"] == {"uid": 33, "gid": 33, "additionalGids": [44]}
    assert plan.config["mounts"][0]["options"] == ["gid=5"]
    assert linux["sysctl"] == {"net.ipv4.ping_group_range": "0 0"}
    assert plan.notes == ("process.user.additionalGids without 70000: not mapped there",)


def test_another_root_than_the_user() -> None:
    """It has podman's users in podman's ids, around which the node makes a namespace."""
    rows = ((0, 1, 1000), (1000, 0, 1), (1001, 1001, 64536))
    keep_id = [dict(zip(("containerID", "hostID", "size"), row, strict=True)) for row in rows]
    config: dict[str, Any] = {
        "process": {"user": {"uid": 1000, "gid": 1000, "additionalGids": [44, 70000]}},
        "mounts": [{"destination": "/sys", "type": "sysfs", "source": "sysfs"}],
        "linux": {
            "uidMappings": keep_id,
            "gidMappings": keep_id,
            "namespaces": [{"type": "network"}],
        },
    }
    plan = fitted(config, msgspec.structs.replace(SLURM_PODMAN, nests=True))
    linux = plan.config["linux"]
    assert linux["uidMappings"] == linux["gidMappings"] == keep_id
    assert plan.outer == dict.fromkeys(("uidMappings", "gidMappings"), mappings(LENT.known))
    assert plan.config["process"]["user"] == {"uid": 1000, "gid": 1000, "additionalGids": [44]}
    assert plan.config["mounts"][0]["type"] == "bind"  # its network may be of the outer one
    alone = fitted(config, SLURM_PODMAN)
    assert alone.outer is None
    assert len(alone.config["linux"]["uidMappings"]) == 1


@pytest.mark.covers("security annotations that the OCI runtime obeys")
def test_annotations_that_a_runtime_would_obey() -> None:
    """An image's may have it connect, write, or load something; a few harm nobody."""
    given = {
        "run.oci.pidfd_receiver": "/run/user/1000/bus",
        "run.oci.hooks.stdout": "/home/me/.bashrc",
        "run.oci.seccomp_bpf_data": "AAAA",
        "run.oci.of.later.versions": "1",
        "krun.vm": "x",
        "org.criu.config": "/etc/passwd",
        "module.wasm.x": "1",
        **dict.fromkeys(PASSED, "1"),
        "run.ocidx": "means nothing",
        "org.systemd.property.TimeoutStopUSec": "uint64 1",
        "org.example": "1",
    }
    plan = fitted({"annotations": given}, SLURM_USER)
    kept = plan.config["annotations"]
    assert {name for name in kept if name.startswith(OBEYED)} == {*PASSED}
    assert [name for name in given if name not in kept] == [*given][:7]
    assert sum("an image may ask the runtime for it" in line for line in plan.notes) == 7
    assert "--annotation run.oci.pidfd_receiver" in plan.missed
    assert fitted({"annotations": given}, LOCAL_USER).config["annotations"] == given
    assert fitted({"annotations": None}, SLURM_USER).notes == ()


@pytest.mark.covers("security a great number of groups, mounts, nested values")
@pytest.mark.parametrize("lent", [1, 300])
def test_many_groups(lent: int) -> None:
    """What an image has many of takes time in proportion to their number, and a line at most."""
    ids = Ids(1000, tuple(Range(2 * one, 100_000 + one, 1) for one in range(lent)), False)
    maps = Maps(ids.known, ids.known)
    user: dict[str, Any] = {"additionalGids": [*range(99_000)] * 4}
    notes = Notes()
    began = time.process_time()
    policy._groups_that_are_mapped(user, maps, notes)
    assert time.process_time() - began < 5
    assert user["additionalGids"] == [2 * one for one in range(lent)] * 4
    assert len(notes.lines) == 1
    assert len(notes.lines[0]) < 1000


@pytest.mark.covers("security a great number of groups, mounts, nested values")
def test_many_volumes() -> None:
    """One copy of the topmost, however many are below it."""
    count = 5000
    paths = ["/tmp/v", *(f"/tmp/v/{one % 50}/{one}" for one in range(count))]
    mounts = [bind(path, f"/m{number}") for number, path in enumerate(paths)]
    sources = {path: MountSource(kind="directory", real=path, private=True) for path in paths}
    began = time.process_time()
    plan = fitted({"mounts": mounts}, SLURM_USER, sources)
    assert time.process_time() - began < 5
    [volume] = plan.volumes
    assert volume.source == "/tmp/v"
    last = plan.config["mounts"][-1]
    assert last["source"] == f"{volume.data}/{(count - 1) % 50}/{count - 1}"


@each_bundle
@pytest.mark.parametrize("target", [SLURM_USER, LOCAL_USER], ids=["slurm", "local"])
def test_nothing_of_an_ordinary_user_needs_root(path: Path, target: Target) -> None:
    config = fitted(json.loads(path.read_bytes()), target).config
    assert "additionalGids" not in config["process"]["user"]
    assert "oomScoreAdj" not in config["process"]
    assert not {"resources", "cgroupsPath", "mountLabel"} & set(config["linux"])
    assert not any("path" in namespace for namespace in config["linux"]["namespaces"])
    for mount in config["mounts"]:
        assert not any(o.startswith(("uid=", "gid=")) for o in mount.get("options") or [])


@each_bundle
@pytest.mark.parametrize("target", [SLURM_USER, SLURM_ROOT], ids=["user", "root"])
def test_nothing_on_a_node_belongs_to_this_machine(path: Path, target: Target) -> None:
    config = fitted(json.loads(path.read_bytes()), target).config
    assert "hooks" not in config
    assert not {"rlimits", "apparmorProfile", "selinuxLabel"} & set(config["process"])
    assert not {"resources", "cgroupsPath", "mountLabel"} & set(config["linux"])
    assert not any("path" in namespace for namespace in config["linux"]["namespaces"])


@each_bundle
def test_local_root_gets_what_was_submitted(path: Path) -> None:
    config = json.loads(path.read_bytes())
    fitted_config = fitted(config, LOCAL_ROOT).config
    config["root"]["path"] = "/bundle/rootfs"
    assert fitted_config == config


def test_what_is_not_known_stays_as_and_where_it_is() -> None:
    text = (
        b'{"z":18446744073709551615,"ociVersion":"1.0.2","root":{"path":"r","x":null},'
        b'"a":{"b":[],"c":{}},"mounts":[{"destination":"/p","type":"new","q":1}],'
        b'"linux":{"namespaces":[{"type":"time","later":true}]}}'
    )
    plan = fitted(msgspec.json.decode(text), LOCAL_ROOT)
    expected = text.replace(b'"path":"r"', b'"path":"/bundle/rootfs"')
    assert msgspec.json.encode(plan.config) == expected
    assert plan.notes == ()


def test_every_loss_is_noted() -> None:
    notes = "\n".join(fitted(load("docker"), SLURM_USER).notes)
    for lost in (
        "hooks",
        "process.rlimits",
        "process.apparmorProfile",
        "process.oomScoreAdj",
        "process.user.additionalGids",
        "linux.cgroupsPath",
        "linux.resources",
        "/var/run/docker/netns/0123456789ab",
        "net.ipv4.ip_unprivileged_port_start",
    ):
        assert notes.count(lost) == 1, lost


@pytest.mark.parametrize(
    ("sysctl", "processes", "missed"),
    [
        ({}, 2048, ()),
        ({"net.core.somaxconn": "9"}, 2048, ("--sysctl net.core.somaxconn",)),
        ({}, 10, ("--pids-limit",)),
        ({}, -1, ()),
        (
            {f"net.x{number}": "9" for number in range(99)},
            0,
            (*(f"--sysctl net.x{number}" for number in range(8)), "…"),
        ),
    ],
)
def test_what_somebody_has_asked_for_is_missed(
    sysctl: dict[str, str], processes: int, missed: tuple[str, ...]
) -> None:
    """And not what engines set by themselves."""
    own = {"net.ipv4.ping_group_range": "0 0", "net.ipv4.ip_unprivileged_port_start": "0"}
    limits = {"pids": {"limit": processes}, "devices": [{"allow": False, "access": "rwm"}]}
    config = {"linux": {"sysctl": own | sysctl, "resources": limits}}
    assert fitted(config, SLURM_USER).missed == missed
    assert fitted(config, LOCAL_USER).missed == ()


def test_what_says_nothing_is_lost_in_silence() -> None:
    config = {"process": {"user": {"uid": 0, "gid": 0, "additionalGids": []}, "rlimits": []}}
    assert fitted(config, SLURM_USER).notes == ()


@pytest.mark.covers("podman network")
@pytest.mark.covers("limitation no custom networks: all containers work in the host's network")
def test_a_network_made_elsewhere_becomes_the_nodes() -> None:
    config = load("podman-pod")
    plan = fitted(config, SLURM_USER)
    kinds = [namespace["type"] for namespace in plan.config["linux"]["namespaces"]]
    assert kinds == ["pid", "ipc", "uts", "mount", "user"]
    # a user namespace may mount sysfs only with a network namespace of its own
    assert mount_at(plan, "/sys") == {
        "destination": "/sys",
        "type": "bind",
        "source": "/sys",
        "options": ["rbind", "nosuid", "noexec", "nodev", "ro"],
    }


def test_root_may_mount_sysfs_with_the_nodes_network() -> None:
    mount = mount_at(fitted(load("podman-pod"), SLURM_ROOT), "/sys")
    assert mount is not None
    assert mount["type"] == "sysfs"


def test_a_fresh_network_stays() -> None:
    plan = fitted(load("podman-none"), SLURM_USER)
    assert {"type": "network"} in plan.config["linux"]["namespaces"]
    mount = mount_at(plan, "/sys")
    assert mount is not None
    assert mount["type"] == "sysfs"


def test_kernel_file_systems_need_namespaces_of_the_users() -> None:
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue"},
    ]
    plan = fitted({"mounts": mounts} | namespaces("mount"), SLURM_USER)
    assert plan.config["mounts"] == [
        {"destination": "/proc", "type": "bind", "source": "/proc", "options": ["rbind"]}
    ]
    assert "/dev/mqueue dropped" in plan.notes[0]
    kept = fitted({"mounts": mounts} | namespaces("mount", "pid", "ipc"), SLURM_USER)
    assert kept.config["mounts"] == mounts


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("net.ipv4.ip_forward", "1", True),
        ("net.ipv4.ping_group_range", "0 0", True),
        ("net.ipv4.ping_group_range", "0 2147483647", False),
        ("kernel.msgmax", "65536", False),
        ("vm.swappiness", "1", False),
    ],
)
def test_sysctls_of_own_namespaces_stay(name: str, value: str, kept: bool) -> None:
    config = namespaces("network")
    config["linux"]["sysctl"] = {name: value}
    plan = fitted(config, SLURM_USER)
    assert (name in plan.config["linux"]["sysctl"]) == kept
    assert bool(plan.notes) != kept


def test_devices_that_can_be_bound_stay() -> None:
    devices = [{"path": "/dev/fuse", "type": "c"}, {"path": "/dev/none", "type": "c"}]
    sources = {"/dev/fuse": MountSource(kind="device"), "/dev/none": MountSource(kind="missing")}
    config = {"linux": {"devices": devices}}
    assert fitted(config, LOCAL_USER, sources).config["linux"]["devices"] == devices[:1]
    # the node decides
    assert fitted(config, SLURM_USER, sources).config["linux"]["devices"] == devices
    # root makes them
    assert fitted(config, SLURM_ROOT, sources).config["linux"]["devices"] == devices


def test_rlimits_are_lowered_to_what_can_be_had() -> None:
    rlimits = [
        {"type": "RLIMIT_NOFILE", "hard": 1048576, "soft": 524288},
        {"type": "RLIMIT_NPROC", "hard": 100, "soft": 50},
        {"type": "RLIMIT_CORE", "hard": (1 << 64) - 1, "soft": 0},
    ]
    target = msgspec.structs.replace(
        LOCAL_ROOT, rlimits={"RLIMIT_NOFILE": 4096, "RLIMIT_CORE": (1 << 64) - 1}
    )
    plan = fitted({"process": {"rlimits": rlimits}}, target)
    lowered = {"type": "RLIMIT_NOFILE", "hard": 4096, "soft": 4096}
    assert plan.config["process"]["rlimits"] == [lowered, *rlimits[1:]]
    assert plan.notes == ("process.rlimits: RLIMIT_NOFILE lowered from 1048576 to 4096",)


def test_a_node_gets_the_rlimits_that_somebody_asked_for() -> None:
    """podman sets files and processes by itself, to the most that it may have here."""
    default = [
        {"type": "RLIMIT_NOFILE", "hard": 20000, "soft": 20000},
        {"type": "RLIMIT_NPROC", "hard": 4096, "soft": 4096},
    ]
    own = {"RLIMIT_NOFILE": 20000, "RLIMIT_NPROC": 4096, "RLIMIT_MEMLOCK": 65536}
    target = msgspec.structs.replace(SLURM_USER, rlimits=own)
    plan = fitted({"process": {"rlimits": default}}, target)
    assert plan.config["process"]["rlimits"] == []
    assert "RLIMIT_NOFILE and RLIMIT_NPROC dropped: Slurm propagates" in plan.notes[0]
    asked = [
        {"type": "RLIMIT_NOFILE", "hard": 600, "soft": 500},
        {"type": "RLIMIT_MEMLOCK", "hard": (1 << 64) - 1, "soft": (1 << 64) - 1},
    ]
    plan = fitted({"process": {"rlimits": [*asked, default[1]]}}, target)
    assert plan.config["process"]["rlimits"] == asked  # the shim lowers the second one
    # without a shim nobody does
    assert "rlimits" not in fitted({"process": {"rlimits": asked}}, SLURM_USER).config["process"]


def test_a_process_may_be_made_likelier_to_be_killed() -> None:
    target = msgspec.structs.replace(SLURM_USER, rlimits={})
    assert fitted({"process": {"oomScoreAdj": 7}}, target).config["process"]["oomScoreAdj"] == 7
    plan = fitted({"process": {"oomScoreAdj": -7}}, target)
    assert "oomScoreAdj" not in plan.config["process"]
    assert plan.missed == ("--oom-score-adj -7",)
    assert fitted({"process": {"oomScoreAdj": 0}}, target).missed == ()


@pytest.mark.parametrize("alone", ["/p/merged", "/p/up"])
def test_an_overlay_of_what_only_this_machine_has_is_a_copy(alone: str) -> None:
    """podman mounts an image, and a volume with the option O, as an overlay."""
    options = ["lowerdir=/p/merged:/p/empty", "upperdir=/p/up", "workdir=/p/work", "userxattr"]
    mount = {"destination": "/i", "type": "overlay", "source": "/p/m", "options": options}
    sources = {
        path: MountSource(kind="directory", real=path, private=path == alone, size=5)
        for path in ("/p/merged", "/p/empty", "/p/up", "/p/work")
    }
    plan = fitted({"mounts": [mount]}, SLURM_USER, sources)
    [volume] = plan.volumes
    assert (volume.source, volume.comes_back, volume.read_only) == ("/p/merged", False, False)
    bound = {"destination": "/i", "type": "bind", "source": volume.data, "options": ["rbind"]}
    assert plan.config["mounts"] == [bound]
    # an image is mounted read-only
    plan = fitted({"mounts": [{**mount, "options": options[:1]}]}, SLURM_USER, sources)
    if alone == "/p/merged":
        assert plan.config["mounts"][0]["options"] == ["rbind", "ro"]
    # the nodes have all of it, or it is this machine
    for target, known in ((SLURM_USER, {}), (LOCAL_USER, sources)):
        assert fitted({"mounts": [mount]}, target, known).config["mounts"] == [mount]


def test_capabilities_are_those_that_can_be_had() -> None:
    capabilities = {
        "bounding": ["CAP_KILL", "CAP_SYS_RESOURCE"],
        "ambient": ["CAP_SYS_RESOURCE"],
        "effective": ["CAP_KILL"],
    }
    target = msgspec.structs.replace(LOCAL_ROOT, capabilities=frozenset(("CAP_KILL",)))
    plan = fitted({"process": {"capabilities": capabilities}}, target)
    assert plan.config["process"]["capabilities"] == {
        "bounding": ["CAP_KILL"],
        "ambient": [],
        "effective": ["CAP_KILL"],
    }
    assert plan.notes == ("process.capabilities without CAP_SYS_RESOURCE: not permitted there",)


def test_the_one_user_is_root_where_the_runtime_needs_it() -> None:
    target = msgspec.structs.replace(LOCAL_USER, maps_root=True)
    plan = fitted(load("podman-user"), target)
    assert plan.config["process"]["user"] == {"uid": 0, "gid": 0, "umask": 18}
    assert plan.config["linux"]["uidMappings"] == [{"containerID": 0, "hostID": 1000, "size": 1}]
    assert "process.user.uid: 0 instead of 1000: the runtime there needs it" in plan.notes


def test_terminal_args_and_seccomp_stay() -> None:
    config = load("podman-seccomp")
    config["process"]["terminal"] = True
    plan = fitted(config, SLURM_USER)
    for key in ("terminal", "args", "env", "cwd", "capabilities"):
        assert plan.config["process"][key] == config["process"][key]
    assert plan.config["linux"]["seccomp"] == config["linux"]["seccomp"]
    for key in ("maskedPaths", "readonlyPaths"):
        assert plan.config["linux"][key] == config["linux"][key]


# mounts


@pytest.mark.parametrize("target", [SLURM_USER, LOCAL_ROOT])
@pytest.mark.parametrize("source", [None, ""])
def test_a_bind_mount_without_a_source_is_refused(target: Target, source: str | None) -> None:
    with pytest.raises(StagingError, match=r"mounts\[1\]\.source: missing"):
        fitted({"mounts": [bind("/a"), bind(source)]}, target)


@each_target
def test_a_bind_mount_of_nothing_is_for_the_node_to_refuse(target: Target) -> None:
    config, sources = {"mounts": [bind("/gone")]}, {"/gone": MountSource(kind="missing")}
    if target.elsewhere:
        assert fitted(config, target, sources).config["mounts"] == config["mounts"]
        return
    with pytest.raises(StagingError, match=r"mounts\[0\]\.source: /gone does not exist"):
        fitted(config, target, sources)


def test_what_can_only_be_here_is_refused() -> None:
    target = msgspec.structs.replace(SLURM_USER, host_only=("/run/user",))
    sources = {"/run/user/1/gone": MountSource(kind="missing", real="/run/user/1/gone")}
    with pytest.raises(StagingError, match="/run/user/1/gone does not exist"):
        fitted({"mounts": [bind("/run/user/1/gone")]}, target, sources)


def test_an_optional_mount_of_nothing_is_dropped() -> None:
    mount = bind("/gone", options=["rbind", "nofail"])
    plan = fitted({"mounts": [mount]}, SLURM_USER, {"/gone": MountSource(kind="missing")})
    assert plan.config["mounts"] == []
    assert plan.notes == ("mount /x dropped: /gone does not exist",)


@each_target
def test_relative_sources_begin_at_the_bundle(target: Target) -> None:
    mounts = [bind("data"), bind("../other", type="none"), {**bind("x"), "type": "tmpfs"}]
    mounts[2]["options"] = []
    plan = fitted({"mounts": mounts}, target)
    assert [m["source"] for m in plan.config["mounts"]] == ["/bundle/data", "/other", "x"]


def test_an_engines_file_for_one_container_is_copied_for_it_alone() -> None:
    path = "/run/user/1000/containers/x/hosts"
    source = MountSource(kind="file", size=10, own=True)
    plan = fitted({"mounts": [bind(path)]}, SLURM_USER, {path: source})
    [volume] = plan.volumes
    assert (volume.source, volume.place) == (path, "/shared/staged/files/0")
    assert plan.config["mounts"][0]["source"] == "/shared/staged/files/0/data/hosts"
    assert (volume.comes_back, plan.notes) == (False, ())


@pytest.mark.parametrize("destination", ["/dev/init", "/run/podman-init", "/sbin/docker-init"])
def test_the_init_of_an_engine_is_copied(destination: str) -> None:
    path = "/usr/bin/some-init"
    mount = bind(path, destination)
    plan = fitted({"mounts": [mount]}, SLURM_ROOT, {path: MountSource(kind="file", size=700_000)})
    [volume] = plan.volumes
    assert (volume.place, volume.read_only) == ("/shared/staged/files/0", True)
    large = fitted({"mounts": [mount]}, SLURM_ROOT, {path: MountSource(kind="file", size=5 << 20)})
    assert large.config["mounts"] == [mount]
    assert fitted({"mounts": [mount]}, LOCAL_ROOT).config["mounts"] == [mount]


def test_a_mount_that_was_made_for_the_container_is_passed_by() -> None:
    path = "/bundle/mnt/bound"
    source = MountSource(kind="directory", real="/data", there="/data")
    plan = fitted({"mounts": [bind(path)]}, SLURM_USER, {path: source})
    assert plan.config["mounts"] == [bind("/data")]
    assert plan.notes == ()


@pytest.mark.parametrize(
    ("options", "read_only"),
    [
        (["rbind"], False),
        (["rbind", "ro"], True),
        (["rbind", "ro", "rw"], False),
        (["rw", "bind", "ro"], True),
    ],
)
def test_a_volume_that_is_only_here_is_copied_for_all(options: list[str], read_only: bool) -> None:
    source = MountSource(kind="directory", size=VOLUMES.limit, private=True, real="/scratch/d")
    mounts = [bind("/scratch/d", options=options), bind("/scratch/link", "/y", options=["ro"])]
    sources = dict.fromkeys(("/scratch/d", "/scratch/link"), source)
    plan = fitted({"mounts": mounts}, SLURM_USER, sources)
    [one] = plan.volumes
    assert one.place.startswith("/shared/volumes/")
    assert {mount["source"] for mount in plan.config["mounts"]} == {f"{one.place}/data"}
    assert (one.read_only, one.comes_back) == (read_only, not read_only)
    assert ("come back" in plan.notes[0]) is not read_only


@pytest.mark.parametrize("target", [SLURM_USER, SLURM_ROOT], ids=["user", "root"])
def test_a_volume_in_another(target: Target) -> None:
    """Root's are apart: another container may put a link in the place of a directory."""
    directory = MountSource(kind="directory", private=True, real="/dev/shm/d")
    file = MountSource(kind="file", private=True, real="/dev/shm/d/a/file")
    mounts = [bind(file.real, "/f"), bind(directory.real, "/d", options=["ro"])]
    sources = {each.real: each for each in (directory, file)}
    plan = fitted({"mounts": mounts}, target, sources)
    whole = next(one for one in plan.volumes if not one.is_file)
    assert len(plan.volumes) == (1 if target.rootless else 2)
    assert whole.read_only is not target.rootless
    inside = plan.config["mounts"][0]["source"]
    assert (inside == f"{whole.data}/a/file") is target.rootless


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_volume_that_is_too_large_is_refused(kind: Any) -> None:
    """Without it the container would run, and what it writes would be lost."""
    source = MountSource(kind=kind, size=VOLUMES.limit + 1, private=True)
    with pytest.raises(StagingError, match=r"mount /x: .* more than 4 MiB: move it .*copy_size"):
        fitted({"mounts": [bind("/scratch/d")]}, SLURM_USER, {"/scratch/d": source})


@pytest.mark.parametrize("kind", ["socket", "fifo", "device"])
def test_what_cannot_be_copied_is_dropped_and_said(kind: Any) -> None:
    path = "/run/user/1000/it"
    plan = fitted({"mounts": [bind(path)]}, SLURM_USER, {path: MountSource(kind=kind)})
    assert (plan.config["mounts"], plan.volumes) == ([], ())
    why = f"{path} is only on this machine, and a {kind} cannot be copied"
    assert plan.notes == (f"mount /x dropped: {why}",)
    assert plan.missed == (f"the mount /x ({path} is a {kind} here)",)


@pytest.mark.parametrize("name", ["podman.sock", "docker.sock"])
@pytest.mark.parametrize(
    ("carries", "mine", "private"),
    [(True, True, True), (True, True, False), (False, True, False), (True, False, False)],
)
def test_the_socket_of_an_engine(name: str, *, carries: bool, mine: bool, private: bool) -> None:
    """It leads back if it is the user's own, on any file system; no other machine has it."""
    path = f"/srv/{name}"
    source = MountSource(kind="socket", real=path, private=private, mine=mine)
    target = msgspec.structs.replace(SLURM_USER, sockets=carries)
    plan = fitted({"mounts": [bind(path)]}, target, {path: source})
    leads_back = carries and mine
    assert plan.sockets == ({"/x": path} if leads_back else {})
    assert plan.missed == (() if leads_back else (f"the mount /x ({path} is a socket here)",))


def test_another_socket_of_the_user_s_is_dropped() -> None:
    path = "/run/user/1000/bus"
    source = MountSource(kind="socket", real=path, private=True, mine=True)
    target = msgspec.structs.replace(SLURM_USER, sockets=True)
    plan = fitted({"mounts": [bind(path)]}, target, {path: source})
    assert (plan.config["mounts"], plan.sockets) == ([], {})


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(StagingError, match=r"mounts\[0\].source: /run/user/1/it cannot be read"):
        fitted(
            {"mounts": [bind("/run/user/1/it")]},
            SLURM_USER,
            {"/run/user/1/it": MountSource(kind="unreadable")},
        )


def test_a_directory_in_the_place_of_shared_memory_is_a_volume() -> None:
    source = MountSource(kind="directory", private=True)
    plan = fitted(
        {"mounts": [bind("/dev/shm/mine", "/dev/shm")]}, SLURM_USER, {"/dev/shm/mine": source}
    )
    assert len(plan.volumes) == 1


@pytest.mark.parametrize(
    "path", ["/home/user/x", "/tmp", "/run", "/dev/fuse", "/sys", "/proc/1", "/etc/resolv.conf"]
)
def test_what_every_node_has_is_bound_there(path: str) -> None:
    private = path != "/home/user/x"
    source = MountSource(kind="directory", private=private, real=path)
    plan = fitted({"mounts": [bind(path)]}, SLURM_USER, {path: source})
    assert plan.config["mounts"] == [bind(path)]


def test_what_is_only_here_by_its_real_path_is_copied() -> None:
    source = MountSource(kind="file", real="/run/user/1000/x")
    plan = fitted({"mounts": [bind("/home/user/x")]}, SLURM_USER, {"/home/user/x": source})
    assert len(plan.volumes) == 1


def test_nothing_is_only_here_when_it_runs_here() -> None:
    source = MountSource(kind="socket", private=True)
    plan = fitted({"mounts": [bind("/run/user/1/s")]}, LOCAL_USER, {"/run/user/1/s": source})
    assert plan.config["mounts"] == [bind("/run/user/1/s")]


def test_shared_memory_of_podman_becomes_a_tmpfs() -> None:
    options = ["bind", "rprivate", "nosuid", "noexec", "nodev"]
    mount = bind("/run/user/1/shm", "/dev/shm", options=options)
    source = MountSource(kind="directory", private=True, capacity=65536000)
    plan = fitted({"mounts": [mount]}, SLURM_USER, {"/run/user/1/shm": source})
    assert plan.config["mounts"] == [
        {
            "destination": "/dev/shm",
            "type": "tmpfs",
            "source": "shm",
            "options": [*options[1:], "mode=1777", "size=65536000"],
        }
    ]


@pytest.mark.parametrize("name", ["a b;$(c)", ".bashrc", "...", "äöü", "x" * 255, "data"])
def test_only_the_file_itself_has_its_name(name: str) -> None:
    """What is beside it has names of scrun's own, whatever a user calls a file."""
    path = f"/run/user/1000/{name}"
    plan = fitted({"mounts": [bind(path)]}, SLURM_USER, {path: MountSource(kind="file")})
    [volume] = plan.volumes
    assert volume.data == f"{volume.place}/data/{name}"
    assert name not in volume.place


def in_a_pod(target: Target, uid: int = 0, **linux: Any) -> tuple[Target, dict[str, Any]]:
    """Return a target where another container is, and a config.json that joins all of that one.

    Args:
        target: The target.
        uid: The other's user.
        linux: Members of its `linux`.
    """
    other = namespaces("ipc", "mount", "network", "pid", "uts")
    other["process"] = {"user": {"uid": uid, "gid": 0}}
    other["linux"] |= linux
    there = fitted(other, target).config
    paths = {kind: f"/proc/7/ns/{kind}" for kind in ("cgroup", "ipc", "network", "pid", "uts")}
    config = namespaces("mount", **paths)
    config["process"] = {"user": {"uid": 0, "gid": 0}}
    config["mounts"] = [{"destination": "/sys", "type": "sysfs"}]
    return msgspec.structs.replace(target, neighbours={"/proc/7/ns": there}), config


def entered(plan: Plan) -> dict[str, str]:
    """Return the namespaces that are not new, by their types."""
    found = {n["type"]: n.get("path", "") for n in plan.config["linux"]["namespaces"]}
    return {kind: path for kind, path in sorted(found.items()) if path}


@pytest.mark.parametrize("target", [SLURM_USER, SLURM_PODMAN], ids=["one-user", "users"])
def test_namespaces_of_a_container_that_is_there(target: Target) -> None:
    """An ordinary user's enters them by the user namespace that they belong to."""
    plan = fitted(*reversed(in_a_pod(target)))
    kinds = ("ipc", "network", "pid", "user", "uts")
    assert entered(plan) == {kind: f"/proc/7/ns/{kind}" for kind in kinds}
    assert plan.config["linux"]["uidMappings"]  # runc asks for them in any case
    assert plan.notes == ("linux.namespaces: a new cgroup namespace instead of /proc/7/ns/cgroup",)
    assert mount_at(plan, "/sys") == {"destination": "/sys", "type": "sysfs"}


def test_root_needs_no_user_namespace_for_that() -> None:
    plan = fitted(*reversed(in_a_pod(SLURM_ROOT)))
    assert list(entered(plan)) == ["ipc", "network", "pid", "uts"]
    assert not any(n["type"] == "user" for n in plan.config["linux"]["namespaces"])


def test_namespaces_of_one_with_other_users() -> None:
    plan = fitted(*reversed(in_a_pod(SLURM_USER, uid=33)))
    assert entered(plan) == {}
    assert (
        plan.notes[0]
        == "linux.namespaces: not those of /proc/7/ns: that container has other users"
    )
    assert mount_at(plan, "/sys")["type"] == "bind"  # type: ignore[index]  # the node's network


def test_a_pid_namespace_is_entered_by_its_root_only() -> None:
    target, config = in_a_pod(SLURM_USER, uid=33)
    config["process"]["user"]["uid"] = 33
    plan = fitted(config, target)
    assert list(entered(plan)) == ["ipc", "network", "user", "uts"]
    assert {"type": "pid"} in plan.config["linux"]["namespaces"]


def test_what_the_other_one_has_not_itself() -> None:
    linux = namespaces("ipc", "mount", "uts")["linux"]
    plan = fitted(*reversed(in_a_pod(SLURM_USER, **linux)))
    assert list(entered(plan)) == ["ipc", "user", "uts"]
    assert "linux.namespaces: the node's network instead of /proc/7/ns/network" in plan.notes
