#!/usr/bin/env bash
# A recipe of HPC Container Maker sets variables, one of which needs another: environment(variables={"ROOT": "/opt/app",
# "BIN": "$ROOT/bin"}). A dict of Python keeps the order in which it is written.
#
# One would guess: they are set in this order, so BIN is /opt/app/bin, in a Dockerfile and in a Singularity recipe.
# What happens: they are sorted by name. So BIN comes before ROOT and is "/bin". Another order of the alphabet would be
# right for Singularity alone: all of them are in one ENV, where docker build and buildah replace a variable by its
# value before that ENV.
# Seen with hpccm 26.5.0 of PyPI.
#
#   Dockerfile: ENV BIN=$ROOT/bin ROOT=/opt/app      Singularity: export BIN=$ROOT/bin, then export ROOT=/opt/app
. "$(dirname "$0")/common.bash" || exit 2
pips hpccm==26.5.0
cat >recipe.py <<-'END'
	Stage0 += baseimage(image="scratch")
	Stage0 += environment(variables={"ROOT": "/opt/app", "BIN": "$ROOT/bin"})
END
made() { hpccm --recipe recipe.py --format "$1"; }
expect "Dockerfile" 'ENV BIN=$ROOT/bin ROOT=/opt/app' "$(made docker | sed -n '/^ENV/,$p' | tr -d '\\' | xargs)"
made singularity | sed -n '/^%environment/,/^%post/p' | grep export >lines
expect "Singularity" 'export BIN=$ROOT/bin export ROOT=/opt/app' "$(xargs <lines)"
expect "what a shell makes of it" "BIN is /bin" "$(ROOT=; . ./lines; echo "BIN is $BIN")"
