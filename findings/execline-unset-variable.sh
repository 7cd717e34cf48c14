#!/usr/bin/env bash
# A service of s6 (s6-overlay in images) has a run script of execline, with a variable in a path:
# importas NAME NAME tool --data /srv/${NAME}/files. NAME is not set.
#
# One would guess: /srv//files, as in a shell; or an error.
# What happens: the whole word is gone, with all that stands around the variable. --data takes the next word for its
# value, and `rm -r /srv/${NAME}` or `tar -C /srv/${NAME} …` get one word less. An empty variable leaves /srv//files.
# `importas -i` makes an error of it.
# Seen with execline 2.9.3.0 of Debian 12.
#
#   printf "<%s>" a /srv/${NAME}/files b: <a><b>       NAME empty: <a></srv//files><b>
. "$(dirname "$0")/common.bash" || exit 2
debs execline=2.9.3.0-1 libexecline2.9=2.9.3.0-1 libskarnet2.13=2.13.1.1-1
PATH=$place/root/usr/lib/execline/bin:$PATH
unset NAME
words() { execlineb -c "importas ${1-} NAME NAME printf \"<%s>\" a /srv/\${NAME}/files b"; }
expect "a value" "<a></srv/one/files><b>" "$(NAME=one words)"
expect "empty" "<a></srv//files><b>" "$(NAME= words)"
expect "not set" "<a><b>" "$(words)"
status=0
words -i 2>said || status=$?
expect "not set, -i" 100 "$status"
