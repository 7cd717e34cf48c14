#!/usr/bin/env bash
# A script in an image with busybox (an initramfs, an init of a container) shows a directory elsewhere, for reading
# only: mount -o bind,ro DATA /mnt.
#
# One would guess: nobody can write there; mount(8) of util-linux makes two calls of it, as the kernel ignores "ro" when
# it makes a bind mount. busybox has the same options, and could say no.
# What happens: status 0, no word, and the mount is writable. "nosuid" and "noexec" are lost as well. A second call,
# mount -o remount,bind,ro /mnt, does what was meant.
# Seen with busybox 1.35.0 of Debian 12. Needs root.
#
#   busybox mount -o bind,ro: rw      mount of util-linux: ro      busybox, remount after it: ro
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs busybox-static=1:1.35.0-4+deb12u1+b1
mkdir data mnt
mounted() { # COMMAND…: the options of the mount after it, and whether one can write there
	unshare --mount sh -ec 'eval "$1"
		set -- "$(awk -v at="$PWD/mnt" "\$2 == at {print \$4}" /proc/mounts)"
		touch mnt/file 2>/dev/null && written=written || written=refused
		for option in ro nosuid noexec; do
			case ,$1, in *,$option,*) printf "%s " $option;; esac
		done
		echo $written' sh "$1"
}
expect "busybox" written "$(mounted 'busybox mount -o bind,ro,nosuid,noexec data mnt')"
expect "util-linux" "ro nosuid noexec refused" "$(mounted 'mount -o bind,ro,nosuid,noexec data mnt')"
expect "busybox, twice" "ro refused" \
	"$(mounted 'busybox mount -o bind data mnt; busybox mount -o remount,bind,ro data mnt')"
