#!/usr/bin/env bash
# The directory of a service's socket (an engine, a database, munge, an ssh agent) is given to a container through a
# FUSE file system that maps owners or joins directories: bindfs, mergerfs, fuse-overlayfs.
#
# One would guess: a client finds the service there, as through a bind mount: stat shows a socket.
# What happens: "Connection refused", as if the service did not run. A socket belongs to the inode where it was bound,
# and the FUSE file system has an inode of its own; named pipes have two ends that never meet for the same reason.
# Seen with bindfs 1.14.7, mergerfs 2.33.5 and fuse-overlayfs 1.10 of Debian 12. Needs root and /dev/fuse.
#
#   connect: bind mount: ok     bindfs, mergerfs, fuse-overlayfs: Connection refused
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs bindfs=1.14.7-1 mergerfs=2.33.5-1 fuse-overlayfs=1.10-1 libfuse3-3=3.14.0-4 libfuse2=2.9.9-6+b1
[[ -c /dev/fuse ]] || cannot "it needs /dev/fuse"
mkdir source upper work mounted
on_exit+=("umount mounted 2>/dev/null")
cat >server.py <<'END_OF_PROGRAM'
import signal
import socket

with socket.socket(socket.AF_UNIX) as server:
    server.bind("source/socket")
    server.listen()
    print("listens", flush=True)
    signal.pause()
END_OF_PROGRAM
cat >client.py <<'END_OF_PROGRAM'
import os
import socket
import stat

assert stat.S_ISSOCK(os.stat("mounted/socket").st_mode)
with socket.socket(socket.AF_UNIX) as client:
    try:
        client.connect("mounted/socket")
        print("ok")
    except OSError as error:
        print(error.strerror)
END_OF_PROGRAM
python3 server.py >started &
on_exit+=("kill $!; wait $!")
for ((try = 0; try < 100; try++)); do
	[[ ! -s started ]] || break
	sleep 0.1
done
try() { # MOUNT…
	"$@" 2>>words || cannot "$(tail -n 1 words)"
	python3 client.py
	umount mounted
}
refused="Connection refused"
expect "bind mount" ok "$(try mount --bind source mounted)"
expect "bindfs" "$refused" "$(try bindfs source mounted)"
expect "mergerfs" "$refused" "$(try mergerfs source mounted)"
expect "fuse-overlayfs" "$refused" "$(try fuse-overlayfs -o lowerdir=source,upperdir=upper,workdir=work mounted)"
