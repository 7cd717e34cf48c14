"""Tries on a node whether an overlay can be mounted there from the same layers."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from scrun.supervisor.staging.on_node import ROOTLESS, making
from scrun.supervisor.staging.overlay_options import Unusable, marks
from scrun.supervisor.staging.ways import DIFFER, BundleRefused, Unseen

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Sequence

TRIAL = ("trial", "trial/upper", "trial/work", "trial/rootfs")
"""Directories that it needs."""

_MOUNTED = "mounted"
# mount(8) as of 2.39 gives the kernel the options one by one, which may have 256 bytes then
_LOOK = """\
cd %s && {
stat -L -c '%%n %%i %%Y' . %s %s
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
        wanted: See `supervisor.contracts.node.Mounting.looks`.
    """

    def __init__(
        self, directory: str, layers: Sequence[str], images: Collection[int], store: str | None
    ) -> None:
        """Look at them here; see `Trial`."""
        found: list[tuple[str, int, int | None]] = [(directory, os.stat(directory).st_ino, None)]
        if store is not None:
            found.append((store, os.stat(store).st_ino, None))
        self._store = store is not None
        self._layers = dict[int, int]()
        for number, layer in enumerate(layers):
            if number not in images:
                self._layers[len(found)] = number
                status = os.stat(layer)
                link = os.path.join(directory, "l", str(number))
                found.append((link, status.st_ino, status.st_mtime_ns // 10**9))
        self.wanted = tuple(found)

    def unseen(self, others: frozenset[int]) -> Unusable:
        """Return what it means that some differ on the node, by their numbers."""
        if 0 in others:
            return Unusable(DIFFER)
        layers = frozenset(self._layers[number] for number in others if number in self._layers)
        return Unseen(DIFFER, layers, store=self._store and 1 not in others)


class Trial:
    """A script for a node, and what to make of its answer.

    Attributes:
        kind: What the mount depends on, beside the layers being there: a node that has mounted
            one need not try another one. None: each has to be tried.
    """

    def __init__(
        self,
        directory: str,
        lower: str,
        layers: Sequence[str],
        images: Collection[int] = (),
        *,
        rootless: bool,
        store: str | None = None,
        read_only: bool = False,
        on_node: bool = False,
        several: bool = False,
    ) -> None:
        """Write the script; reads the layers' inodes here.

        Args:
            directory: Has `l/N`, links to the layers, and the directories TRIAL.
            images: The numbers of those that only the node sees: it has mounted images there.
            rootless: Whether the container has rights in a user namespace only.
            on_node: Whether what is written shall be in a directory of the node.
            several: Whether several try it at once.
        """
        options = shlex.quote(",".join([lower, *marks(users=rootless)]))
        where = _HERE
        if not read_only:
            options += ',upperdir="$place"/trial/upper,workdir="$place"/trial/work'
            where = making() if on_node else _EACH if several else _HERE
        before = _ROOTLESS if rootless else _AS_ROOT
        self._try = _TRY % (where, before, options, _MOUNTED)
        self._seen = (
            shlex.quote(directory),
            shlex.quote(store) if store else "",
            " ".join(f"l/{number}" for number in range(len(layers))),
        )
        self._store = store
        here = os.stat(directory)
        self._here = here.st_ino
        self._store_is = os.stat(store).st_ino if store else 0
        found = {n: os.stat(layer) for n, layer in enumerate(layers) if n not in images}
        self._layers = {
            number: (status.st_ino, status.st_mtime_ns // 10**9)
            for number, status in found.items()
        }
        self.kind: Hashable = None
        if where == _HERE and not images:
            devices = tuple(status.st_dev for status in found.values())
            self.kind = (rootless, read_only, here.st_dev, devices, len(lower))

    def script(self, mounted: Collection[Hashable] = ()) -> str:
        """Return what the node runs by `sh -c`.

        Args:
            mounted: Of what kinds it has mounted some before.
        """
        known = self.kind is not None and self.kind in mounted
        return _LOOK % (*self._seen, f"echo {_MOUNTED}" if known else self._try)

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
        seen = {found[1]: found for found in map(_SEEN.fullmatch, lines) if found}
        said = next(filter(_COMPLAINT.match, lines), "")
        why = f"cannot be mounted on the node: {said}" if said else DIFFER
        if "." not in seen or int(seen["."][2]) != self._here:
            raise Unusable(why)
        missing = frozenset(
            number
            for number, layer in self._layers.items()
            if (one := seen.get(f"l/{number}")) is None or (int(one[2]), int(one[3])) != layer
        )
        if missing:
            store = self._store is not None and self._store in seen
            raise Unseen(
                why, missing, store=store and int(seen[self._store or ""][2]) == self._store_is
            )
        if _MOUNTED not in lines:
            raise BundleRefused(why)
