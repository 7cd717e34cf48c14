#!/usr/bin/env bash
# rdsquashfs of squashfs-tools-ng takes an image apart: `rdsquashfs --unpack-path / --unpack-root DIRECTORY IMAGE`.
#
# One would guess: modes and times are as they were, as after unsquashfs, tar -x and unzip; owners if root calls it.
# What happens: none of that. All files have the mode that the umask gives, so no program of a root file system can be
# executed, and what was for its owner alone is for all. --chmod, --chown and --set-times have to be asked for, each by
# its own option.
# Seen with squashfs-tools-ng 1.2.0 of Debian 12.
#
#   program 755, secret 600:    unpacked: 644, 644    with --chmod: 755, 600
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools-ng=1.2.0-1 libsquashfs1=1.2.0-1
mkdir source
touch source/{program,secret}
chmod 755 source/program
chmod 600 source/secret
tar -c -C source . | tar2sqfs --quiet image
unpacked() { # OPTION…: the modes
	rm -rf unpacked
	rdsquashfs --quiet --unpack-path / --unpack-root unpacked "$@" image >/dev/null
	stat -c %a unpacked/program unpacked/secret | xargs
}
expect "unpacked" "644 644" "$(unpacked)"
expect "unpacked with --chmod" "755 600" "$(unpacked --chmod)"
