#!/usr/bin/env bash
# skopeo copies an image to dir:DIRECTORY again, where an image of before is; beside it are files of the user's: a
# list of what is in it, a signature, a directory of reports.
#
# One would guess: the blobs of before stay beside the new ones, or those alone are taken away; or a directory with
# other files is refused, as skopeo does if there is no image ("don't want to overwrite important data").
# What happens: once there is a file "version" of an image, all goes, directories with what is in them too, status 0.
# Seen with skopeo 1.9.3 and umoci 0.4.7 of Debian 12.
#
#   no image, notes: 1, notes stay       an image, notes and reports/: 0, both are gone
. "$(dirname "$0")/common.bash" || exit 2
debs skopeo=1.9.3+ds1-1+b10 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libdevmapper1.02.1=2:1.02.185-2 \
	umoci=0.4.7+ds-3+b7
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
umoci init --layout image
umoci new --image image:tag
mkdir other
echo mine >other/notes
copy() { # DIRECTORY: the status, and which of the user's files are there afterwards
	local status=0
	skopeo --policy policy.json copy -q oci:image:tag "dir:$1" 2>words || status=$?
	echo "$status $(cd "$1" && find . -path '*notes*' -o -path '*reports*' | sort | xargs)"
}
expect "no image there" "1 ./notes" "$(copy other)"
expect "words" 1 "$(grep -c "don't want to overwrite important data" words)"
expect "a new directory" "0 " "$(copy kept)"
mkdir kept/reports
echo mine | tee kept/notes >kept/reports/one
expect "an image there" "0 " "$(copy kept)"
expect "the image is there" 1 "$(ls kept | grep -cx version)"
