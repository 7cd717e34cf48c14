#!/usr/bin/env bash
# mpirun starts programs that do not use MPI, such as a script for each core, and the first of them fails while the
# other one works: mpirun -n 2 ./script.
#
# One would guess: the other one goes on to its end, as with srun, xargs -P and parallel, for they do not know of each
# other; the status tells of the failure. In any case Open MPI and MPICH, both called mpirun, do the same.
# What happens: so with MPICH. Open MPI ends the other one, in the midst of its work, as it does after MPI_Abort; if
# the first ends with 0, it leaves the other alone. --mca orte_abort_on_non_zero_status 0 lets it go on.
# Seen with Open MPI 4.1.4 and MPICH 4.0.2 of Debian 12.
#
#   rank 0: exit 3, rank 1: sleep, echo done:    MPICH: 3, done     Open MPI: 3, nothing
. "$(dirname "$0")/common.bash" || exit 2
debs mpich=4.0.2-3+b1 libslurm38=22.05.8-4+deb12u3 \
	openmpi-bin=4.1.4-3+b1 openmpi-common=4.1.4-3 libopenmpi3=4.1.4-3+b1 libpmix2=4.2.2-1+deb12u1 \
	libhwloc15=2.9.0-1 libevent-core-2.1-7=2.1.12-stable-8 libevent-pthreads-2.1-7=2.1.12-stable-8 \
	libmunge2=0.5.15-2+deb12u1 libnl-3-200=3.7.0-0.2+b1 libnl-route-3-200=3.7.0-0.2+b1
export OPAL_PREFIX=$place/root/usr OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cat >script <<'END'
if [ "${PMI_RANK-$OMPI_COMM_WORLD_RANK}" = 0 ]; then exit "$1"; fi
sleep 3
echo done
END
try() { # STATUS COMMAND…: its status, and what rank 1 has said; rank 0 ends with STATUS
	local status=0
	"${@:2}" -n 2 sh script "$1" >out 2>words </dev/null || status=$?
	echo "$status $(cat out)"
}
openmpi=(mpirun.openmpi --oversubscribe)
expect "MPICH" "3 done" "$(try 3 mpiexec.hydra)"
expect "Open MPI" "3 " "$(try 3 "${openmpi[@]}")"
expect "Open MPI, rank 0 ends with 0" "0 done" "$(try 0 "${openmpi[@]}")"
expect "Open MPI, told to go on" "done" "$(try 3 "${openmpi[@]}" --mca orte_abort_on_non_zero_status 0 | grep -o done)"
