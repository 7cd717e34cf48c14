#!/usr/bin/env bash
# dockerfile-parse gives the labels and variables of a Dockerfile, with the variables in them replaced.
#
# One would guess: ${A:-z} is the value of A or z, as docker build has it; or it stays as it is, or is an error.
# What happens: the parser takes ${A for the variable and the rest for text: "2:-z}" where A is 2, and ":-z}"
# where it is not set. Neither is in the file, and no word is said.
# Seen with dockerfile-parse 2.0.1.
#
#   ENV A=2, LABEL l=${A:-z} m=${B:-z}: {'l': '2:-z}', 'm': ':-z}'}
. "$(dirname "$0")/common.bash" || exit 2
pips dockerfile-parse==2.0.1
cat >program.py <<'END'
import io

from dockerfile_parse import DockerfileParser

text = b"FROM scratch\nENV A=2\nLABEL l=${A:-z} m=${B:-z} n=${A}\n"
print(dict(sorted(DockerfileParser(fileobj=io.BytesIO(text)).labels.items())))
END
expect "labels" "{'l': '2:-z}', 'm': ':-z}', 'n': '2'}" "$(python program.py)"
