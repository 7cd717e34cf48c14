#!/usr/bin/env bash
# `sbatch --export=NONE` (or a list of names) of a script that sets a variable and calls srun.
#
# One would guess: the option says what of the submitting shell the script gets. What the script sets itself
# its programs have, with srun or without.
# What happens: sbatch leaves SLURM_EXPORT_ENV in the job, and srun takes it for its own --export: the tasks get
# neither the script's variables nor its PATH, so `module load` before srun has no effect.
# `srun --export=ALL`, or unset SLURM_EXPORT_ENV, helps.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   script: export SET=here; env: SET=here    srun env: nothing    srun --export=ALL env: SET=here
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
export LISTED=listed
cat >script <<END
#!/bin/sh
export LD_LIBRARY_PATH=$LD_LIBRARY_PATH SLURM_CONF=$SLURM_CONF PATH=$PATH SET=here
env | grep '^SET=' >without
srun -Q -n1 /usr/bin/env | grep -E '^(SET|LISTED|PATH)=' >with
srun -Q -n1 --export=ALL /usr/bin/env | grep '^SET=' >all
END
try() { # OPTION
	sbatch -Q --wait "$1" --output=out script || true
	echo "$(cat without), $(cat with), $(cat all)"
}
expect "--export=NONE" "SET=here, , SET=here" "$(try --export=NONE)"
expect "--export=LISTED" "SET=here, LISTED=listed, SET=here" "$(try --export=LISTED)"
