#!/usr/bin/env bash
# spython makes a Singularity recipe of a Dockerfile, whose ENTRYPOINT and CMD are lists with spaces in their words,
# and which has a RUN with a list.
#
# One would guess: the runscript calls the same words, quoted; RUN becomes a command line.
# What happens: the words are joined with spaces: sh -c gets `echo` alone and prints an empty line. The list of
# RUN stands in %post as it is, brackets and commas, where a shell looks for a command of that name.
# Seen with spython 0.3.14.
#
#   ENTRYPOINT ["sh", "-c", "echo $0 $1"], CMD ["a b", "c"]: exec sh -c echo $0 $1 a b c "$@"
#   RUN ["ls", "-l"]: ["ls", "-l"]
. "$(dirname "$0")/common.bash" || exit 2
pips spython==0.3.14
cat >Dockerfile <<'END'
FROM debian:12
RUN ["ls", "-l"]
ENTRYPOINT ["sh", "-c", "echo $0 $1"]
CMD ["a b", "c"]
END
spython recipe Dockerfile >recipe 2>words
expect "run" '["ls", "-l"]' "$(sed -n '/^%post/{n;p}' recipe)"
expect "runscript" 'exec sh -c echo $0 $1 a b c "$@"' "$(sed -n '/^%runscript/,/^%/s/^exec/exec/p' recipe)"
expect "what it prints" "" "$(sh -c "$(sed -n '/^%runscript/,/^%/s/^exec/exec/p' recipe)")"
