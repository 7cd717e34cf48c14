#!/usr/bin/env bash
# A user sets a variable for one run, beside all others: `--export=ALL,LEVEL=debug`. LEVEL=info is in the environment.
#
# One would guess: the value on the command line counts, for srun as for sbatch: it is why one writes it.
# What happens: for sbatch it does. For srun the environment counts, in whatever order one writes it: the option has
# no effect, and nothing says so. `env LEVEL=debug srun …` works.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   sbatch: debug      srun: info      srun, LEVEL=debug,ALL: info
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
export LEVEL=info
job=$(sbatch --parsable --export=ALL,LEVEL=debug --output=out --wrap 'printenv LEVEL')
until [[ -z $(squeue -h -j "$job" 2>/dev/null) && -s out ]]; do sleep 0.1; done
expect sbatch debug "$(cat out)"
expect srun info "$(srun --export=ALL,LEVEL=debug printenv LEVEL)"
expect "srun, the other way round" info "$(srun --export=LEVEL=debug,ALL printenv LEVEL)"
expect "srun by env" debug "$(env LEVEL=debug srun printenv LEVEL)"
