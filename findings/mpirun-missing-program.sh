#!/usr/bin/env bash
# The exit status of Open MPI's mpirun when its program does not exist, or may not be executed.
#
# One would guess: 127 and 126, as with a shell, env and timeout; or 1.
# What happens: 134 where PATH does not have it, and 132 where its path is missing or may not be executed. Whoever
# knows that 128 and more are signals takes them for SIGABRT and SIGILL: a crash, a program for another processor.
# Seen with Open MPI 4.1.4 of Debian 12.
#
#   no-such-program: 134    ./no-such-program, ./text: 132    kill -ABRT $$: 134    kill -ILL $$: 132
. "$(dirname "$0")/common.bash" || exit 2
debs openmpi-bin=4.1.4-3+b1 openmpi-common=4.1.4-3 libopenmpi3=4.1.4-3+b1 libpmix2=4.2.2-1+deb12u1 \
	libhwloc15=2.9.0-1 libevent-core-2.1-7=2.1.12-stable-8 libevent-pthreads-2.1-7=2.1.12-stable-8 \
	libmunge2=0.5.15-2+deb12u1 libnl-3-200=3.7.0-0.2+b1 libnl-route-3-200=3.7.0-0.2+b1
export OPAL_PREFIX=$place/root/usr OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status() { mpirun.openmpi -n 1 "$@" >words 2>&1 </dev/null && echo 0 || echo $?; }
touch text
expect "exit 3" 3 "$(status sh -c 'exit 3')"
expect "not in PATH" 134 "$(status no-such-program)"
expect "missing path" 132 "$(status ./no-such-program)"
expect "not executable" 132 "$(status ./text)"
expect "kill -ABRT \$\$" 134 "$(status sh -c 'kill -ABRT $$')"
expect "kill -ILL \$\$" 132 "$(status sh -c 'kill -ILL $$')"
