#!/usr/bin/env bash
# `sbatch` within another job, of a script that does not say how many tasks it wants and calls srun: a workflow
# that submits its next part.
#
# One would guess: a job like any other: one task. What the outer job asked for is its own.
# What happens: sbatch hands on the outer job's variables. SLURM_NTASKS is among them, which srun takes for its
# --ntasks; the new job has one processor, and srun starts nothing. `sbatch -n1` helps.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   from a shell: srun starts 1 task      from salloc -n2: "More processors requested than permitted"
#   from salloc -n2, with sbatch -n1: 1 task
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
cat >script <<'END'
#!/bin/sh
srun sh -c 'echo "task $SLURM_PROCID of $SLURM_NTASKS"'
END
output() { # WORD…: submits, and waits for the job; prints what it said
	"$@" >words 2>&1
	until [[ -z $(squeue -h) ]]; do sleep 0.1; done
	sed 's/.*: //' output
}
expect "from a shell" "task 0 of 1" "$(output sbatch --output=output script)"
expect "from salloc -n2" "More processors requested than permitted" \
	"$(output salloc -n2 sbatch --output=output script)"
expect "from salloc -n2, with sbatch -n1" "task 0 of 1" \
	"$(output salloc -n2 sbatch -n1 --output=output script)"
