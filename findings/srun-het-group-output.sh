#!/usr/bin/env bash
# A heterogeneous job has one task on one node and two on another, as a server with its workers: salloc -n1 : -n2.
# One step over both has a file for each rank: srun --het-group=0,1 --output=out.%t.
#
# One would guess: out.0, out.1 and out.2, %t being the rank, which counts on over the components: SLURM_PROCID and the
# labels of srun --label do.
# What happens: out.0, out.2 and out.3. The number of the tasks before the component is added twice, so out.2 is what
# rank 1 has written. Whoever looks into the file of a rank has that of another one, and it all looks plausible.
# Lines of srun about a failure count each component from 0.
# Seen with Slurm 22.05.8 of Debian 12, two slurmd on one machine. Needs root.
#
#   out.0: 0      out.2: 1      out.3: 2      --label: 0: 0, 1: 1, 2: 2      a failure of rank 1: "task 0"
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
ends() {
	local name
	for name in node two; do kill "$(<"$name.pid")"; done
}
on_exit=(ends)
sinfo() { command sinfo --nodes=node "$@"; } # slurm waits for the first node
slurm "SlurmdSpoolDir=$place/spool.%n" "SlurmdPidFile=$place/%n.pid" \
	"NodeName=two NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=$((19100 + RANDOM % 800)) CPUs=4 State=UNKNOWN"
unset -f sinfo
slurmd-wlm -N two -f "$SLURM_CONF" -d "$place/root/usr/sbin/slurmstepd-wlm" || cannot "the second slurmd does not start"
for ((try = 0; try < 100; try++)); do
	[[ $(sinfo -h -o '%D %t') != "2 idle" ]] || break
	sleep 0.1
done
step() { timeout 60 salloc -Q -n1 : -n2 srun --het-group=0,1 "$@"; }
step --output=out.%t sh -c 'echo "$SLURM_PROCID"'
expect "files" "out.0:0 out.2:1 out.3:2" "$(grep . out.* | xargs)"
expect "labels" "0: 0 1: 1 2: 2" "$(step --label sh -c 'echo "$SLURM_PROCID"' | sort | xargs)"
step sh -c '[ "$SLURM_PROCID" != 1 ]' 2>words || true
expect "a failure of rank 1" "task 0: Exited with exit code 1" "$(grep -o 'task .*' words)"
