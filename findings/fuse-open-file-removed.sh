#!/usr/bin/env bash
# A directory is removed in which a program still has a file open, such as a log or a library, on a FUSE file system:
# bindfs, unionfs-fuse, fuse2fs.
#
# One would guess: `rm -r` removes it, as on every file system of the kernel's but NFS; the program reads on from a
# file without a name.
# What happens: "Directory not empty". FUSE's library renames the file to .fuse_hidden… instead of removing it,
# because most file systems made with it could not read it otherwise. Where the program of the file system is killed,
# the file stays for good. mergerfs and fuse-overlayfs do as the kernel does.
# Seen with bindfs 1.14.7, unionfs-fuse 1.0, fuse2fs 1.47.0, mergerfs 2.33.5 and fuse-overlayfs 1.10 of Debian 12.
# Needs root and /dev/fuse.
#
#   rm -r: bindfs, unionfs-fuse, fuse2fs: Directory not empty, .fuse_hidden…     mergerfs, fuse-overlayfs: removed
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs bindfs=1.14.7-1 mergerfs=2.33.5-1 fuse-overlayfs=1.10-1 libfuse3-3=3.14.0-4 libfuse2=2.9.9-6+b1 \
	unionfs-fuse=1.0-1+b1 fuse2fs=1.47.0-2+b2 libext2fs2=1.47.0-2+b2 e2fsprogs=1.47.0-2+b2
[[ -c /dev/fuse ]] || cannot "it needs /dev/fuse"
mkdir mounted
truncate -s 8M image
mke2fs -q image
on_exit+=("umount mounted 2>/dev/null")
try() { # MOUNT…
	rm -rf source upper work
	mkdir source upper work
	"$@" >>words 2>&1 || cannot "$(tail -n 1 words)"
	mkdir mounted/directory
	{
		if rm -r mounted/directory 2>>words; then
			echo removed
		else
			ls -A mounted/directory | sed 's/[0-9a-f]\{4,\}$/…/'
		fi
	} 9>mounted/directory/file
	umount mounted
}
expect "bind mount" removed "$(try mount --bind source mounted)"
expect "mergerfs" removed "$(try mergerfs source mounted)"
expect "fuse-overlayfs" removed "$(try fuse-overlayfs -o lowerdir=source,upperdir=upper,workdir=work mounted)"
expect "bindfs" ".fuse_hidden…" "$(try bindfs source mounted)"
expect "unionfs-fuse" ".fuse_hidden…" "$(try unionfs -o cow source=RW mounted)"
expect "fuse2fs" ".fuse_hidden…" "$(try fuse2fs image mounted)"
expect "words" "Directory not empty" "$(tail -n 1 words | sed 's/.*: //')"
