#!/usr/bin/env bash
# `sbatch --mem-per-cpu=300` of a job of one task, where the administrator has set MaxMemPerCPU=100.
#
# One would guess: the job is refused, or waits for ever, as with a time limit above that of the partition.
# What happens: it is taken, with three processors for its one task and 100 MB for each; three are accounted for. The
# script has SLURM_MEM_PER_CPU=100, and nothing in it tells of the other two processors but SLURM_JOB_CPUS_PER_NODE.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   processors and memory of each: 3 100M
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm MaxMemPerCPU=100 'NodeName=DEFAULT RealMemory=4000'
cat >script <<'END'
#!/bin/sh
squeue -h -j "$SLURM_JOB_ID" -o "%C %m"
echo "${SLURM_CPUS_PER_TASK-none} $SLURM_MEM_PER_CPU $SLURM_JOB_CPUS_PER_NODE"
END
sbatch -Q --wait --mem-per-cpu=300 --output=out script
expect "job" "3 100M" "$(sed -n 1p out)"
expect "processors of a task, memory of each, processors" "none 100 3" "$(sed -n 2p out)"
