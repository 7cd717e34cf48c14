#!/usr/bin/env bash
# A directory is renamed in an overlay of unionfs-fuse (-o cow), which live systems and engines without overlayfs of the
# kernel use. In it a file of the lower branch has been deleted.
#
# One would guess: the directory has its new name, and the file is still deleted, as with overlayfs and fuse-overlayfs.
# What happens: the file is back. unionfs-fuse copies the directory up as the lower branch has it. What notes the
# deleted file (.unionfs-fuse/NAME_HIDDEN~, which anyone sees in the root) has the directory's old name.
# Seen with unionfs-fuse 1.0 of Debian 12. Needs root.
#
#   rm dir/secret, mv dir new: new has: kept secret
. "$(dirname "$0")/common.bash" || exit 2
root_only
[[ -c /dev/fuse ]] || cannot "there is no /dev/fuse"
debs unionfs-fuse=1.0-1+b1 libfuse3-3=3.14.0-4
mkdir -p lower/dir upper mount
touch lower/dir/{kept,secret}
unionfs -o cow "$place/upper=RW:$place/lower=RO" mount 2>words || cannot "$(cat words)"
on_exit+=("umount '$place/mount'")
rm mount/dir/secret
expect "before" kept "$(ls mount/dir)"
mv mount/dir mount/new
expect "after" "kept secret" "$(find mount/new -type f -printf '%f\n' | sort | xargs)"
