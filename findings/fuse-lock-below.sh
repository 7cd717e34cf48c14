#!/usr/bin/env bash
# Two programs lock the same file (flock(1), SQLite, pip, git), one through a FUSE file system over a directory
# (bindfs, mergerfs, fuse-overlayfs), and one in the directory itself or through a second such mount: two containers
# with a volume.
#
# One would guess: only one of them has it. It is one file of one machine, and through a bind mount it is so.
# What happens: both have it, with flock(2) and with fcntl(2). Unless the file system asks for them, the kernel keeps
# locks for each mount by itself and tells nobody, and none of the three asks. bindfs has --enable-lock-forwarding.
# Seen with bindfs 1.14.7, mergerfs 2.33.5 and fuse-overlayfs 1.10 of Debian 12. Needs root and /dev/fuse.
#
#   a second lock:   bind mount: refused    bindfs, mergerfs, fuse-overlayfs: had by both
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs bindfs=1.14.7-1 mergerfs=2.33.5-1 fuse-overlayfs=1.10-1 libfuse3-3=3.14.0-4 libfuse2=2.9.9-6+b1
[[ -c /dev/fuse ]] || cannot "it needs /dev/fuse"
mkdir source upper work mounted
echo data >source/file
on_exit+=("umount mounted 2>/dev/null")
cat >program.py <<'END'
import fcntl
import os
import sys

kind, first, second = sys.argv[1:]
lock = fcntl.flock if kind == "flock" else fcntl.lockf
with open(first, "r+") as file, open(second, "r+") as other:
    lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    child = os.fork()
    if child == 0: # record locks are the process's
        try:
            lock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os._exit(1)
        os._exit(0)
    print({0: "both", 1: "refused"}[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])])
END
try() { # MOUNT…: the two kinds of locks
	"$@" 2>>words || cannot "$(tail -n 1 words)"
	echo "$(python3 program.py flock source/file mounted/file) $(python3 program.py fcntl source/file mounted/file)"
	umount mounted
}
expect "bind mount" "refused refused" "$(try mount --bind source mounted)"
expect "bindfs" "both both" "$(try bindfs source mounted)"
expect "mergerfs" "both both" "$(try mergerfs source mounted)"
expect "fuse-overlayfs" "both both" "$(try fuse-overlayfs -o lowerdir=source,upperdir=upper,workdir=work mounted)"
try bindfs --multithreaded --enable-lock-forwarding source mounted >forwarding
expect "bindfs, forwarding" "refused" "$(grep -o '^[a-z]*' forwarding)"
