"""What staging has to know about where a container will run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scrun.oci.userns import BothIds

# Where engines keep files of single containers. None of them exist on another machine.
HOST_ONLY = (
    "/run/buildah",
    "/run/containerd",
    "/run/containers",
    "/run/crio",
    "/run/docker",
    "/run/libpod",
    "/run/lock",
    "/run/netns",
    "/run/user",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
)


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
        maps_root: The runtime there accepts only id maps with user 0, as runc does.
        link_rootfs: slurmstepd 22.05 sets root.path to BUNDLE/rootfs whatever config.json says,
            so the root file system must have that name.
        link_refused: Why the runtime there refuses a link of that name, with a remedy; "": it does
            not, for all that is known.
        host_only: Mount sources below these directories exist only here. The directories
            themselves (such as /run/user) exist everywhere.
        rlimits: Hard limits that cannot be raised there, by the runtime-spec's names;
            None: unknown, or they can be raised.
        capabilities: The most that a process there can have; None: all.
        slurm: The version of Slurm that runs there, or that the local engine imitates.
        neighbours: The config.json of containers there whose namespaces can be entered, by the
            directory that the submitted config.json names these by: /proc/PID/ns.
    """

    elsewhere: bool
    uid: int
    gid: int
    rootless: bool
    cgroups: bool = False
    ids: BothIds | None = None
    maps_root: bool = False
    link_rootfs: bool = False
    link_refused: str = ""
    host_only: tuple[str, ...] = HOST_ONLY
    rlimits: dict[str, int] | None = None
    capabilities: frozenset[str] | None = None
    slurm: str = SLURM
    neighbours: Mapping[str, Mapping[str, Any]] = {}
