#!/usr/bin/env bash
# `COPY pages/* /pages/` in a Dockerfile, where a file's name has brackets, such as [id].js, which frameworks for web
# pages want.
#
# One would guess: all files are copied, as by a shell, by docker build and by `COPY pages /pages`.
# What happens: the names that the pattern finds are taken for patterns once more. [id].js as a pattern means i.js or
# d.js: if there is one it is copied instead, and [id].js is left out, without a word, status 0. If there is
# none, the build fails. Nor does docker's way to write a bracket, [[]id].js, help.
# Seen with buildah 1.28.2 of Debian 12. Needs root.
#
#   [id].js i.js index.js: COPY pages: all three     COPY pages/*: i.js index.js     COPY pages/[[]id].js: i.js
. "$(dirname "$0")/common.bash" || exit 2
root_only
debs buildah=1.28.2+ds1-3+deb12u1+b3 libgpgme11=1.18.0-3+deb12u1 libassuan0=2.5.5-5 libgpg-error0=1.46-1 \
	libdevmapper1.02.1=2:1.02.185-2 libseccomp2=2.5.4-1+deb12u1
mkdir -p context/pages tmp
touch context/pages/{'[id].js',i.js,index.js}
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
echo 'unqualified-search-registries = []' >registries.conf
export TMPDIR=$place/tmp BUILDAH_ISOLATION=chroot
build() { # COMMAND ARGUMENT…
	buildah --root "$place/kept" --runroot "$place/run" --storage-driver vfs \
		--registries-conf "$place/registries.conf" "$@"
}
copied() { # SOURCE: what of it is in the image
	local container
	printf 'FROM scratch\nCOPY %s /pages/\n' "$1" >context/Dockerfile
	build build --quiet --signature-policy policy.json --tag image context >words 2>&1 || { echo fails; return; }
	container=$(build from --signature-policy policy.json image)
	ls "$(build mount "$container")/pages" | xargs
	build rm "$container" >words
}
expect "COPY pages" "[id].js i.js index.js" "$(copied pages)"
expect "COPY pages/*" "i.js index.js" "$(copied 'pages/*')"
expect "COPY pages/[[]id].js" i.js "$(copied 'pages/[[]id].js')"
rm context/pages/i.js
expect "COPY pages/*, without i.js" fails "$(copied 'pages/*')"
