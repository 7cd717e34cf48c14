#!/usr/bin/env bash
# A directory with links such as bin/python -> ../lib/python, or absolute ones as virtual environments have, is mounted
# with sshfs.
#
# One would guess: links are as on the server, and lead to what is there on this side; sshfs 3.7.3 of other systems, and
# of Debian before its update of June 2026, has them so.
# What happens: a link with ".." or with "/" at its begin cannot be read, "Operation not permitted", also for root and
# though "bin/.." is within what is mounted. New ones can be made, without a word. The update means to keep a server's
# links from leading out, and the version is 3.7.3 as before. With -o follow_symlinks the files are there.
# Seen with sshfs 3.7.3 and sftp-server 9.2p1 of Debian 12. Needs root.
#
#   file: content     bin/link -> ../file: Operation not permitted     -o follow_symlinks: content
. "${BASH_SOURCE[0]%/*}/common.bash"
root_only
[[ -c /dev/fuse ]] || cannot "there is no /dev/fuse"
debs sshfs=3.7.3-1.2~deb12u1 libfuse3-3=3.14.0-4 openssh-sftp-server=1:9.2p1-2+deb12u10
mkdir -p served/bin mount
echo content >served/file
ln -s ../file served/bin/link
ln -s file served/beside
printf '#!/bin/sh\nexec %q\n' "$place/root/usr/lib/openssh/sftp-server" >call # in place of ssh
chmod +x call
on_exit+=("! mountpoint -q '$place/mount' || umount '$place/mount'")
try() { # OPTION…: what is read by three names
	local name
	sshfs -o ssh_command="$place/call" "$@" "host:$place/served" mount || cannot "sshfs cannot mount"
	for name in file beside bin/link; do { cat "mount/$name" 2>&1 || true; } | sed 's/.*: //'; done | paste -sd,
	umount mount
}
expect "file, link, link to .." "content,content,Operation not permitted" "$(try)"
expect "with follow_symlinks" "content,content,content" "$(try -o follow_symlinks)"
