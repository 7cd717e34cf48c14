#!/usr/bin/env bash
# honcho, a supervisor of a Procfile, reads the file .env with lines as other tools take them: PASSWORD=pass#word,
# export MODE=test, and EMPTY=.
#
# One would guess: pass#word, test and an empty variable, as with a shell and python-dotenv; or an error for a line that
# it does not know.
# What happens: # begins a comment within a word, so the password is "pass"; the other two are not set at all, and no
# word is said. PASSWORD="pass#word" and EMPTY="" are right.
# Seen with honcho 2.0.0.
#
#   [pass] [not set] [not set]     in quotes: [pass#word] [not set] []
. "$(dirname "$0")/common.bash" || exit 2
pips honcho==2.0.0
seen() { # LINE…: of .env
	printf '%s\n' "$@" >.env
	env -u PASSWORD -u MODE -u EMPTY honcho run sh -c 'echo "[$PASSWORD] [${MODE-not set}] [${EMPTY-not set}]"' 2>&1
}
expect "plain" "[pass] [not set] [not set]" "$(seen PASSWORD=pass#word 'export MODE=test' EMPTY=)"
expect "in quotes" "[pass#word] [not set] []" "$(seen 'PASSWORD="pass#word"' 'export MODE="test"' 'EMPTY=""')"
