"""Where a container will run, as far as staging has to know."""

from __future__ import annotations

import msgspec

from scrun.oci.userns import BothIds

# Where engines keep what they make for one container. None of it exists on another machine.
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
"""The version of Slurm whose ways this machine follows."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the container will run, as far as config.json has to know.

    Attributes:
        elsewhere: It is another machine: paths, processes and profiles of this one mean nothing
            there.
        uid: The user that calls the OCI runtime there, as the initial user namespace there
            counts users.
        gid: Its group, likewise.
        rootless: That user is not privileged there: the container needs a user namespace, and
            what only the node's root may do has to go.
        cgroups: The runtime there may make cgroups. Under Slurm the limits are Slurm's.
        ids: More users and groups that the container may have, if it is rootless; None: one each.
        maps_root: The runtime there takes only maps that have user 0 in them, as runc does.
        link_rootfs: slurmstepd 22.05 sets root.path to BUNDLE/rootfs whatever config.json says,
            so the root file system has to be found under that name.
        host_only: Mount sources below these directories exist only here. The directories
            themselves (/run/user, say) are everywhere.
        rlimits: Hard limits that cannot be raised there, by the runtime-spec's names;
            None: unknown, or no limit on raising.
        capabilities: What a process there can have at most; None: everything.
        slurm: The version of Slurm that is there, or whose ways this machine follows.
    """

    elsewhere: bool
    uid: int
    gid: int
    rootless: bool
    cgroups: bool = False
    ids: BothIds | None = None
    maps_root: bool = False
    link_rootfs: bool = False
    host_only: tuple[str, ...] = HOST_ONLY
    rlimits: dict[str, int] | None = None
    capabilities: frozenset[str] | None = None
    slurm: str = SLURM
