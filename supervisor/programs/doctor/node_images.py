"""How a node mounts root file systems of images: the part of the test job that asks it."""

from collections.abc import Collection, Sequence

from scrun.supervisor.programs.doctor.findings import Finding
from scrun.supervisor.staging.on_node import ROOTLESS

NAME = "images on a node"

# the kernel makes a directory in `w` that its owner may not enter
SCRIPT = f"""\
fuse=; if [ -r /dev/fuse ] && [ -w /dev/fuse ]; then fuse=yes; fi
apart='{ROOTLESS} --mount' marks=userxattr,
if [ "$(id -u)" = 0 ]; then apart='unshare --mount' marks=; fi
place=$(mktemp -d "${{TMPDIR:-/tmp}}/scrun-doctor-XXXXXXXXXX") && (
    cd "$place" && mkdir l u w m || exit
    options=${{marks}}lowerdir=l,upperdir=u,workdir=w
    if said=$($apart mount -t overlay overlay -o "$options" m 2>&1); then
        echo 'overlay the kernel'
    elif [ -n "$fuse" ] && [ -n "$marks" ] && command -v fuse-overlayfs >/dev/null; then
        echo 'overlay fuse-overlayfs'
    else
        echo "refused $(echo "$said" | head -n 1)"
    fi
)
if [ -n "$place" ]; then chmod -R u+rwX "$place"; rm -rf "$place"; fi
if [ "$(id -u)" = 0 ]; then
    if grep -q squashfs /proc/filesystems && [ -e /dev/loop-control ]; then
        echo 'squashfs the kernel'
    fi
elif [ -n "$fuse" ]; then
    for p in squashfuse_ll squashfuse; do
        if command -v "$p" >/dev/null; then echo "squashfs $p"; break; fi
    done
fi
"""
"""Prints by what the node mounts an overlay (`overlay`), or why not (`refused`), and images."""

_LACKING = "squashfuse, or /dev/fuse for users, is missing"
_REMEDY = "install fuse-overlayfs there, and have udev make /dev/fuse for all"


def told(lines: Sequence[str], words: Collection[str]) -> dict[str, str]:
    """Return what follows the first of the lines that begin with each of some words.

    A site's scripts may write lines, too.
    """
    found: dict[str, str] = {}
    for line in lines:
        word, _, rest = line.partition(" ")
        if word in words:
            found.setdefault(word, rest.strip())
    return found


def judge(node: str, lines: Sequence[str]) -> Finding:
    """Judge what the script has printed.

    Args:
        node: The name of the node.
        lines: The lines; of several nodes, the first counts.
    """
    found = told(lines, ("overlay", "refused", "squashfs"))
    if (by := found.get("overlay")) is None:
        why = found.get("refused") or "it cannot be tried there"
        text = f"{node}: no overlay ({why}), so each container gets a copy of its image"
        return Finding(NAME, "warn", text, _REMEDY)
    images = found.get("squashfs")
    how = f"squashfs images by {images}" if images else f"copies are directories: {_LACKING}"
    return Finding(NAME, "ok", f"{node}: overlays by {by}, {how}")
