#!/usr/bin/env bash
# Two images of a root file system are compared, to know that a new build is like the last: sqfsdiff --old A --new B.
# Its files have labels (SELinux). In B a program has lost its file capability (ping, newuidmap), as happens when it is
# copied, or has another one.
#
# One would guess: a line about it and status 1. Owners, modes and contents are compared unless one asks not to, and
# tar2sqfs of the same package keeps extended attributes.
# What happens: nothing, and status 0, "equal". What attributes a file has is not looked at, and no option does it: no
# capabilities, ACLs or labels. Only where one file has none at all is there a line, about a type of inode.
# Seen with squashfs-tools-ng 1.2.0 of Debian 12.
#
#   A: label, capability     B: label: 0, no output     another capability: 0     no attributes: 1, "basic type"
. "$(dirname "$0")/common.bash" || exit 2
debs squashfs-tools-ng=1.2.0-1 libsquashfs1=1.2.0-1
cat >program.py <<'END_OF_PROGRAM'
import io
import struct
import tarfile


def capability(number: int) -> dict[str, str]:
    value = struct.pack("<5I", 0x02000001, 1 << number, 0, 0, 0)
    return {"SCHILY.xattr.security.capability": value.decode("latin-1")}


label = {"SCHILY.xattr.security.selinux": "system_u:object_r:ping_exec_t:s0"}
for name, attributes in {
    "both": label | capability(13),
    "label": label,
    "other": label | capability(21),
    "none": {},
}.items():
    with tarfile.open(name + ".tar", "w", format=tarfile.PAX_FORMAT) as archive:
        ping = tarfile.TarInfo("ping")
        ping.size, ping.mode, ping.pax_headers = 4, 0o755, attributes
        archive.addfile(ping, io.BytesIO(b"text"))
END_OF_PROGRAM
python3 program.py
for name in both label other none; do tar2sqfs --quiet "$name.squashfs" <"$name.tar"; done
names() { rdsquashfs -x ping "$1.squashfs" | cut -d = -f 1 | sort | xargs; }
expect "attributes of A" "security.capability security.selinux" "$(names both)"
expect "attributes of B" security.selinux "$(names label)"
compare() { # B: status, and how many lines
	local status=0
	sqfsdiff --old both.squashfs --new "$1.squashfs" >out || status=$?
	echo "$status $(wc -l <out)"
}
expect "B without the capability: status, lines" "0 0" "$(compare label)"
expect "B with another one: status, lines" "0 0" "$(compare other)"
expect "B without attributes: status, lines" "1 1" "$(compare none)"
expect "the line" "/ping has a basic type" "$(<out)"
