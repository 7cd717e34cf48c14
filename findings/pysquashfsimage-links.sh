#!/usr/bin/env bash
# PySquashfsImage looks for /bin/sh in an image in which /bin is a link to usr/bin, as in every distribution's.
#
# One would guess: select("/bin/sh") finds it, as unsquashfs and the kernel do, or raises an error.
# What happens: None, as for a file that does not exist: it follows no link on the way. Nor does it take "..", "./"
# or a slash at the end: select("/usr/") is None as well. dissect.squashfs does find all of them.
# Seen with PySquashfsImage 0.9.0 and dissect.squashfs 1.12; the image is of squashfs-tools 4.5.1 of Debian 12.
#
#   select: /usr/bin/sh found, /bin/sh None, /usr/bin/ None
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools=1:4.5.1-1 liblzo2-2=2.10-2
mkdir -p files/usr/bin
echo x >files/usr/bin/sh
ln -s usr/bin files/bin
mksquashfs files image -quiet -no-progress
unset LD_LIBRARY_PATH
pips PySquashfsImage==0.9.0 dissect.squashfs==1.12
cat >program.py <<'END'
from dissect.squashfs import SquashFS
from PySquashfsImage import SquashFsImage

paths = "/usr/bin/sh", "/bin/sh", "/usr/bin/"
with SquashFsImage.from_file("image") as image:
    print(*(image.select(path) is not None for path in paths))
with open("image", "rb") as file:
    image = SquashFS(file)
    print(*(image.get(path) is not None for path in paths))
END
python program.py >seen
expect "found by PySquashfsImage" "True False False" "$(sed -n 1p seen)"
expect "found by dissect.squashfs" "True True True" "$(sed -n 2p seen)"
