#!/usr/bin/env bash
# The root file system of a bundle is a symbolic link, to the one of the day or to one that several bundles share:
# "root": {"path": "rootfs"}, rootfs -> ../images/5.
#
# One would guess: a runtime follows it, as it follows a link to the bundle itself, and as chroot and bwrap do. The
# specification says only that a directory must exist at the path.
# What happens: so with crun. runc refuses it: "invalid rootfs: not an absolute path, or a symlink"; it makes the
# path absolute, and compares it with what realpath(3) gives. A link on the way to it is refused as well.
# Seen with crun 1.8.1 and runc 1.1.5 of Debian 12. Needs root.
#
#   rootfs -> files: crun 0, runc 1      the bundle is a link: both 0
. "$(dirname "$0")/common.bash" || exit 2
runtimes
cat >bundle/config.json <<'END_OF_JSON'
{"ociVersion": "1.0.2", "root": {"path": "rootfs"},
 "process": {"cwd": "/", "user": {"uid": 0, "gid": 0}, "args": ["/bin/true"], "env": ["PATH=/bin"]},
 "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
 "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}]}}
END_OF_JSON
ln -s bundle current
status() { "$1" run --bundle "$place/$2" "finding-$$" </dev/null >out 2>words && echo 0 || echo $?; }
expect "crun, the bundle is a link" 0 "$(status crun current)"
expect "runc, the bundle is a link" 0 "$(status runc current)"
mv bundle/rootfs bundle/files
ln -s files bundle/rootfs
expect "crun, the root is a link" 0 "$(status crun bundle)"
expect "runc, the root is a link" 1 "$(status runc bundle)"
expect "its words" 1 "$(grep -c 'invalid rootfs: not an absolute path, or a symlink' words)"
mkdir bundle/on
mv bundle/files bundle/on/rootfs
ln -s on bundle/way
sed -i 's,"path": "rootfs","path": "way/rootfs",' bundle/config.json
expect "crun, a link on the way" 0 "$(status crun bundle)"
expect "runc, a link on the way" 1 "$(status runc bundle)"
