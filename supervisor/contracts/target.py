"""Where a container will run, as staging has to know it, and what its nodes can do for that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from scrun.core.errors import EngineError
from scrun.oci.userns import BothIds

# Where engines keep files of single containers. None of them exist on another machine.
HOST_ONLY = (
    "/run/buildah", "/run/containerd", "/run/containers", "/run/crio", "/run/docker",
    "/run/libpod", "/run/lock", "/run/netns", "/run/user",
    "/var/lib/containers", "/var/lib/docker", "/var/lib/kubelet",
)  # fmt: skip

SLURM = "22.05.8"
"""The version of Slurm that the local engine imitates."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the container will run, as far as config.json depends on it.

    Attributes:
        elsewhere: It is another machine: paths, processes and profiles of this one mean nothing
            there.
        uid: The user that calls the OCI runtime there, in the initial user namespace there.
        gid: Its group, likewise.
        rootless: That user is not privileged there: the container needs a user namespace, and
            what only the node's root may do is removed.
        cgroups: The runtime there may create cgroups. Under Slurm the limits are Slurm's.
        ids: Further users and groups for a rootless container; None: one each.
        nests: The runtime there can be called in a user namespace that has these.
        maps_root: The runtime there accepts only id maps with user 0, as runc does.
        link_rootfs: slurmstepd 22.05 sets root.path to BUNDLE/rootfs whatever config.json says,
            so the root file system must have that name.
        link_refused: Why the runtime there refuses a link of that name, with a remedy; "": it does
            not, for all that is known.
        host_only: Mount sources below these directories exist only here. The directories
            themselves (such as /run/user) exist everywhere.
        rlimits: Hard limits that cannot be raised there, by the runtime-spec's names; None:
            unknown, or they can be raised. Elsewhere they are those of this machine, and a shim
            there lowers what exceeds its own; None: there is no shim.
        capabilities: The most that a process there can have; None: all.
        slurm: The version of Slurm that runs there, or that the local engine imitates.
        neighbours: The config.json of containers there whose namespaces can be entered, by the
            directory that the submitted config.json names these by: /proc/PID/ns.
        sockets: Whether a container there reaches sockets of its engine's here.
    """

    elsewhere: bool
    uid: int
    gid: int
    rootless: bool
    cgroups: bool = False
    ids: BothIds | None = None
    nests: bool = False
    maps_root: bool = False
    link_rootfs: bool = False
    link_refused: str = ""
    host_only: tuple[str, ...] = HOST_ONLY
    rlimits: dict[str, int] | None = None
    capabilities: frozenset[str] | None = None
    slurm: str = SLURM
    neighbours: Mapping[str, Mapping[str, Any]] = {}
    sockets: bool = False


class NotThere(EngineError):
    """A file is not there on a node."""


class OthersThere(EngineError):
    """Directories are others on a node.

    Attributes:
        numbers: Which of `Mounting.looks`.
    """

    def __init__(self, numbers: Collection[int]) -> None:
        super().__init__("directories differ on the node")
        self.numbers = frozenset(numbers)


class RootRefused(EngineError):
    """A node refuses to mount an overlay: its kernel does, or it has no fuse-overlayfs."""


class ImageFile(msgspec.Struct, frozen=True):
    """An image for nodes that do not see it.

    Attributes:
        file: The file here.
        name: One that no other content has.
    """

    file: str
    name: str
    size: int


class Mounting(msgspec.Struct, frozen=True):
    """What to mount for a container.

    Attributes:
        files: For each task, or for all of them, images and the directories to mount them on.
            Without these, `roots` and `looks`: only tell whether images can be mounted.
        maps: `uidMappings` and `gidMappings` of the container, if it has several users and these
            are not root's; or of a user namespace around the container's.
        users: Whether to make a user namespace with these, even if nothing is mounted.
        mine: Whether all files should belong to the user of the job, who is user 0 of a container
            with several users; not for root.
        known: For each image its inode, its bytes and the seconds of its time: a node may have
            something else by that name; empty: nothing else can have it.
        roots: For each task, or for all of them, an overlay that is the root file system: the
            directory to mount it on, the one that its options' paths begin in, and the options;
            empty: none.
        by_fuse: Whether fuse-overlayfs is to mount those, as the kernel refuses to.
        beside: Where config.json has the namespaces of another container, in whose user namespace
            they are to be mounted; "": in one of its own.
        looks: Directories that have to be the same on the nodes: the path, the inode, and the
            seconds of the time or None.
        network: Whether the container is to have a network of its own.
    """

    files: Sequence[Sequence[tuple[str, str]]] = ((),)
    maps: Mapping[str, Any] | None = None
    users: bool = False
    mine: bool = False
    known: Sequence[tuple[int, int, int]] = ()
    roots: Sequence[tuple[str, str, str]] = ()
    by_fuse: bool = False
    beside: str = ""
    looks: Sequence[tuple[str, int, int | None]] = ()
    network: bool = False

    @property
    def mounts(self) -> bool:
        return self.users or bool(self.roots) or any(self.files)

    @property
    def only_looks(self) -> bool:
        """Whether directories are looked at, and nothing else is asked."""
        return bool(self.looks) and not self.mounts

    def of(self, task: int) -> dict[str, Any]:
        """Return the words of a call of the shim of a task."""
        words = msgspec.structs.asdict(self)
        del words["roots"]
        root = self.roots and self.roots[task if len(self.roots) > 1 else 0]
        return {**words, "files": self.files[task if len(self.files) > 1 else 0], "root": root}


class NodeAnswer(msgspec.Struct, frozen=True):
    """The output of a script on a node.

    Attributes:
        status: The script's exit status.
        text: Its standard output and error.
    """

    node: str
    status: int
    text: str
