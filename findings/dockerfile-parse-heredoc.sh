#!/usr/bin/env bash
# dockerfile-parse says on which image a Dockerfile builds. The file has a here-document, as BuildKit and buildah
# take it, and in that a line of SQL that begins with FROM.
#
# One would guess: the base image is that of the FROM instruction; or a file that the parser cannot read is an error.
# What happens: it reads each line of the here-document as an instruction. The base image is the table of the query,
# and to set the base image changes the query and not the instruction.
# Seen with dockerfile-parse 2.0.1.
#
#   FROM debian:12, RUN psql <<END … FROM users … END: baseimage users
. "$(dirname "$0")/common.bash" || exit 2
pips dockerfile-parse==2.0.1
cat >Dockerfile <<'FILE'
FROM debian:12
RUN psql <<END
SELECT name
FROM users
END
FILE
cat >program.py <<'END'
from dockerfile_parse import DockerfileParser

parser = DockerfileParser("Dockerfile")
print(parser.baseimage, parser.parent_images)
parser.baseimage = "debian:13"
END
expect "base image" "users ['debian:12', 'users']" "$(python program.py)"
expect "after a change" "FROM debian:12 RUN psql <<END SELECT name FROM debian:13 END" "$(xargs <Dockerfile)"
