#!/usr/bin/env bash
# A file has two names, hard links, in a directory that a FUSE file system shows (bindfs, mergerfs, unionfs-fuse), and
# what is appended through one name is read through the other at once: caches, mail boxes, results that are linked
# into place.
#
# One would guess: it is there: it is one file. stat says so: two links, and for bindfs one inode.
# What happens: the other name has the old length for a second, and what is beyond that is cut off, also for cp and
# tar: a short file, status 0. FUSE's library keeps what it knows of a file for each name, and asks again after a
# second.
# Seen with bindfs 1.14.7, mergerfs 2.33.5 and unionfs-fuse 1.0 of Debian 12. Needs root and /dev/fuse.
#
#   echo 1 >a; ln a b; stat a b; echo 2 >>b; cp a copy:    bind mount: 1 2    bindfs, mergerfs, unionfs-fuse: 1
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs bindfs=1.14.7-1 mergerfs=2.33.5-1 unionfs-fuse=1.0-1+b1 libfuse3-3=3.14.0-4 libfuse2=2.9.9-6+b1
[[ -c /dev/fuse ]] || cannot "it needs /dev/fuse"
mkdir mounted
on_exit+=("umount mounted 2>/dev/null")
cat >program.py <<'END_OF_PROGRAM'
import os
import time

os.chdir("mounted")
with open("a", "w") as file:
    file.write("1")
os.link("a", "b")
links = os.stat("b").st_nlink, os.stat("a").st_nlink
with open("b", "a") as file:
    file.write(" 2")
at_once = open("a").read()
time.sleep(1.5)
print(f"{links[0]} links; {at_once}; later {open('a').read()}")
END_OF_PROGRAM
try() { # MOUNT…
	rm -rf source
	mkdir source
	"$@" 2>>words || cannot "$(tail -n 1 words)"
	python3 program.py
	umount mounted
}
expect "bind mount" "2 links; 1 2; later 1 2" "$(try mount --bind source mounted)"
expect "bindfs" "2 links; 1; later 1 2" "$(try bindfs source mounted)"
expect "mergerfs" "2 links; 1; later 1 2" "$(try mergerfs source mounted)"
expect "unionfs-fuse" "2 links; 1; later 1 2" "$(try unionfs -o cow source=RW mounted)"
