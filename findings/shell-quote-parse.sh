#!/usr/bin/env bash
# A tool in JavaScript takes a command line apart with parse() of shell-quote, to call the program without a shell: of
# package.json, of a Procfile, of a container's CMD. What is an object in the result, an operator, it looks at or drops.
#
# One would guess: "2>&1" is one operator, or is told by its parts; a newline separates commands as ";" does; and
# ${NAME:-default} is the value of NAME, or default, or is left as it is.
# What happens: the 2 becomes an argument of the program. A newline is a blank, so two commands become one. For
# ${NAME:-default} there is nothing at all, although NAME is set.
# Seen with shell-quote 1.12.0 of npm.
#
#   server 2>&1: ["server","2",{"op":">&"},"1"]      "a\nb": ["a","b"]      ${X:-y}, X=v: [""]
. "$(dirname "$0")/common.bash" || exit 2
npms shell-quote@1.12.0
parse() { node -p 'JSON.stringify(require("shell-quote").parse(process.argv[1], {X: "v"}))' "$1"; }
expect "2>&1" '["server","2",{"op":">&"},"1"]' "$(parse 'server 2>&1')"
expect ";" '["a",{"op":";"},"b"]' "$(parse 'a;b')"
expect "a newline" '["a","b"]' "$(parse $'a\nb')"
expect '${X}' '["v"]' "$(parse '${X}')"
expect '${X:-y}' '[""]' "$(parse '${X:-y}')"
