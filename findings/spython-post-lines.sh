#!/usr/bin/env bash
# spython makes a Dockerfile of a Singularity recipe, whose %post is a shell script.
#
# One would guess: one RUN with the script, or at least something that does the same.
# What happens: each line becomes a RUN of its own. `cd` and variables have no effect on the next line, so make
# runs in the wrong directory, and the parts of an `if` are commands that no shell takes. Status 0.
# Seen with spython 0.3.14.
#
#   %post: cd /x, make      Dockerfile: RUN cd /x, RUN make
. "$(dirname "$0")/common.bash" || exit 2
pips spython==0.3.14
cat >recipe <<'END'
Bootstrap: docker
From: debian:12
%post
cd /x
make
if true; then
  echo yes
fi
END
seen=0
spython recipe --parser singularity --writer docker recipe >Dockerfile 2>words || seen=$?
expect "status" 0 "$seen"
expect "instructions" "RUN cd /x, RUN make, RUN if true; then, RUN echo yes, RUN fi" \
	"$(grep '^RUN' Dockerfile | paste -sd, | sed 's/,/, /g')"
