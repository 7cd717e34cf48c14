#!/usr/bin/env bash
# A batch script calls mpiexec.slurm, which Slurm has beside srun for those who come from Torque and say mpiexec:
# mpiexec.slurm -n 2 program 'two words'.
#
# One would guess: as with srun, which it calls: the program gets its words, and the status is that of the program.
# What happens: the status is 0, whatever the ranks' is, so the job is COMPLETED and what depends on it begins. And the
# words become a line for a shell: blanks divide them.
# Quotes within the quotes ("'two words'") help with words, and nothing with the status.
# Seen with slurm-wlm-torque 22.05.8 of Debian 12. Needs root.
#
#   a program that ends with 3:   srun: 3, <two words>     mpiexec.slurm: 0, <two><words>
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
torque
slurm
cat >program <<'END'
#!/bin/sh
printf '<%s>' "$@"
echo
exit 3
END
chmod +x program
seen() { # COMMAND…: its status and output
	local status=0
	"$@" >out 2>words || status=$?
	echo "$status $(xargs <out)"
}
expect "srun" "3 <two words> <two words>" "$(seen srun -n 2 ./program 'two words')"
expect "mpiexec.slurm" "0 <two><words> <two><words>" "$(seen mpiexec.slurm -n 2 ./program 'two words')"
expect "srun's words" "Exited with exit code 3" "$(grep -o 'Exited with.*' words | head -n 1)"
expect "more quotes" "0 <two words> <two words>" "$(seen mpiexec.slurm -n 2 ./program "'two words'")"
