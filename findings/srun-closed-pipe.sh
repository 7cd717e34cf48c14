#!/usr/bin/env bash
# `srun PROGRAM | head -n 1`: who reads the output goes, and the program writes on.
#
# One would guess: the program, or at least srun, ends with SIGPIPE or an error, as in every pipeline and with ssh.
# What happens: nobody hears of it. srun throws away what it cannot write, the program runs for as long as it likes,
# and the pipeline and its job last until the program ends or the time limit comes.
# Seen with Slurm 22.05.8 of Debian 12. Needs root.
#
#   yes | head -n 1: ends at once      srun yes | head -n 1: after 5 s srun and the job still run
. "${BASH_SOURCE[0]%/*}/common.bash"
. "$here/slurm.bash"
slurm
pipeline() { # [srun OPTION…]: whether `yes | head` ends within 5 s
	("$@" yes | head -n 1 >line) >/dev/null 2>&1 &
	local pipeline=$! try
	for ((try = 0; try < 50; try++)); do
		kill -0 "$pipeline" 2>/dev/null || break
		sleep 0.1
	done
	[[ $try -lt 50 ]] && echo ends || echo runs
}
expect "yes | head" ends "$(pipeline)"
expect "srun yes | head" runs "$(pipeline srun -Q)"
expect "what head has read" y "$(cat line)"
expect "the job" R "$(squeue -h -o %t)"
