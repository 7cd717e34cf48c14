"""Scripts for a node that is to mount an overlay.

Some try whether it can, with the layers that are seen here. Others are for what the container
writes, where no overlay can write to the staged bundle: on NFS and most parallel file systems.
Before the container runs, a script makes a private directory in the node's TMPDIR; afterwards
another one sends what is there as an archive beside the staged bundle. That is only done where all
files belong to one user, or to root's containers:
others could not be sent or removed by the job's user. Pure, except `remote` and `archives_in`.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from scrun.supervisor.contracts.staged import OVERLAY
from scrun.supervisor.staging.layers import Unusable, is_plain, marks
from scrun.supervisor.staging.survey import mount_of, read_mounts
from scrun.supervisor.staging.ways import BundleRefused, Unseen

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

SENT = "sent"
"""The last line if all was sent."""

ROOTLESS = "unshare --user --map-root-user"

# no overlay can be written to these
_REMOTE = re.compile(
    r"(nfs|cifs|smb|lustre|gpfs|beegfs|ceph|9p|afs|fuse|glusterfs|orangefs)", re.ASCII
)
_ARCHIVE = re.compile(r"written-[0-9]+\.tar", re.ASCII)
_PLACE = re.compile(r"^place (/\S+)$", re.ASCII | re.MULTILINE)
# makes the directory `$place`, which nobody else may be able to replace: each component is root's
# or the user's own, and others write to it with the sticky bit only
_MAKE = """\
ours() {
p=$(cd -P -- "$1" && pwd -P) || return
at=$p
while [ -n "$(find "$p" -prune \\( -user 0 -o -user "$(id -u)" \\) \\
\\( -perm -1000 -o ! -perm -020 ! -perm -002 \\))" ]; do
[ "$p" = / ] && echo "$at" && return
p=${p%/*}
p=${p:-/}
done
echo "$p: others could replace what is made there" >&2
return 1
}
room=$(ours "${TMPDIR:-/tmp}" || ours /var/tmp) &&
place=$(mktemp -d "$room/scrun-written-XXXXXXXXXX") &&
cp -a upper work trial "$place" &&
echo "place $place" &&
"""
_REMOVE = "chmod -R u+rwX {0}; rm -rf {0}"
_SEND = """\
cd {0} && {1} tar --create --file {2}.part --format=posix --xattrs --xattrs-include='*' upper &&
mv {2}.part {2} && echo {3} && cd / && {1} sh -c {4}
"""


def remote(directory: str) -> bool:
    """Return whether a directory is on a file system that cannot have what an overlay writes."""
    return bool(_REMOTE.match(mount_of(directory, read_mounts()).kind))


def making_in(directory: str) -> str:
    """Return a script that makes one, for the directory `overlay` of a staged bundle."""
    return f"cd {shlex.quote(directory)} && {_MAKE} :"


def place_in(answer: str) -> str:
    """Return the directory that a node says it has made, or ""."""
    found = _PLACE.search(answer)
    return found[1] if found and is_plain(found[1]) else ""


def removing(places: Sequence[str], *, rootless: bool) -> str:
    """Return a script that removes the directories, as far as they are on the node."""
    script = shlex.quote(_REMOVE.format(shlex.join(places)))
    return f"{ROOTLESS if rootless else ''} sh -c {script}"


def sending(place: str, archive: str, *, rootless: bool) -> str:
    """Return a script that sends the changes, and then removes the directory."""
    before = ROOTLESS if rootless else ""
    quoted = shlex.quote(place)
    remove = shlex.quote(_REMOVE.format(quoted))
    return _SEND.format(quoted, before, shlex.quote(archive), SENT, remove)


def archive_of(directory: str, task: int) -> str:
    """Return the path of the archive beside a staged bundle's layers; it is complete if there."""
    return os.path.join(directory, OVERLAY, f"written-{task}.tar")


def archives_in(overlay: str) -> list[str]:
    """Return the complete archives beside a staged bundle's layers."""
    names = os.listdir(overlay) if os.path.isdir(overlay) else []
    return [os.path.join(overlay, name) for name in sorted(names) if _ARCHIVE.fullmatch(name)]


def unpacking(archive: str, into: str, *, owners: bool) -> tuple[str, ...]:
    """Return the command that unpacks such an archive."""
    how = ("--same-owner", "--numeric-owner") if owners else ("--no-same-owner",)
    words = ("tar", "--extract", "--file", archive, "--directory", into, "--preserve-permissions")
    return (*words, *how, "--xattrs", "--xattrs-include=*")


TRIAL = ("trial", "trial/upper", "trial/work", "trial/rootfs")
"""Directories that it needs."""

_MOUNTED = "mounted"
_DIFFER = "differ on the node"
# mount(8) as of 2.39 gives the kernel the options one by one, which may have 256 bytes then
_LOOK = """\
cd %s && {
stat -L -c '%%n %%i %%Y' %s
%s
}
"""
_TRY = """\
export LIBMOUNT_FORCE_MOUNT2=always
%s
%s /bin/sh -c 'mount -t overlay overlay -o "$1" "$2"' sh %s trial/rootfs &&
echo %s || { [ "$place" = . ] || rm -rf "$place"; }"""
_HERE = "place=."
_EACH = """\
place=$(mktemp -d trial/each-XXXXXXXXXX) && mkdir -p "$place/trial/upper" "$place/trial/work" &&
"""
_COMPLAINT = re.compile(r"(mount|unshare|stat|(/bin/)?sh): ")
_SEEN = re.compile(r"(\S+) ([0-9]+) ([0-9-]+)", re.ASCII)
_ROOTLESS = f"{ROOTLESS} --mount"
_AS_ROOT = "unshare --mount"


class Looks:
    """The directories that have to be the same on the node.

    Attributes:
        wanted: See `supervisor.contracts.target.Mounting.looks`; first the staged bundle's.
        names: Their paths, seen from that one.
        devices: Those of its file system and of the layers'.
    """

    def __init__(
        self, directory: str, layers: Sequence[str], images: Collection[int], store: str | None
    ) -> None:
        """Look at them here: `l/N` in `directory`, links to the layers, and the directories TRIAL.

        Only the node sees `images`, which it has mounted; the `store` of images is to be seen, if
        any.
        """
        self._layers = [number for number in range(len(layers)) if number not in images]
        links = [f"l/{number}" for number in self._layers]
        found = [os.stat(directory), *(os.stat(layers[number]) for number in self._layers)]
        self.devices = tuple(status.st_dev for status in found)
        self.names = [".", *links]
        wanted: list[tuple[str, int, int | None]] = [(directory, found[0].st_ino, None)]
        wanted += (
            (os.path.join(directory, link), status.st_ino, status.st_mtime_ns // 10**9)
            for link, status in zip(links, found[1:], strict=True)
        )
        self._store = store is not None
        if store is not None:
            self.names.append(store)
            wanted.append((store, os.stat(store).st_ino, None))
        self.wanted = tuple(wanted)

    def unseen(self, others: frozenset[int], why: str = _DIFFER) -> Unusable:
        """Return what it means that some differ on the node, by their numbers."""
        if 0 in others:
            return Unusable(why)
        layers = frozenset(n for place, n in enumerate(self._layers, 1) if place in others)
        return Unseen(why, layers, store=self._store and len(self.wanted) - 1 not in others)


class Trial:
    """A script for a node, and what to make of its answer.

    Attributes:
        kind: What the mount depends on, beside the layers being there: a node that has mounted
            one need not try another one. None: each has to be tried.
    """

    def __init__(
        self,
        looks: Looks,
        lower: str,
        *,
        rootless: bool,
        images: bool = False,
        read_only: bool = False,
        on_node: bool = False,
        several: bool = False,
    ) -> None:
        """Write the script.

        `rootless`: the container has rights in a user namespace only; `images`: the node has
        mounted some; `on_node`: what is written shall be in a directory of the node; `several` try
        it at once.
        """
        options = shlex.quote(",".join([lower, *marks(users=rootless)]))
        where = _HERE
        if not read_only:
            options += ',upperdir="$place"/trial/upper,workdir="$place"/trial/work'
            where = _MAKE if on_node else _EACH if several else _HERE
        before = _ROOTLESS if rootless else _AS_ROOT
        self._try = _TRY % (where, before, options, _MOUNTED)
        self._looks = looks
        self.kind: Hashable = None
        if where == _HERE and not images:
            self.kind = (rootless, read_only, looks.devices, len(lower))

    def script(self, mounted: Collection[Hashable] = ()) -> str:
        """Return what the node runs by `sh -c`; it has mounted some of these kinds before."""
        known = self.kind is not None and self.kind in mounted
        directory, names = shlex.quote(self._looks.wanted[0][0]), shlex.join(self._looks.names)
        return _LOOK % (directory, names, f"echo {_MOUNTED}" if known else self._try)

    def judge(self, answers: Sequence[str]) -> None:
        """Look at what the script printed on each node.

        Raises:
            Unseen: A node has other layers.
            Refused: One could not mount them.
            Unusable: One does not see the staged bundle.
        """
        unseen: list[Unseen] = []
        refused: list[BundleRefused] = []
        for answer in answers:
            try:
                self._judge(answer)
            except Unseen as error:
                unseen.append(error)
            except BundleRefused as error:
                refused.append(error)
        if unseen:
            layers = frozenset[int]().union(*(error.layers for error in unseen))
            store = all(error.store for error in unseen)
            raise Unseen(str(unseen[0]), layers, store=store)
        if refused:
            raise refused[0]

    def _judge(self, answer: str) -> None:
        lines = answer.splitlines()  # a site's prolog may write before
        seen = {one[1]: (int(one[2]), int(one[3])) for one in map(_SEEN.fullmatch, lines) if one}
        said = next(filter(_COMPLAINT.match, lines), "")
        why = f"cannot be mounted on the node: {said}" if said else _DIFFER
        others = frozenset(
            number
            for number, (_, inode, time) in enumerate(self._looks.wanted)
            if (one := seen.get(self._looks.names[number])) is None
            or one[0] != inode
            or time not in (None, one[1])
        )
        failure = self._looks.unseen(others, why)
        if not isinstance(failure, Unseen) or failure.layers:
            raise failure
        if _MOUNTED not in lines:
            raise BundleRefused(why)
