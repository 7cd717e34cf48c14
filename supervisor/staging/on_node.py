"""What a container writes, on its node, where no overlay can write to the staged bundle.

That is so on NFS and most parallel file systems. Before the container runs, a script makes a
private directory in the node's TMPDIR; afterwards another one sends what is there as an
archive beside the staged bundle. Only where all files belong to one user, or to root's containers:
others could not be sent or removed by the job's user. Pure, except `remote` and `archives_in`.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from scrun.supervisor.contracts.staged import OVERLAY
from scrun.supervisor.staging.overlay_options import is_plain
from scrun.supervisor.staging.survey import mount_of, read_mounts

if TYPE_CHECKING:
    from collections.abc import Sequence

SENT = "sent"
"""The last line if all was sent."""

ROOTLESS = "unshare --user --map-root-user"

# no overlay can be written to these
_REMOTE = re.compile(
    r"(nfs|cifs|smb|lustre|gpfs|beegfs|ceph|9p|afs|fuse|glusterfs|orangefs)", re.ASCII
)
_ARCHIVE = re.compile(r"written-[0-9]+\.tar", re.ASCII)
_PLACE = re.compile(r"^place (/\S+)$", re.ASCII | re.MULTILINE)
# nobody else may be able to replace it: each component is root's or the user's own, and others
# write to it with the sticky bit only
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


def making() -> str:
    """Return the words of a shell that make the directory; `$place` is its path."""
    return _MAKE


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
