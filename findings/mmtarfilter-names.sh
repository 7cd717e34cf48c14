#!/usr/bin/env bash
# mmtarfilter of mmdebstrap takes documentation out of a layer, `--path-exclude='/usr/share/doc/*'`, or puts its files
# elsewhere, --strip-components, --transform, "just as with GNU tar".
#
# One would guess: the paths are those of the files, however the archive writes them, usr/share or ./usr/share; and
# what has a second name, a hard link, is whole afterwards.
# What happens: --path-exclude drops the first letter of each name, which is right for "./usr" alone. Of an archive as
# `tar -c usr`, docker save and git archive make it nothing is left out, without a word; the pattern must be
# sr/share/doc/* there. --strip-components and --transform change the names but not what hard links lead to, so the
# result cannot be unpacked.
# Seen with mmdebstrap 1.3.5 of Debian 12.
#
#   --path-exclude='/usr/share/doc/*': of ./usr… gone, of usr… there      --strip-components=1: b link to usr/a
. "$(dirname "$0")/common.bash" || exit 2
debs mmdebstrap=1.3.5-7
mkdir -p files/usr/share/doc/x
touch files/usr/share/doc/x/copyright
echo data >files/usr/a
ln files/usr/a files/usr/b
tar -C files -cf with.tar ./usr
tar -C files -cf without.tar usr
documents() { mmtarfilter "--path-exclude=$1" <"$2" | tar -t | grep -c copyright || true; }
expect "./usr" 0 "$(documents '/usr/share/doc/*' with.tar)"
expect "usr" 1 "$(documents '/usr/share/doc/*' without.tar)"
expect "usr, another pattern" 0 "$(documents 'sr/share/doc/*' without.tar)"
tar -C files --sort=name -cf links.tar usr/a usr/b
links() { mmtarfilter "$1" <links.tar | tar -tv | sed -n 's/.* \([^ ]* link to .*\)/\1/p'; }
expect "--strip-components" "b link to usr/a" "$(links --strip-components=1)"
expect "--transform" "opt/b link to usr/a" "$(links --transform=s,^usr,opt,)"
mkdir out other
tar -C out --strip-components=1 -xf links.tar
expect "GNU tar, --strip-components" "a b" "$(ls out | xargs)"
status=0
mmtarfilter --strip-components=1 <links.tar | tar -C other -x 2>words || status=$?
expect "status of tar" 2 "$status"
