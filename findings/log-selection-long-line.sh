#!/usr/bin/env bash
# A log keeps only lines with ERROR in them: s6-log -.* +ERROR DIRECTORY, multilog '-*' '+*ERROR*' DIRECTORY. A line
# is long, such as a record of JSON with a stack trace, and has the word at its end.
#
# One would guess: the whole line is kept, as with grep.
# What happens: multilog matches only the first 1000 bytes, so the line is not kept at all; it would write all of it.
# s6-log cuts it into lines of 8192 bytes, and judges each: the last piece is kept, which is no record. Without a
# selection s6-log's pieces stay, as lines, and each has a time of its own. No word, with both.
# Seen with daemontools 0.76 and s6 2.11.3 of Debian 12.
#
#   a line of 20,000 bytes and ERROR, then "short ERROR":   multilog: 11     s6-log: 3622, 11
. "$(dirname "$0")/common.bash" || exit 2
debs daemontools=1:0.76-8.1 s6=2.11.3.2-1 libskarnet2.13=2.13.1.1-1
printf '%020000d ERROR\nshort ERROR\n' 0 >lines
lengths() { awk '{ print length($0) }' "$1/current" | xargs; }
multilog '-*' '+*ERROR*' ./selected <lines 2>words
expect "multilog" 11 "$(lengths selected)"
multilog ./all <lines 2>words
expect "multilog, all" "20006 11" "$(lengths all)"
s6-log -- '-.*' '+ERROR' "$place/s6-selected" <lines
expect "s6-log" "3622 11" "$(lengths s6-selected)"
s6-log -- "$place/s6-all" <lines
expect "s6-log, all" "8192 8192 3622 11" "$(lengths s6-all)"
