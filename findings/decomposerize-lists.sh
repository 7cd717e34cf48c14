#!/usr/bin/env bash
# decomposerize makes a `docker run` line of a file for compose, whose command and entrypoint are lists, as the
# documentation of compose recommends.
#
# One would guess: their words, in quotes where a shell needs it.
# What happens: the words of command are put together with commas into one or more words that are none of them; each
# word of entrypoint becomes an --entrypoint of its own, of which docker takes the last: "--". The health check is
# CMD,true, which no shell has. No word, and the line looks right at first sight.
# Seen with decomposerize 1.4.4.
#
#   ["sh", "-c", "echo a b"]: sh,-c,echo a b      entrypoint ["tini", "--"]: --entrypoint tini --entrypoint --
. "$(dirname "$0")/common.bash" || exit 2
npms decomposerize@1.4.4
cat >program.js <<'END_OF_PROGRAM'
const decomposerize = require("decomposerize");
const lines = ["services:", "  web:", "    image: image", ...process.argv.slice(2).map((line) => "    " + line)];
console.log(decomposerize(lines.join("\n") + "\n"));
END_OF_PROGRAM
line() { node program.js "$@"; }
expect "command, a string" "docker run image sh -c true" "$(line 'command: sh -c true')"
expect "command" "docker run image sh,-c,echo a b" "$(line 'command: ["sh", "-c", "echo a b"]')"
expect "entrypoint" "docker run --entrypoint tini --entrypoint -- image" "$(line 'entrypoint: ["tini", "--"]')"
expect "health check" "docker run --health-cmd CMD,true image" "$(line 'healthcheck:' '  test: ["CMD", "true"]')"
