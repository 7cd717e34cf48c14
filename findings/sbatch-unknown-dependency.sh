#!/usr/bin/env bash
# `sbatch --dependency=afterok:JOB` where there is no such job: mistyped, or so long ago that the controller
# has forgotten it (MinJobAge, 300 s).
#
# One would guess: "Job dependency problem", or the job waits for ever, as after a job that failed.
# What happens: the dependency counts as fulfilled, and the job runs at once, on input that nobody has
# made. A job that failed five minutes ago is one of these.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   afterok of a failed job: pending, DependencyNeverSatisfied      afterok:99999: status 0, it runs
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
slurm
job=$(sbatch --parsable --output=/dev/null --wrap 'exit 1')
until [[ -z $(squeue -h) ]]; do sleep 0.1; done
sbatch -Q --dependency="afterok:$job" --output=/dev/null --wrap 'touch after-failure'
until [[ $(squeue -h -o %r) == DependencyNeverSatisfied ]]; do sleep 0.1; done
expect "afterok of a failed job" "PENDING DependencyNeverSatisfied" "$(squeue -h -o '%T %r')"
scancel --user=root
seen=0
sbatch -Q --wait --dependency=afterok:99999 --output=out --wrap 'echo runs' 2>words || seen=$?
expect "afterok of no job: status" 0 "$seen"
expect "words" "" "$(cat words)"
expect "output" runs "$(cat out)"
