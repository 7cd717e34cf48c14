#!/usr/bin/env bash
# mksquashfs makes an image from a tar archive, such as a layer, whose first entry is "./".
#
# One would guess: the root directory has the mode and the owner of that entry, as after tar -x.
# What happens: mksquashfs ignores the entry. The root directory has mode 0777 and the owner who calls
# mksquashfs; -root-mode, -root-uid and -root-gid change that.
# Seen with squashfs-tools 4.5.1 of Debian 12.
#
#   archive: drwxr-x--- 1234/1234 ./     image, by root: drwxrwxrwx 0/0 squashfs-root
#   "Empty tar filename after skipping leading /, ./, or ../, ignoring"
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
mkdir -m 750 files
echo x >files/file
tar -C files --owner=:1234 --group=:1234 -cf files.tar .
expect "the archive's entry" "drwxr-x--- 1234/1234" \
	"$(tar --numeric-owner -tvf files.tar ./ | head -n 1 | cut -d' ' -f1,2)"
mksquashfs - image -tar -quiet -no-progress <files.tar >out 2>&1
expect "words" "Empty tar filename after skipping leading /, ./, or ../, ignoring" "$(cat out)"
expect "the root directory" "drwxrwxrwx $(id -u)/$(id -g)" "$(unsquashfs -lln image | head -n 1 | cut -d' ' -f1,2)"
expect "a file" "-rw-r--r-- 1234/1234" "$(unsquashfs -lln image file | tail -n 1 | cut -d' ' -f1,2)"
