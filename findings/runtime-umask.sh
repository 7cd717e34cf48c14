#!/usr/bin/env bash
# An ordinary user runs a container with a umask that takes rights from the user, too: `umask 777`.
#
# One would guess: the umask is for the container's files, or for none, as config.json has a member
# process.user.umask; a runtime gives its own directories the modes that it needs.
# What happens: crun and runc make the directory of their state with what the umask leaves: nothing.
# They cannot enter it, fail, and leave it behind; only a chmod makes `rm -r` possible. With `umask 077`
# both run the container, and its own umask is 022.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root, to become another user.
#
#   umask 777: status 1, and a directory of the state with mode 0
#   umask 077: status 0, "0022"
. "$(dirname "$0")/common.bash" || exit 2
runtimes
chown -R 65534:65534 bundle
chmod 711 "$place"
cat >bundle/config.json <<'END_OF_JSON'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/sh", "-c", "umask"],
             "env": ["PATH=/bin"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "user"}],
           "uidMappings": [{"containerID": 0, "hostID": 65534, "size": 1}],
           "gidMappings": [{"containerID": 0, "hostID": 65534, "size": 1}]}}
END_OF_JSON
try() { # UMASK NAME PROGRAM…: run the container; print its status, its output and the state's modes
	local umask=$1 state=$place/$1-$2 status=0
	shift 2
	install -d -o 65534 -g 65534 "$state"
	XDG_RUNTIME_DIR=$state unshare --mount sh -c 'mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$@"' sh \
		setpriv --reuid=65534 --regid=65534 --clear-groups sh -c 'umask "$0" && exec "$@"' "$umask" \
		"$@" --root "$state/root" run --bundle "$place/bundle" "finding-$$" >out 2>>messages || status=$?
	echo "$status $(cat out) $(find "$state" -mindepth 1 -perm 0 -type d | wc -l)"
}
crun=("$place/root/usr/bin/crun" --cgroup-manager=disabled)
runc=("$place/root/usr/sbin/runc" --rootless=true)
expect "crun with umask 777" "1  1" "$(try 777 crun "${crun[@]}")"
expect "runc with umask 777" "1  1" "$(try 777 runc "${runc[@]}")"
expect "crun with umask 077" "0 0022 0" "$(try 077 crun "${crun[@]}")"
expect "runc with umask 077" "0 0022 0" "$(try 077 runc "${runc[@]}")"
