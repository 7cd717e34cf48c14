#!/usr/bin/env bash
# Slurm's own qsub, for people who come from PBS, gets what PBS Professional and OpenPBS want for processors and
# memory: qsub -l select=1:ncpus=4:mem=2gb.
#
# One would guess: four processors and 2 GB; or an error, as for an option that it does not know.
# What happens: the job is taken, with 2 GB and one processor. Names that are not of Torque, select and ncpus, are
# passed over without a word, and so is pmem, which is. And cput, the time of all processors together, becomes the
# limit of the time on the clock.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   nodes=1:ppn=4: 4 processors   select=1:ncpus=4, ncpus=4: 1      pmem=2gb: no memory
. "$(dirname "$0")/common.bash" || exit 2
. "$here/slurm.bash"
torque
slurm
printf '#!/bin/sh\ntrue\n' >script
asked() { # RESOURCES: what the job asks for
	local job
	job=$(qsub -h -l "$1" script)
	scontrol show job "$job" | grep -oE '(NumCPUs|MinMemoryNode|TimeLimit)=[^ ]*' | xargs
}
expect "Torque's way" "TimeLimit=UNLIMITED NumCPUs=4 MinMemoryNode=2G" "$(asked nodes=1:ppn=4,mem=2gb)"
expect "PBS Pro's" "TimeLimit=UNLIMITED NumCPUs=1 MinMemoryNode=2G" "$(asked select=1:ncpus=4:mem=2gb)"
expect "ncpus" "TimeLimit=UNLIMITED NumCPUs=1 MinMemoryNode=0" "$(asked ncpus=4)"
expect "pmem" "TimeLimit=UNLIMITED NumCPUs=4 MinMemoryNode=0" "$(asked nodes=1:ppn=4,pmem=2gb)"
expect "cput" "TimeLimit=04:00:00 NumCPUs=4 MinMemoryNode=0" "$(asked nodes=1:ppn=4,cput=04:00:00)"
