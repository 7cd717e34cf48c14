#!/usr/bin/env bash
# A signal ends a batch script, such as the kernel's SIGKILL when memory is short.
#
# One would guess: the reason is NonZeroExitCode or has the signal's name, and `sbatch --wait` ends with 137, as
# with the script's own `exit 137`.
# What happens: the reason is JobLaunchFailure, as if the node could not start the script, and sbatch --wait ends
# with 1. Who looks for a broken node looks in vain; the signal is in ExitCode alone, 0:9.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   exit 137: 137, NonZeroExitCode, 137:0      kill -KILL $$: 1, JobLaunchFailure, 0:9
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
try() { # COMMAND: the status of sbatch --wait, and the job's reason and exit code
	local status=0
	sbatch -Q --wait --job-name=try --output=try.out --wrap "touch ran; $1" || status=$?
	[[ -e ran ]] || cannot "the script did not run"
	rm ran
	echo "$status $(scontrol show job -o | tail -n 1 | grep -oE '(Reason|ExitCode)=[^ ]*' | cut -d= -f2 | xargs)"
}
expect "exit 137" "137 NonZeroExitCode 137:0" "$(try 'exit 137')"
expect "SIGKILL" "1 JobLaunchFailure 0:9" "$(try 'kill -KILL $$')"
expect "SIGTERM" "1 JobLaunchFailure 0:15" "$(try 'kill -TERM $$')"
