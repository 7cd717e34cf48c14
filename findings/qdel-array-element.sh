#!/usr/bin/env bash
# One element of an array is deleted with the qdel that Slurm has for those who come from Torque and PBS Pro:
# qdel '12[2]', as these write it, or qdel 12_2, as Slurm does.
#
# One would guess: that element ends, and no other; or qdel, which is a script and may not know of elements, refuses it.
# What happens: the whole array is killed, status 0. The number is taken as Perl takes text for a number, that is up to
# the first sign that is no digit: 12. Perl's warning, "isn't numeric", is all that is said, and it comes when it is too
# late. scancel 12_2 and scancel '12_[2]' end the element.
# Seen with slurm-wlm-torque 22.05.8 of Debian 12. Needs root.
#
#   elements left of 1 to 3:   scancel 12_2: 1 3     qdel '12[2]': none, status 0     qdel 12_2: none, status 0
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
torque
slurm
left() { # COMMAND: its status, and which elements run after it; JOB is the number of the array
	local job try status=0
	job=$(sbatch --parsable --array=1-3 --output=/dev/null --wrap 'sleep 600')
	for ((try = 0; try < 200; try++)); do
		[[ $(squeue -h -r -j "$job" -t running -o %K | wc -l) != 3 ]] || break
		sleep 0.1
	done
	"${@//JOB/$job}" 2>words || status=$?
	for ((try = 0; try < 200; try++)); do
		[[ $(squeue -h -r -t running -o %K | wc -l) == 3 || -n $(squeue -h -r -t completing) ]] || break
		sleep 0.1
	done
	echo "$status $(squeue -h -r -j "$job" -t running -o %K | sort | xargs)"
	scancel --user=root
	until [[ -z $(squeue -h) ]]; do sleep 0.1; done
}
expect "scancel JOB_2" "0 1 3" "$(left scancel JOB_2)"
expect "qdel JOB[2]" "0 " "$(left qdel 'JOB[2]')"
expect "words" "isn't numeric" "$(grep -o "isn't numeric" words)"
expect "qdel JOB_2" "0 " "$(left qdel JOB_2)"
