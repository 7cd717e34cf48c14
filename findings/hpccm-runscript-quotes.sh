#!/usr/bin/env bash
# A recipe of HPC Container Maker says what the container runs: runscript(commands=['printf "%s." "two words"']).
#
# One would guess: the same in a Dockerfile as in a Singularity recipe: printf gets "two words", one word, no quotes.
# What happens: so with Singularity, whose runscript has the line as it stands. For a Dockerfile the line is split as a
# shell splits it, each word is quoted for a shell again, and these words become a list for ENTRYPOINT, which no shell
# reads. So single quotes are part of each word that has a blank, a "*" or another sign of a shell's.
# Seen with hpccm 26.5.0 of PyPI.
#
#   ENTRYPOINT ["printf", "%s.", "'two words'"]        %runscript: exec printf "%s." "two words" "$@"
. "$(dirname "$0")/common.bash" || exit 2
pips hpccm==26.5.0
cat >recipe.py <<-'END'
	Stage0 += baseimage(image="scratch")
	Stage0 += runscript(commands=['printf "%s." "two words"'])
END
made() { hpccm --recipe recipe.py --format "$1"; }
made singularity | sed -n '/^%runscript/,$p' | grep exec >script
expect "Singularity" "two words." "$(sh script)"
made docker | sed -n 's/^ENTRYPOINT //p' >list
entrypoint() { python3 -c 'import json, os; words = json.load(open("list")); os.execvp(words[0], words)'; }
expect "Dockerfile" "'two words'." "$(entrypoint)"
